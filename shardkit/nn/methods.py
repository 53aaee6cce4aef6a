"""The methods of a Tensor: what x.exp(), x.max(dim) or x.T mean, by PyTorch's names.

A method is an operation of `ops` with the Tensor as its first argument. A few have PyTorch's form
where that of `ops` is another: `split` takes the size of a part, `max` and `min` along a dim return
the places too. The class gets its methods here, when the package is imported, as it gets its
operators (operators.py).
"""

from collections import namedtuple
from typing import Any

from ..array import fresh
from ..errors import ShapeError
from . import ops
from .autograd import Tensor, record
from .doors import door

Extreme = namedtuple("Extreme", ["values", "indices"])

PLAIN = """
abs all any arctan argmax argmin argsort ceil chunk clamp clip cos cumprod cumsum diagonal erf
exp expm1 flatten floor gather index_add index_select log log1p log_softmax logsumexp
masked_fill mean norm prod reciprocal relu roll round rsqrt scatter_add sigmoid sign sin
softmax sort sqrt square std sum tan tanh topk transpose tril triu unsqueeze var
""".split()


def _sizes(arguments):
    """Return what was given as one tuple or list, or as separate numbers, as a tuple."""
    is_one = len(arguments) == 1 and isinstance(arguments[0], (tuple, list))
    return tuple(arguments[0]) if is_one else tuple(arguments)


def reshape(self, *shape: Any) -> Tensor:
    """Return the elements in another shape, given as one tuple or as separate sizes."""
    return ops.reshape(self, _sizes(shape))


def permute(self, *dims: Any) -> Tensor:
    """Return the tensor with dimension dims[i] as dimension i."""
    return ops.permute(self, _sizes(dims))


def expand(self, *shape: Any) -> Tensor:
    """Return the tensor stretched to this shape; -1 leaves a size as it is."""
    shape = _sizes(shape)
    added = len(shape) - self.ndim
    sizes = [self.shape[d - added] if size == -1 else size for d, size in enumerate(shape)]
    return ops.expand(self, sizes)


def repeat(self, *sizes: Any) -> Tensor:
    """Return the tensor so many times along each dimension."""
    return ops.repeat(self, _sizes(sizes))


def flip(self, *dims: Any) -> Tensor:
    """Return the tensor in reverse order along dims."""
    return ops.flip(self, _sizes(dims))


def squeeze(self: Tensor, dim: int | None = None) -> Tensor:
    """Return the tensor without this dimension, of size 1; None: without all of size 1."""
    if dim is None:
        return ops.reshape(self, [size for size in self.shape if size != 1])
    return ops.squeeze(self, dim)


def split(self, sizes: Any, dim: int = 0) -> list[Tensor]:
    """Return parts along dim: of these sizes, or all of one size, the last perhaps smaller."""
    if isinstance(sizes, int):
        return ops.arrangement.parts_of(self, sizes, dim)
    return ops.split(self, sizes, dim)


def _extreme(reduce, place):
    """Return the method that takes the largest or smallest element, of all or along a dim.

    Along a dim it returns the values and the places of the first, and a gradient goes to these, as
    in PyTorch; amax and amin share it among equal ones.
    """

    def extreme(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return reduce(self)
        indices = place(self, dim, keepdim=True)
        values = ops.gather(self, dim, indices)
        if keepdim:
            return Extreme(values, indices)
        return Extreme(ops.squeeze(values, dim), ops.squeeze(indices, dim))

    return extreme


def matrix_transpose(self) -> Tensor:
    """Return the matrix with rows and columns exchanged."""
    if self.ndim != 2:
        raise ShapeError(f"T of a tensor of shape {self.shape}; wanted a matrix: use permute or mT")
    return ops.transpose(self, 0, 1)


def clone(self) -> Tensor:
    """Return a copy, through which gradients flow."""
    return record(fresh.copy(self.array), (self,), lambda gradient, wanted: (gradient,))


def _cast(dtype):
    return lambda self: self if self.dtype == dtype else ops.cast(self, dtype)


METHODS = {
    "amax": ops.max,
    "amin": ops.min,
    "clone": clone,
    "dim": lambda self: self.ndim,
    "double": _cast("float64"),
    "expand": expand,
    "flip": flip,
    "float": _cast("float32"),
    "long": _cast("int64"),
    "matmul": ops.matmul,
    "max": _extreme(ops.max, ops.argmax),
    "min": _extreme(ops.min, ops.argmin),
    "numel": lambda self: self.size,
    "permute": permute,
    "pow": ops.power,
    "repeat": repeat,
    "reshape": reshape,
    "split": split,
    "squeeze": squeeze,
    "t": matrix_transpose,
    "view": reshape,
    "view_as": lambda self, other: ops.reshape(self, other.shape),
}

for name in PLAIN:
    setattr(Tensor, name, getattr(ops, name))
for name, method in METHODS.items():
    setattr(Tensor, name, door(__name__, method))
setattr(Tensor, "T", property(matrix_transpose))
setattr(Tensor, "mT", property(lambda self: ops.transpose(self, -1, -2)))
