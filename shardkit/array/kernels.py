"""The kernels, ready to be called: the inner loops of training.

    y = kernels.gelu(x)

The registry (registry.py) says which implementation computes. A new kernel is a definition in
reference/, faster ones in cpu/ and gpu/kernels where they pay, and a row in the table of the parity
tests; its name here comes from the registry.
"""

from typing import TYPE_CHECKING, Any

import numpy

from .half_kernels import enter_half_kernels
from .reference import (  # noqa: F401  each enters its kernels
    activation,
    attention,
    by_row,
    channel_norm,
    convolution,
    flat,
    half,
    modes,
    normalization,
    pointwise,
    pooling,
    queries,
    recurrent,
    rows,
    rules,
    segments,
    shuffle,
    spectra,
    sums,
    vocabulary,
    waves,
)
from .reference import dropout as _dropout  # noqa: F401  (kernels of the names of their files)
from .reference import erf as _erf  # noqa: F401
from .registry import KERNELS

enter_half_kernels()
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # any kernel


globals().update({name: entry.dispatch for name, entry in KERNELS.items()})
__all__ = list(KERNELS)


def dropout_mask(key, start, stop, p, xp=numpy):
    """Return elements [start, stop) of the mask of this key: [stop - start] bool, True to keep.

    xp   in whose memory they lie
    """
    entry = KERNELS["dropout_mask"]
    if xp is numpy:
        return entry.cpu(key, start, stop, p, xp)
    entry.load("cuda")
    return entry.cuda(key, start, stop, p, xp)
