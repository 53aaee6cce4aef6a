"""Kernels of half floats where no twin of their own is: computed in float32, results of the size of
the input rounded.

    bfloat16 --exact--> float32 --kernel--> float32 --nearest--> bfloat16

What is one number per row (means, logarithms of sums, losses) and the gradients of parameters,
which are sums over rows, stay float32: a half float would lose them, and they are added up further
on. A norm after an addition reads the sum as it is stored, since that is what its backward will
read.
"""

from .. import halves, kernels

AFTER_ADDING = {"add_layer_norm": "layer_norm", "add_rms_norm": "rms_norm"}

# which results are rounded; kernels that are not here take half floats themselves, or never see any
ROUNDED = {
    "bias_gelu": (True,),
    "bias_gelu_backward": (True, False),
    "causal_attention": (True, False),
    "causal_attention_backward": (True, True, True),
    "cross_entropy": (False, False),
    "cross_entropy_backward": (True,),
    "dropout": (True,),
    "embedding_backward": (False,),
    "gelu": (True,),
    "gelu_backward": (True,),
    "layer_norm": (True, False, False),
    "layer_norm_backward": (True, False, False),
    "rms_norm": (True, False),
    "rms_norm_backward": (True, False),
    "rotary": (True,),
    "sigmoid": (True,),
    "silu": (True,),
    "silu_backward": (True,),
    "softmax": (True,),
    "softmax_backward": (True,),
    "swiglu": (True,),
    "swiglu_backward": (True, True),
}


def is_for(name, x) -> bool:
    """True if the kernel of this name computes x in float32."""
    return (
        (name in ROUNDED or name in AFTER_ADDING)
        and hasattr(x, "dtype")
        and halves.is_half(x.dtype)
    )


def computed(kernel, name, dtype, args, kwargs):
    """kernel(*args, **kwargs) with half floats among the arguments as float32; its results in
    `dtype`, or float32.
    """
    if name in AFTER_ADDING:
        return _after_adding(AFTER_ADDING[name], dtype, *args, **kwargs)
    rounds, args = (
        ROUNDED[name],
        [halves.widened(value) if hasattr(value, "dtype") else value for value in args],
    )
    if not any(rounds):
        return kernel(*args, **kwargs)
    out = kwargs.pop("out", None)
    outs = out if isinstance(out, tuple) else (out,)
    results = kernel(*args, **kwargs)
    if len(rounds) == 1:
        return halves.rounded(results, dtype, *outs)
    return tuple(
        [
            halves.rounded(result, dtype, into) if is_rounded and result is not None else result
            for result, is_rounded, into in zip(results, rounds, (*outs, *[None] * len(rounds)))
        ]
    )


def _after_adding(norm, dtype, x, branch, *parameters, out=(None, None)):
    total = halves.rounded(halves.widened(x) + halves.widened(branch), dtype, out[0])
    return total, *getattr(kernels, norm)(total, *parameters, out=out[1])
