"""Layers: parameters with the operation that uses them.

x is a Tensor [..., features] of the layer's dtype; integer ids may be a Tensor or an array.
"""

from functools import singledispatch
from typing import Any, Self

from ...annotations import DTypeLike
from ...arguments import is_integer, is_number, require
from ...errors import ConfigurationError, ShapeError, ShardingError
from ..autograd import Tensor
from ..context import current_context
from ..init import Fill, Initializer, Normal, Uniform
from ..module import Module, ModuleList, Parameter, members_of
from ..ops.linear import embedding, linear
from ..ops.normalization import add_layer_norm, add_rms_norm, dropout, layer_norm, rms_norm
from ..ops.operands import check_ids
from ..ops.shape import beside_stream, cast, from_stream
from ..recorded import record

DTYPES = ("float32", "float64")


class Linear(Module):
    """x weight^T + bias.

    weight [out_features, in_features], initially `init`, or uniform in +-1/sqrt(in_features)

    Parameters
    ----------
    in_features, out_features
        Elements of the last dimension of x, and of the output.
    bias
        [out_features], initially 0; absent if bias=False.
    init
        Of the weight; None: uniform.
    dtype
        Of the parameters, such as "float32".

    Examples
    --------
    >>> layer = nn.Linear(4, 8)
    >>> layer
    Linear(in_features=4, out_features=8)
    >>> layer(np.ones((2, 4))).shape
    (2, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        init: Initializer | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        self.weight = Parameter(
            (out_features, in_features), init or Uniform(in_features**-0.5), dtype
        )
        self.bias = Parameter((out_features,), Fill(0.0), dtype) if bias else None

    def check_input(self, x: Any) -> None:
        check_width(type(self).__name__, x, self.weight.global_shape[1])

    def forward(self, x: Tensor, activation: Any = None) -> Tensor:
        """Apply the layer and then `activation`, an op; None: nothing."""
        # Products know some functions of ops, which stand behind doors.
        function = getattr(activation, "__wrapped__", activation)
        return linear(x, self.weight, self.bias, function)


@singledispatch
def is_affine(layer: Module) -> bool:
    """Return True if layer(x) is linear(x, layer.weight, layer.bias) and nothing else, so that one
    product may compute several such layers; each class of them enters itself.
    """
    return False


@is_affine.register
def _(layer: Linear) -> bool:
    return type(layer).forward is Linear.forward


class DenseLayer(Linear):
    """A linear layer and the activation after it: one block of an MLP."""

    def __init__(self, in_features: int, out_features: int, *, activation=None, dtype="float32"):
        super().__init__(in_features, out_features, dtype=dtype)
        self.activation = activation

    def forward(self, x):
        return super().forward(input_tensor(x, self.weight.dtype), self.activation)


class Embedding(Module):
    """Row `id` of the weight [num_rows, width] for every id; initially `init`, or Normal(1).

    Parameters
    ----------
    num_rows, width
        Of the weight.
    init
        Of its values; None: Normal(1).
    dtype
        Of the parameters, such as "float32".

    Examples
    --------
    >>> nn.Embedding(10, 4)([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    is_table = True

    def __init__(
        self,
        num_rows: int,
        width: int,
        *,
        init: Initializer | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_sizes("Embedding", num_rows=num_rows, width=width)
        self.weight = Parameter((num_rows, width), init or Normal(1.0), dtype)

    def check_input(self, x: Any) -> None:
        check_ids("embedding", x, self.weight.global_shape[0])

    def forward(self, ids: Any) -> Tensor:
        return embedding(self.weight, ids)


class LayerNorm(Module):
    """Each vector of x at mean 0, variance 1, times weight, plus bias (arXiv 1607.06450).

    Parameters
    ----------
    width
        Elements of each vector.
    eps
        Added to the variance.
    dtype
        Of the parameters, such as "float32".
    """

    def __init__(self, width: int, *, eps: float = 1e-5, dtype: DTypeLike = "float32") -> None:
        check_sizes("LayerNorm", width=width)
        self.eps = eps
        self.weight = Parameter((width,), Fill(1.0), dtype)
        self.bias = Parameter((width,), Fill(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = beside_stream(x, self.weight, self.bias)
        return from_stream(layer_norm(x, weight, bias, self.eps), self.weight)

    def after_adding(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + branch, and this norm of it."""
        weight, bias = beside_stream(x, self.weight, self.bias)
        total, y = add_layer_norm(x, branch, weight, bias, self.eps)
        return total, from_stream(y, self.weight)


class RMSNorm(Module):
    """Each vector of x scaled to mean square 1, times weight (arXiv 1910.07467).

    Parameters
    ----------
    width
        Elements of each vector.
    eps
        Added to the mean square.
    dtype
        Of the parameters, such as "float32".
    """

    def __init__(self, width: int, *, eps: float = 1e-6, dtype: DTypeLike = "float32") -> None:
        check_sizes("RMSNorm", width=width)
        self.eps = eps
        self.weight = Parameter((width,), Fill(1.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        (weight,) = beside_stream(x, self.weight)
        return from_stream(rms_norm(x, weight, self.eps), self.weight)

    def after_adding(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + branch, and this norm of it."""
        (weight,) = beside_stream(x, self.weight)
        total, y = add_rms_norm(x, branch, weight, self.eps)
        return total, from_stream(y, self.weight)


class Dropout(Module):
    """Each element zeroed with probability p in training, the others times 1 / (1 - p).

    The mask depends on the seed and step of the context, the path of this layer in the model, the
    number of the call in the forward pass, and the number of the sample in the global batch: it is
    the same however the batch is cut, and when a checkpointed block is run again.

    Parameters
    ----------
    p
        Probability, from 0 to below 1.
    sample_dim
        The dim of x along which the samples lie, or several rows of each, one after the other;
        "rows": dim 0, where that can be told (x [samples, ...], or x.reshape(-1, C) of it); None: x
        has none, such as a table that all samples read, and each micro-batch draws one mask.

    Notes
    -----
    In a sharded model rows that cannot be told apart are a ShapeError: their number is no multiple
    of the samples, or dim 1 has the length of the samples and dim 0 a multiple of it.
    """

    def __init__(self, p: float = 0.5, *, sample_dim: int | str | None = "rows") -> None:
        require(is_number(p, at_least=0, below=1), "dropout with p", p, "0 <= p < 1")
        is_known = sample_dim in ("rows", None) or is_integer(sample_dim)
        wanted = "the number of a dim, 'rows' or None"
        require(is_known, "dropout with sample_dim", sample_dim, wanted)
        self.p = p
        self.sample_dim = sample_dim

    def forward(self, x: Tensor) -> Tensor:
        context = current_context()
        if not context.training or self.p == 0:
            return x
        if self.path_in_model is None:
            raise ShardingError(
                "a Dropout that has no path yet cannot choose its mask; call finish(seed) on the "
                "model that it belongs to"
            )
        return dropout(x, self.p, self.path_in_model, context, self.sample_dim)


class Sequential(ModuleList):
    """Modules applied one after the other; each is a block.

    Parameters
    ----------
    *modules
        In their order.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> net
    Sequential(
      (0): Linear(in_features=4, out_features=8)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=1)
    )
    >>> net.predict(np.ones((2, 4))).shape
    (2, 1)
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def append(self, module: Module) -> Self:
        super().append(module)
        if type(self) is Sequential:
            record(self, tuple(self), {})
        return self

    def forward(self, x: Any) -> Any:  # as blocks() says, without making the list at each call
        for module in self:
            x = module(x)
        return x

    def blocks(self) -> list[tuple[str, Any]]:
        return list(members_of(self).items())


def check_sizes(owner: str, **sizes: int):
    """Raise ConfigurationError unless every size is a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigurationError(f"{owner} with {name} = {size!r}; wanted an int, at least 1")


def check_width(owner: str, x, width: int):
    """Raise ShapeError unless x is [samples, ..., width]."""
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(f"{owner} of x {x.shape}; wanted [samples, {width}]")


def checked_dtype(owner: str, dtype) -> str:
    """Return the name of a dtype that can be trained. Errors: ConfigurationError on any other."""
    # numpy.float32 and numpy.dtype("float32") are fine too.
    name = getattr(dtype, "__name__", str(dtype))
    if name not in DTYPES:
        raise ConfigurationError(
            f"{owner} with dtype = {dtype!r}; wanted one of {', '.join(DTYPES)}"
        )
    return name


def input_tensor(x, dtype=None) -> Tensor:
    """Return x as a Tensor, cast to dtype if given: users pass models arrays of any number type."""
    x = x if isinstance(x, Tensor) else Tensor(x)
    return x if dtype is None or x.dtype == dtype else cast(x, dtype)
