"""Kernels on half floats that no implementation takes: computed in float32, the results rounded.

    bfloat16 --exact--> float32 --kernel--> float32 --nearest--> bfloat16

The loops of many kernels read and write bfloat16 themselves, by the same rule (cpu/storage.py).

What is one number per row (means, logarithms of sums, losses) and the gradients of parameters,
which are sums over rows, stay float32: a half float would lose them, and they are added up further
on. A norm after an addition reads the sum as it is stored, since that is what its backward will
read.
"""

from functools import partial

from .fresh import FASTER
from .halves import rounded, widened
from .registry import KERNELS, Kernel


def enter_half_kernels() -> None:
    """Let every kernel in the registry that says how its results are rounded take half floats."""
    for entry in KERNELS.values():
        if entry.rounded is not None:
            entry.half = partial(_in_float32, entry)
        elif entry.after_adding is not None:
            entry.half = partial(_after_adding, KERNELS[entry.after_adding])
    FASTER["add"] = KERNELS["sum_of_two"].dispatch
    for name in ("where_else", "where_of"):
        FASTER[name] = KERNELS[name].dispatch


def _in_float32(entry: Kernel, dtype, args, kwargs):
    """Return the kernel's results for these arguments, in `dtype` where they are rounded."""
    args = [widened(value) if hasattr(value, "dtype") else value for value in args]
    if not any(entry.rounded):
        return entry.dispatch(*args, **kwargs)
    out = kwargs.pop("out", None)
    outs = out if isinstance(out, tuple) else (out,)
    results = entry.dispatch(*args, **kwargs)
    if len(entry.rounded) == 1:
        return rounded(results, dtype, *outs)
    outs = (*outs, *[None] * len(entry.rounded))
    return tuple(
        [
            rounded(result, dtype, into) if is_rounded and result is not None else result
            for result, is_rounded, into in zip(results, entry.rounded, outs)
        ]
    )


def _after_adding(norm: Kernel, dtype, args, kwargs):
    """Return the sum of the first two arguments, rounded to `dtype`, and the norm of that."""
    x, branch, *parameters = args
    out = kwargs.get("out", (None, None))
    total = rounded(widened(x) + widened(branch), dtype, out[0])
    return total, *norm.dispatch(total, *parameters, out=out[1])
