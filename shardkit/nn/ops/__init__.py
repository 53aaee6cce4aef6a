"""Functions on Tensors, each written beside its gradient.

Conventions. Inputs are Tensors; where a scalar or an array makes sense it is taken too, as a
constant. Python scalars keep the dtype of the other operand, so float32 stays float32. Integer and
boolean inputs never get gradients. `dim` counts dimensions of an array, negative from the end. A
gradient has the shape and dtype of what it is the gradient of. A wrong shape or dtype is a
ShapeError.
"""

from typing import NoReturn

from ...habits import place_of
from ...public import import_names
from ..doors import door

__all__ = import_names(
    __name__,
    {
        ".": "fft",
        "activation": (
            "bias_gelu erf erf_gelu gelu log_softmax relu sigmoid silu softmax swiglu tanh"
        ),
        "arrangement": (
            "chunk diagonal flatten flip repeat repeat_interleave roll stack tile tril triu"
        ),
        "attention": "attention_weights causal_attention scaled_dot_product_attention",
        "channel_norm": "batch_norm group_norm instance_norm",
        "composed": (
            "celu cosine_similarity fold glu hardshrink hardsigmoid hardswish logsigmoid normalize "
            "pairwise_distance pixel_shuffle pixel_unshuffle prelu relu6 selu softshrink softsign "
            "tanhshrink threshold unfold"
        ),
        "contraction": "bmm einsum outer",
        "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        "ctc": "ctc_loss",
        "elementwise": (
            "add compare divide exp log maximum minimum multiply negative power sqrt subtract where"
        ),
        "functions": (
            "abs arctan arctan2 ceil clamp clip cos expm1 floor log1p masked_fill reciprocal "
            "round rsqrt sign sin softplus square tan"
        ),
        "indexing": (
            "argmax argmin argsort index_add index_select one_hot scatter_add sort take_along_dim "
            "topk"
        ),
        "linear": "add_bias embedding linear matmul",
        "loss": "binary_cross_entropy_with_logits cross_entropy mse",
        "normalization": "add_layer_norm add_rms_norm dropout layer_norm rms_norm",
        "padding": "pad",
        "pooling": (
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
            "adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d "
            "max_pool2d max_pool3d"
        ),
        "rectifiers": "elu hardtanh leaky_relu mish",
        "recurrent": "gru lstm",
        "reduction": "all any max mean min sum variance",
        "resampling": "interpolate",
        "rotary": "rotary",
        "sampling": "grid_sample",
        "scan": "cumprod cumsum",
        "segments": "segment_max segment_mean segment_sum",
        "shape": (
            "cast cat=concatenate concatenate expand gather getitem permute reshape split squeeze "
            "transpose unsqueeze"
        ),
        "statistics": "logsumexp norm prod std var",
    },
    door,
)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}{place_of('ops', dict, name)}"
    )
