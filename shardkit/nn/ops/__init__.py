"""Functions on Tensors, each written beside its gradient.

Conventions. Inputs are Tensors; where a scalar or an array makes sense it is taken too, as a
constant. Python scalars keep the dtype of the other operand, so float32 stays float32. Integer and
boolean inputs never get gradients. `dim` counts dimensions of an array, negative from the end. A
gradient has the shape and dtype of what it is the gradient of. A wrong shape or dtype is a
ShapeError.
"""

from .activation import bias_gelu, gelu, log_softmax, relu, sigmoid, silu, softmax, swiglu, tanh
from .attention import causal_attention, rotary
from .elementwise import (
    add,
    compare,
    divide,
    exp,
    log,
    maximum,
    multiply,
    negative,
    power,
    sqrt,
    subtract,
    where,
)
from .linear import add_bias, embedding, linear, matmul
from .loss import binary_cross_entropy, cross_entropy, mse
from .normalization import add_layer_norm, add_rms_norm, dropout, layer_norm, rms_norm
from .reduction import max, mean, sum, variance
from .shape import (
    cast,
    concatenate,
    expand,
    gather,
    getitem,
    permute,
    reshape,
    split,
    squeeze,
    transpose,
    unsqueeze,
)

__all__ = [
    "add",
    "add_bias",
    "add_layer_norm",
    "add_rms_norm",
    "bias_gelu",
    "binary_cross_entropy",
    "cast",
    "causal_attention",
    "compare",
    "concatenate",
    "cross_entropy",
    "divide",
    "dropout",
    "embedding",
    "exp",
    "expand",
    "gather",
    "gelu",
    "getitem",
    "layer_norm",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "mse",
    "multiply",
    "negative",
    "permute",
    "power",
    "relu",
    "reshape",
    "rms_norm",
    "rotary",
    "sigmoid",
    "silu",
    "softmax",
    "split",
    "sqrt",
    "squeeze",
    "subtract",
    "sum",
    "swiglu",
    "tanh",
    "transpose",
    "unsqueeze",
    "variance",
    "where",
]
