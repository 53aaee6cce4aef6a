"""The inner loops of training: one name and one signature each, whoever computes them.

`reference` holds the plain NumPy / CuPy twins, which define what is right.
"""
from .reference import (
    adam, block_squares, causal_attention, causal_attention_backward, cross_entropy, cross_entropy_backward, dropout_mask,
    embedding_backward, gelu, gelu_backward, layer_norm, layer_norm_backward, momentum, rms_norm, rms_norm_backward, rotary,
    rotary_tables, sgd, sigmoid, silu, silu_backward, softmax, softmax_backward, tree_sum)

__all__ = [
    "adam", "block_squares", "causal_attention", "causal_attention_backward", "cross_entropy", "cross_entropy_backward",
    "dropout_mask", "embedding_backward", "gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "momentum",
    "rms_norm", "rms_norm_backward", "rotary", "rotary_tables", "sgd", "sigmoid", "silu", "silu_backward", "softmax",
    "softmax_backward", "tree_sum",
]
