"""Tensors that record how they were made: reverse-mode differentiation on NumPy and CuPy arrays.

    w = Tensor(array, requires_grad=True)
    y = ops.gelu(x @ w)                        recorded on the tape (tape.py says how it is walked)
    y.backward(gradient)                       adds to w.grad

Every operation is one call of `record`. Changes in place are counted, not recorded. The operators
of a Tensor (`+`, `@`, `[]`, `==`) are operations too: operators.py gives them to the class.
"""

import copy
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy

from ..annotations import Array, Shape
from ..array.backend import is_array, is_device_array, plain_array, to_host, xp_of
from ..array.dtypes import is_floating
from ..errors import AutogradError, ShapeError
from ..habits import refuse
from .tape import TapeNode, VersionCounter, WeightGradients, alone, is_grad_enabled, walk
from .tape import enable_grad as enable_grad
from .tape import no_grad as no_grad

if TYPE_CHECKING:
    from .tensor_methods import TensorMethods as _Methods
else:
    _Methods = object


def record(
    array: Any,
    parents: Sequence[Any],
    backward: Callable[..., Any],
    *,
    needs: Sequence[Any] = (),
    needs_output: bool = False,
    view_of: Any = None,
    is_one_pass: bool = False,
    gives_new: bool = False,
    differentiable: Callable[..., Any] | None = None,
) -> "Tensor":
    """Return the output tensor of an operation, on the tape if any parent takes a gradient.

    Parameters
    ----------
    array
        What was computed.
    parents
        Its inputs; those that are not Tensors (scalars, arrays) take no gradient.
    backward
        (gradient, wanted) -> one array or None per parent. `gradient` has the shape and dtype of
        `array`; it may be shared or a read-only view: never write to it, but returning it, or a
        view of it, is fine. `wanted[i]` says whether parent i takes a gradient now; each gradient
        must be computed with the same bits whatever else is wanted, since input and weight
        gradients may be asked for at different times.
    needs
        Tensors whose `.array` the closure reads. It must read `.array` inside, not capture the
        array: a sharded parameter has another buffer by then. Changing one of these in place makes
        the backward raise. What the closure does not need it should not mention (take the shape
        outside), or the tape keeps it alive.
    needs_output
        True if the closure captured `array` itself (as for exp, whose derivative is its result).
    view_of
        The parent whose memory `array` shares, if it does.
    is_one_pass
        All gradients together cost about as much as one, and those of parameters are small: where
        input and parameter gradients are asked for at different times, all are computed the first
        time.
    gives_new
        The gradients are arrays that backward has just made, each for one parent alone, and nobody
        else holds: a leaf may keep them as its `.grad`.
    differentiable
        (gradient, wanted, output) -> one Tensor or None per parent: the same gradients as
        `backward`, made by operations on Tensors, so that they can be differentiated again.
        `gradient` is a Tensor; `output` is this operation's result as a Tensor if needs_output,
        else None. It mentions no more than `backward` does. Only derivative.grad(create_graph=True)
        calls it; None: that raises.
    """
    wanted = tuple([isinstance(parent, Tensor) and parent.requires_grad for parent in parents])
    if True not in wanted or not is_grad_enabled():
        return _output(array, None, view_of)
    if array.dtype.kind == "c":
        raise AutogradError(
            f"a gradient through a tensor of {array.dtype}; keep complex numbers as pairs [..., "
            "2], as ops.fft does"
        )
    sources = tuple(
        [(parent._node or parent) if want else None for parent, want in zip(parents, wanted)]
    )
    saved: list[tuple[Any, int]] = [
        (tensor, tensor._memory.version) for tensor in needs if isinstance(tensor, Tensor)
    ]
    node = TapeNode(sources, wanted, backward, saved, is_one_pass, gives_new, differentiable)
    output = _output(array, node, view_of)
    if needs_output:
        saved.append((output._memory, output._memory.version))
    if needs_output and differentiable is not None:
        node.array = output.array
    return output


def _output(array, node, view_of):
    if view_of is None:
        return Tensor._made(array, node, VersionCounter())
    return view_of._memory.seen(view_of, Tensor._made(array, node, view_of._memory))


