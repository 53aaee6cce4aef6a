"""The fast twins for CuPy arrays of float32 and float64, and of float16 and bfloat16 where layers
compute: kernels in CUDA C++.

Signatures and meaning are those of the reference. Half floats are computed in float32; what is one
number per row, or a sum over rows, stays float32. The bits may differ from the reference, but
follow the same rules: what is computed element by element has the bits it would have anywhere else,
sums along a row depend on the row alone, sums over rows and buffers go in a fixed order. Nothing
depends on where arrays lie in memory, on which block runs first or on the GPU's size; no float is
added by an atomic.
"""

from . import attention, normalization
from .activation import (
    bias_gelu,
    bias_gelu_backward,
    gelu,
    gelu_backward,
    sigmoid,
    silu,
    silu_backward,
    softmax,
    softmax_backward,
    swiglu,
    swiglu_backward,
)
from .attention import causal_attention, causal_attention_backward, rotary, rotary_tables
from .dropout import dropout, dropout_mask
from .flat import block_squares, tree_sum
from .half import from_half, largest_magnitude, to_half
from .normalization import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from .rules import adam, momentum, sgd
from .vocabulary import cross_entropy, cross_entropy_backward, embedding_backward

__all__ = [
    "adam",
    "add_layer_norm",
    "add_rms_norm",
    "bias_gelu",
    "bias_gelu_backward",
    "block_squares",
    "causal_attention",
    "causal_attention_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "dropout_mask",
    "embedding_backward",
    "from_half",
    "gelu",
    "gelu_backward",
    "largest_magnitude",
    "layer_norm",
    "layer_norm_backward",
    "momentum",
    "rms_norm",
    "rms_norm_backward",
    "rotary",
    "rotary_tables",
    "sgd",
    "sigmoid",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "swiglu",
    "swiglu_backward",
    "to_half",
    "tree_sum",
]

OF_NUMBERS = ("float32", "float64")
OF_LAYERS = (*OF_NUMBERS, "float16", "bfloat16")
# the dtypes of the deciding array, where they are not those of layers
DTYPES = {
    "adam": OF_NUMBERS,
    "momentum": OF_NUMBERS,
    "sgd": OF_NUMBERS,
    "tree_sum": OF_NUMBERS,
    "to_half": OF_NUMBERS,
    "from_half": ("float16",),
    "rotary_tables": (),
}

FITS = {
    "causal_attention": attention.fits,
    "causal_attention_backward": attention.fits,
    "layer_norm_backward": normalization.fits,
    "rms_norm_backward": normalization.fits,
}


def computes(name: str, x) -> bool:
    """True if the kernel of this name takes an array of the dtype and width of x; else the plain
    twin computes.

    x  the array that decides: the first argument, or what the door names instead
    """
    return x.dtype.name in DTYPES.get(name, OF_LAYERS) and FITS.get(name, _always)(x)


def _always(x):
    return True
