"""The inner loops of training: one name and one signature each, whoever computes them.

`reference` holds the plain NumPy / CuPy twins, which define what is right; `cpu` the fast ones for
NumPy arrays of float32 and float64, loops compiled by Numba; `cuda` those for CuPy arrays, kernels
in CUDA C++; `wide` computes other half floats in float32. Which of them computes depends on the
kind and dtype of the arrays alone, so ranks never differ in it. Numba is imported by the first
kernel that needs it; where there is none, the plain twins compute everything.
"""

import functools
import sys

import numpy

from ..traced import HOST_KINDS
from . import cuda, reference, wide

__all__ = reference.__all__


@functools.cache
def fast_twins():
    """The module of the fast twins; the plain ones where Numba is missing or turned off
    (NUMBA_DISABLE_JIT).
    """
    try:
        import numba
    except ImportError:
        return reference
    if numba.config.DISABLE_JIT:
        return reference
    from . import cpu

    return cpu


def is_cupy_array(x) -> bool:
    """True for an array of CuPy itself, which can launch kernels; others may speak its
    interface.
    """
    cupy = sys.modules.get("cupy")  # whoever made the array has imported it
    return cupy is not None and type(x) is cupy.ndarray


def _chosen(name, deciding=lambda args: args[0], kinds="fd"):
    """The kernel of this name: the fast twin computes where `deciding` finds a NumPy array of
    float32 or float64.
    """
    plain = getattr(reference, name)

    @functools.wraps(plain)
    def kernel(*args, **kwargs):
        x = deciding(args)
        if type(x) in HOST_KINDS and x.dtype.char in kinds and x.dtype.isnative:
            return getattr(fast_twins(), name)(*args, **kwargs)
        if is_cupy_array(x) and cuda.computes(name, x):
            return getattr(cuda, name)(*args, **kwargs)
        if wide.is_for(name, x):
            return wide.computed(kernel, name, x.dtype, args, kwargs)
        return plain(*args, **kwargs)

    return kernel


adam = _chosen("adam")
add_layer_norm = _chosen("add_layer_norm")
add_rms_norm = _chosen("add_rms_norm")
bias_gelu = _chosen("bias_gelu")
bias_gelu_backward = _chosen("bias_gelu_backward")
block_squares = _chosen("block_squares")
causal_attention = _chosen("causal_attention")
causal_attention_backward = _chosen("causal_attention_backward")
cross_entropy = _chosen("cross_entropy")
cross_entropy_backward = _chosen(
    "cross_entropy_backward", lambda args: args[1]
)  # args[0] is one number
dropout = _chosen("dropout")
embedding_backward = _chosen("embedding_backward")
from_half = _chosen("from_half", kinds="eE")  # E: bfloat16
gelu = _chosen("gelu")
gelu_backward = _chosen("gelu_backward")
largest_magnitude = _chosen("largest_magnitude")
layer_norm = _chosen("layer_norm")
layer_norm_backward = _chosen("layer_norm_backward")
momentum = _chosen("momentum")
rms_norm = _chosen("rms_norm")
rms_norm_backward = _chosen("rms_norm_backward")
rotary = _chosen("rotary")
sgd = _chosen("sgd")
sigmoid = _chosen("sigmoid")
silu = _chosen("silu")
silu_backward = _chosen("silu_backward")
softmax = _chosen("softmax")
softmax_backward = _chosen("softmax_backward")
swiglu = _chosen("swiglu")
swiglu_backward = _chosen("swiglu_backward")
to_half = _chosen("to_half")
tree_sum = _chosen("tree_sum", lambda args: args[0][0])
rotary_tables = reference.rotary_tables


def dropout_mask(key, start, stop, p, xp=numpy):
    """Elements [start, stop) of the mask of this key, in the memory of xp -> [stop - start] bool,
    True: keep.
    """
    return (fast_twins() if xp is numpy else cuda).dropout_mask(key, start, stop, p, xp)