def record_unary(array: Any, x: Any, backward: Any, again: Any = None, **about: Any) -> "Tensor":
    """Return the output of an operation of one Tensor, on the tape as record() has it.

    backward  gradient -> that of x, both arrays
    again     (gradient, output or None) -> that of x, both Tensors; see `differentiable`
    """
    if again is not None:
        about["differentiable"] = lambda gradient, wanted, output: (again(gradient, output),)
    return record(array, (x,), partial(alone, backward), **about)


def record_linear(
    array: Any,
    x: "Tensor",
    adjoint: Callable[..., Any],
    again: Callable[..., "Tensor"],
    *form: Any,
    **how: Any,
) -> "Tensor":
    """Return the output of an operation that is linear, on x alone.

    array            what was computed
    adjoint, again   (gradient, *form) -> the gradient of x: of arrays, and of Tensors
    how              view_of, gives_new: as of record()
    """
    return record_unary(
        array,
        x,
        lambda gradient: adjoint(gradient, *form),
        lambda gradient, output: again(gradient, *form),
        **how,
    )


class Tensor(_Methods):
    """An array, whether it takes a gradient, and the node that made it (None for a leaf).

    Parameters
    ----------
    array
        NumPy or CuPy array; anything else is converted by NumPy.
    requires_grad
        Only for floating point; the gradient of a leaf is added IN PLACE to `.grad` if there is
        one, which may be a view of a flat buffer and stays that view, else a new array is set.

    Attributes
    ----------
    grad_is_empty
        The contents of `.grad` mean nothing yet: the first gradient overwrites them.

    Notes
    -----
    A subclass may make its array late, by defining `array` as a property and calling `_begin`
    instead of `__init__`.

    Examples
    --------
    >>> x = nn.Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    array([2., 4., 6.])
    """

    __slots__ = (
        "array",
        "grad",
        "grad_is_empty",
        "requires_grad",
        "_node",
        "_memory",
        "__weakref__",
    )
    __array_ufunc__ = None  # ndarray + Tensor is our business, not NumPy's
    is_parameter = False
    _parameter = None  # the one whose memory `.array` reads
    _hands_on = False

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        if type(array) is not numpy.ndarray and not is_device_array(array):
            array = plain_array(array)
        if requires_grad and not is_floating(array.dtype):
            raise AutogradError(
                f"a tensor of {array.dtype} cannot take a gradient; only floating point can: cast "
                "it first"
            )
        self._begin(requires_grad)
        self.array = array

    def _begin(self, requires_grad):
        """Set every attribute but the array."""
        self.grad: Any = None
        self.grad_is_empty = False
        self.requires_grad = requires_grad
        self._node: TapeNode | None = None
        self._memory = VersionCounter()

    @staticmethod
    def _made(array, node, memory):
        """Return the output of an operation; fast, since every operation makes one."""
        self = Tensor.__new__(Tensor)
        # 0-d results stay arrays.
        self.array = numpy.asarray(array) if isinstance(array, numpy.generic) else array
        self.grad = None
        self.grad_is_empty = False
        self.requires_grad = node is not None
        self._node = node
        self._memory = memory
        return self

    # What it is.

    @property
    def shape(self) -> Shape:
        return self.array.shape

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return self.array.dtype

    @property
    def gradient_dtype(self) -> numpy.dtype[Any]:
        """The dtype in which operations make the gradient of this tensor."""
        return self.dtype

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operation made it."""
        return self._node is None

    @property
    def version(self) -> int:
        """How often its memory was changed in place, through this tensor or a view of it."""
        return self._memory.version

    def item(self) -> Any:
        """Return the only element, as a Python number."""
        return to_host(self.array).item()

    def numpy(self) -> Array:
        """Return the array on the host: the same memory on a CPU, a copy from a GPU."""
        return to_host(self.array)

    def detach(self) -> "Tensor":
        """Return the same memory without history, as a leaf that takes no gradient."""
        return _output(self.array, None, self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.requires_grad and is_grad_enabled():
            raise AutogradError(
                "NumPy would lose the gradient of this tensor; use a function of shardkit.nn.ops, "
                "or pass t.detach() if none is wanted"
            )
        return numpy.array(self.numpy(), dtype=dtype, copy=copy)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        if not self.is_leaf:
            raise AutogradError(
                "a deep copy of a tensor that operations made would lead gradients to copies of "
                "what it was made from; copy t.detach()"
            )
        copied = Tensor(copy.deepcopy(self.array, memo), self.requires_grad)
        copied.grad = copy.deepcopy(self.grad, memo)
        copied.grad_is_empty = self.grad_is_empty
        return copied

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            refuse("Tensor", self, name)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({self.array!r}{grad})"

    # Gradients.

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf that it was made from.

        Parameters
        ----------
        gradient
            Of this tensor's shape; may be left out for a single element (then it is 1).
        retain_graph
            Keep the tape for another backward; otherwise it is freed on the way.

        Raises
        ------
        AutogradError
            If there is nothing to differentiate, the tape is already used up, or an array that the
            tape needs was changed in place.
        ShapeError
            On a gradient of another shape.
        """
        first = first_gradient(self, gradient)
        walk((self._node or self,), (first,), retain_graph=retain_graph)

    def stale_views(self, memory: VersionCounter | None = None) -> None:
        """Mark the memory under this tensor as another's: a backward through a view of it raises.

        For a sharded parameter that gives its buffer back; bound anew, the parameter is valid
        again.

        Parameters
        ----------
        memory
            What counts its changes from now on; None: one like that before.
        """
        self._memory.version += 1
        self._memory = (memory or self._memory).anew(self._memory.version - 1)

    def empty_gradient(self) -> Array | None:
        """Return `.grad` if the backward may compute its result there and return it, else None."""
        return self.grad if self.grad_is_empty and self.is_leaf else None

    # Changes in place. They are not recorded, so they are only allowed where no gradient would be
    # lost.

    def add_(self, other: Any) -> Self:
        """Add in place; other broadcasts to this shape."""
        array = self._writable(other)
        with _fits("add_", array, other):
            array[...] += array_of(other)
        return self

    def mul_(self, other: Any) -> Self:
        """Multiply in place; other broadcasts to this shape."""
        array = self._writable(other)
        with _fits("mul_", array, other):
            array[...] *= array_of(other)
        return self

    def copy_(self, other: Any) -> Self:
        """Overwrite with other, which broadcasts to this shape."""
        array = self._writable(other)
        with _fits("copy_", array, other):
            array[...] = array_of(other)
        return self

    def zero_(self) -> Self:
        """Overwrite with zero."""
        self._writable(None)[...] = 0
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self._writable(value)[_index(index)] = array_of(value)

    def _writable(self, other):
        """Return the array, about to be changed.

        Errors: AutogradError where the tape would miss the change.
        """
        if is_grad_enabled() and (
            self.requires_grad or isinstance(other, Tensor) and other.requires_grad
        ):
            raise AutogradError(
                "a change in place is not recorded, but this tensor or the value takes a gradient; "
                "use the form that makes a new tensor (x = x + y), or no_grad() if none is wanted"
            )
        self._memory.check_change()
        self._memory.version += 1
        return self.array

    __hash__ = object.__hash__  # a tensor is a key as itself, whatever it holds


