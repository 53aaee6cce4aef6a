"""The plain twins: NumPy or CuPy, whichever made the arrays. Obvious first; in pieces that fit into
cache second.

Inputs may be strided or read-only and are never written to, except where a rule says "in place".
Results are in the dtype of the inputs; nothing is widened to float64 unless the docstring says so.

Results are new arrays, or `out` where it is given: C-contiguous, of the shape and dtype of the
result, and returned. It may be one of the inputs of that shape unless the docstring says otherwise,
which is how a backward reuses the gradient's memory.
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
