"""The plain twins: NumPy or CuPy, whichever made the arrays. Obvious first; in pieces that fit into cache second.

Inputs may be strided or read-only and are never written to, except where a rule says "in place". Results are new arrays in
the dtype of the inputs; nothing is widened to float64 unless the docstring says so.
"""
from .activation import gelu, gelu_backward, sigmoid, silu, silu_backward, softmax, softmax_backward
from .attention import causal_attention, causal_attention_backward, rotary, rotary_tables
from .flat import block_squares, tree_sum
from .normalization import dropout_mask, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from .rules import adam, momentum, sgd
from .vocabulary import cross_entropy, cross_entropy_backward, embedding_backward

__all__ = [
    "adam", "block_squares", "causal_attention", "causal_attention_backward", "cross_entropy", "cross_entropy_backward",
    "dropout_mask", "embedding_backward", "gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "momentum",
    "rms_norm", "rms_norm_backward", "rotary", "rotary_tables", "sgd", "sigmoid", "silu", "silu_backward", "softmax",
    "softmax_backward", "tree_sum",
]
