"""The fast twins for NumPy arrays of float32 and float64: loops compiled by Numba, which read each
array once.

Signatures and meaning are those of the reference. The bits may differ from it, but follow the same
rules: what is computed element by element has the bits it would have anywhere else, sums along a
row depend on the row alone, sums over rows and buffers go in a fixed order. Nothing depends on
where arrays lie in memory, on the number of threads or on other rows.
"""

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
