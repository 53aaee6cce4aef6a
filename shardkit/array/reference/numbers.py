"""Kernels of single numbers: a rule, which a kernel applies to arrays of one shape."""

import functools
import inspect

from ..registry import WITH_BFLOAT16, kernel
from .chunks import elementwise


def pointwise(num_arrays: int = 1, *, has_cuda_twin: bool = True):
    """Enter a rule of single numbers as the kernel of its name, whose result may go into `out`.

    num_arrays   arguments of the rule that are arrays, of one shape; those behind are numbers
    """

    def enter(rule):
        @functools.wraps(rule)
        def definition(*arguments, out=None):
            arrays, numbers = arguments[:num_arrays], arguments[num_arrays:]
            return elementwise(lambda *pieces: rule(*pieces, *numbers), *arrays, out=out)

        definition.__signature__ = _with_out(rule)
        definition.num_arrays = num_arrays
        return kernel(kinds=WITH_BFLOAT16, rounded=(True,), has_cuda_twin=has_cuda_twin)(definition)

    return enter


def _with_out(rule) -> inspect.Signature:
    taken = inspect.signature(rule).parameters.values()
    out = inspect.Parameter("out", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return inspect.Signature([*taken, out])