class Passage(Tensor):
    """A leaf whose gradient goes on to what made its array, on a tape of its own: it is nobody's to
    write to, and may be shared.
    """

    __slots__ = ()
    _hands_on = True


TensorLike: TypeAlias = Tensor | Array | float  # what operations take


class CheapTensor(Tensor):
    """The output of an operation that takes little time and much memory: what needs it in a
    backward makes it again from what the operation itself keeps (arXiv 2205.05198, section 5).

    again   () -> the output, with the same bits; recorded where operations are
    needs   the tensors whose `.array` it reads
    """

    __slots__ = ("again", "needs")
    again: Callable[[], Tensor]
    needs: tuple[Tensor, ...]

    @classmethod
    def of(cls, output: Tensor, operation, *needs: Tensor) -> Tensor:
        """Return the output of operation(*needs) as one; itself if it has no backward."""
        if not output.requires_grad:
            return output
        self = cls.__new__(cls)
        self.array, self._node, self._memory = output.array, output._node, output._memory
        self.grad, self.grad_is_empty, self.requires_grad = None, False, True
        self.again, self.needs = (lambda: operation(*needs)), needs
        return self


def kept(tensor: Tensor):
    """Return (again, needs): how a backward gets a tensor of the forward, and what that reads.

    again()   -> the tensor, in no_grad() if only its array is wanted
    """
    if isinstance(tensor, CheapTensor):
        return tensor.again, tensor.needs
    return (lambda: tensor), (tensor,)


