"""Activation functions as layers, and the layers that only change the form of x.

They have no parameters. PyTorch's `inplace` is refused: nothing is changed in place here, since
the backward of the layer before may need it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from ...arguments import is_among, require
from ..autograd import Tensor
from ..module import Module
from ..ops import activation, arrangement, functions, rectifiers


def _refuse_in_place(layer: Module, inplace: bool) -> None:
    wanted = "False: nothing is changed in place here, leave it out"
    require(inplace is False, f"{type(layer).__name__} with inplace", inplace, wanted)


class OutOfPlace(Module):
    """A function of x whose result is another array.

    Parameters
    ----------
    inplace
        False; True is refused, since the backward of the layer before may need x.
    """

    _operation: ClassVar[Any]  # of ops, on x alone

    def __init_subclass__(cls, operation: Any = None) -> None:
        super().__init_subclass__()
        if operation is not None:
            cls._operation = staticmethod(operation)

    def __init__(self, inplace: bool = False) -> None:
        _refuse_in_place(self, inplace)

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._operation(x)


@dataclass_transform(eq_default=False)
class Applied(Module):
    """operation(x, *the other attributes), where a subclass names an operation.

    What a subclass annotates are the arguments of its __init__, and its attributes. One of them may
    be `inplace`, which the operation does not take; True is refused.
    """

    _operation: ClassVar[Any]  # of ops
    _form: ClassVar[tuple[str, ...]]  # the attributes that it takes

    def __init_subclass__(cls, operation: Any = None) -> None:
        super().__init_subclass__()
        if operation is not None:
            cls._operation = staticmethod(operation)
            cls._form = tuple(cls.__annotations__)
            dataclass(repr=False, eq=False)(cls)

    def __post_init__(self) -> None:
        if "inplace" in self._form:
            _refuse_in_place(self, vars(self)["inplace"])

    def forward(self, x: Tensor) -> Tensor:
        form = [getattr(self, name) for name in self._form if name != "inplace"]
        return type(self)._operation(x, *form)


class ReLU(OutOfPlace, operation=activation.relu):
    """max(x, 0)."""


class GELU(Module):
    """x times the normal distribution function of x (arXiv 1606.08415).

    Parameters
    ----------
    approximate
        "none": by erf; "tanh": the approximation, which is ops.gelu.
    """

    def __init__(self, approximate: str = "none") -> None:
        known = {"none": activation.erf_gelu, "tanh": activation.gelu}
        wanted = '"none" or "tanh"'
        require(is_among(approximate, known), "GELU with approximate", approximate, wanted)
        self.approximate = approximate
        self._op = known[approximate]

    def forward(self, x: Tensor) -> Tensor:
        return self._op(x)


class SiLU(OutOfPlace, operation=activation.silu):
    """x sigmoid(x)."""


class Mish(OutOfPlace, operation=rectifiers.mish):
    """x tanh(softplus(x)) (arXiv 1908.08681)."""


class Tanh(Applied, operation=activation.tanh):
    """The hyperbolic tangent of x."""


class Sigmoid(Applied, operation=activation.sigmoid):
    """1 / (1 + exp(-x))."""


class Softplus(Applied, operation=functions.softplus):
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold.

    Parameters
    ----------
    beta
        Sharpness of the bend.
    threshold
        Of beta x, above which the result is x.
    """

    beta: float = 1.0
    threshold: float = 20.0


class ELU(Applied, operation=rectifiers.elu):
    """x where it is positive, alpha (exp(x) - 1) elsewhere (arXiv 1511.07289).

    Parameters
    ----------
    alpha
        Minus the limit for very negative x.
    inplace
        False; True is refused.
    """

    alpha: float = 1.0
    inplace: bool = False


class LeakyReLU(Applied, operation=rectifiers.leaky_relu):
    """x where it is positive, negative_slope x elsewhere.

    Parameters
    ----------
    negative_slope
        Factor of negative x.
    inplace
        False; True is refused.
    """

    negative_slope: float = 0.01
    inplace: bool = False


class Hardtanh(Applied, operation=rectifiers.hardtanh):
    """x between the two values, and the nearer one elsewhere.

    Parameters
    ----------
    min_val, max_val
        The two values.
    inplace
        False; True is refused.
    """

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


class Softmax(Applied, operation=activation.softmax):
    """exp(x) / sum of exp(x) over dim.

    Parameters
    ----------
    dim
        Over which they are taken.
    """

    dim: int


class LogSoftmax(Applied, operation=activation.log_softmax):
    """The logarithm of softmax over dim.

    Parameters
    ----------
    dim
        Over which they are taken.
    """

    dim: int


class Identity(Module):
    """x as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Flatten(Applied, operation=arrangement.flatten):
    """x with the dimensions from start_dim to end_dim, both too, as one.

    Parameters
    ----------
    start_dim, end_dim
        Numbers of dimensions; negative ones count from the end.
    """

    start_dim: int = 1
    end_dim: int = -1
