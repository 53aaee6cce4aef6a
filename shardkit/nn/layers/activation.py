"""Activation functions as layers, and the layers that only change the form of x.

They have no parameters. PyTorch's `inplace` is refused: nothing is changed in place here, since
the backward of the layer before may need it.
"""

from typing import Any

from ...arguments import is_among, require
from ..autograd import Tensor
from ..module import Module
from ..ops import activation, arrangement, functions, rectifiers


class OutOfPlace(Module):
    """A function of x whose result is another array.

    Parameters
    ----------
    inplace
        False; True is refused, since the backward of the layer before may need x.
    """

    operation: Any  # of ops, on x alone

    def __init__(self, inplace: bool = False) -> None:
        wanted = "False: nothing is changed in place here, leave it out"
        require(inplace is False, f"{type(self).__name__} with inplace", inplace, wanted)

    def forward(self, x: Tensor) -> Tensor:
        return type(self).operation(x)


class ReLU(OutOfPlace):
    """max(x, 0)."""

    operation = staticmethod(activation.relu)


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


class SiLU(OutOfPlace):
    """x sigmoid(x)."""

    operation = staticmethod(activation.silu)


class Mish(OutOfPlace):
    """x tanh(softplus(x)) (arXiv 1908.08681)."""

    operation = staticmethod(rectifiers.mish)


class Tanh(Module):
    """The hyperbolic tangent of x."""

    def forward(self, x: Tensor) -> Tensor:
        return activation.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return activation.sigmoid(x)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold.

    Parameters
    ----------
    beta
        Sharpness of the bend.
    threshold
        Of beta x, above which the result is x.
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        return functions.softplus(x, self.beta, self.threshold)


class ELU(OutOfPlace):
    """x where it is positive, alpha (exp(x) - 1) elsewhere (arXiv 1511.07289).

    Parameters
    ----------
    alpha
        Minus the limit for very negative x.
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return rectifiers.elu(x, self.alpha)


class LeakyReLU(OutOfPlace):
    """x where it is positive, negative_slope x elsewhere.

    Parameters
    ----------
    negative_slope
        Factor of negative x.
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return rectifiers.leaky_relu(x, self.negative_slope)


class Hardtanh(OutOfPlace):
    """x between the two values, and the nearer one elsewhere.

    Parameters
    ----------
    min_val, max_val
        The two values.
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        return rectifiers.hardtanh(x, self.min_val, self.max_val)


class Softmax(Module):
    """exp(x) / sum of exp(x) over dim.

    Parameters
    ----------
    dim
        Over which they are taken.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return activation.softmax(x, self.dim)


class LogSoftmax(Module):
    """The logarithm of softmax over dim.

    Parameters
    ----------
    dim
        Over which they are taken.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return activation.log_softmax(x, self.dim)


class Identity(Module):
    """x as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Flatten(Module):
    """x with the dimensions from start_dim to end_dim, both too, as one.

    Parameters
    ----------
    start_dim, end_dim
        Numbers of dimensions; negative ones count from the end.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        return arrangement.flatten(x, self.start_dim, self.end_dim)