def array_of(value):
    """Return the array of a Tensor; any other value (a scalar, an array) as it is."""
    return value.array if isinstance(value, Tensor) else value


def is_numbers(value: Any) -> bool:
    """Return True for an array or a Tensor, of PyTorch too, and for one element of an array."""
    if is_array(value) or isinstance(value, (Tensor, numpy.generic)):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def wants_gradient(value):
    """Return whether a gradient of this value would be asked for: a Tensor's, outside no_grad()."""
    return isinstance(value, Tensor) and value.requires_grad and is_grad_enabled()


def constant_of(value, what):
    """Return the array of a Tensor; any other value as it is: what a function knows no gradient of.

    Errors: AutogradError if one is wanted, which would be lost.
    """
    if wants_gradient(value):
        raise AutogradError(
            f"{what} is a tensor that wants a gradient, and gets none here: pass t.detach() if "
            "none is wanted, or write the formula with functions of shardkit.nn.ops"
        )
    return array_of(value)


def origin_of(tensor):
    """Return where a walk meets the tensor: the node that made it, or the leaf itself."""
    return tensor._node or tensor


def output_of(node) -> Tensor | None:
    """Return what a node made, as a Tensor, if its operation needs it; None if not."""
    if node.array is None:
        return None
    memory, _ = node.saved[-1]
    return Tensor._made(node.array, node, memory)


@contextmanager
def _fits(name, array, other):
    """Raise ShapeError where NumPy finds that the other operand does not fit into the array."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        other = array_of(other)
        got = f"{other.shape} {other.dtype}" if hasattr(other, "dtype") else repr(other)
        raise ShapeError(
            f"{name} of a tensor of shape {array.shape} {array.dtype} and {got}: {error}; cast or "
            "reshape one of them"
        ) from None


def _index(index):
    """Return an index whose Tensors are replaced by their arrays."""
    return tuple([array_of(i) for i in index]) if isinstance(index, tuple) else array_of(index)


def first_gradient(output, gradient):
    """Return the gradient that a walk starts from, checked."""
    if not output.requires_grad:
        raise AutogradError(
            "backward of a tensor that no gradient flows through; was it made inside no_grad(), or "
            "does none of its inputs have requires_grad=True?"
        )
    if gradient is None:
        if output.size != 1:
            raise AutogradError(
                "backward() without a gradient needs a single element, but the shape is "
                f"{output.shape}; pass a gradient of that shape, or sum first"
            )
        return xp_of(output.array).ones_like(output.array)
    gradient = array_of(gradient)
    if not isinstance(gradient, numpy.ndarray) and not is_device_array(gradient):
        gradient = xp_of(output.array).asarray(gradient, output.dtype)
    if gradient.shape != output.shape:
        raise ShapeError(
            f"a gradient of shape {gradient.shape} for an output of shape {output.shape}; the two "
            "must be equal"
        )
    return gradient.astype(output.dtype, copy=False)


def backward_inputs(output: Tensor, gradient: Any = None) -> WeightGradients:
    """Run the backward for all leaves but the parameters, and keep what their gradients need.

    For schedules that compute input and weight gradients at different times (zero bubble, arXiv
    2401.10241). Together with `run()` of the result this is `output.backward(gradient)`, bit for
    bit. Parameters are leaves whose `is_parameter` is True.
    """
    deferred: list[Any] = []
    first = first_gradient(output, gradient)
    walk((output._node or output,), (first,), deferred=deferred)
    return WeightGradients(deferred)
