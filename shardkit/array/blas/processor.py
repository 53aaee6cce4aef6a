"""What the CPU computes with."""

import functools
import re
from pathlib import Path


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return True if the CPU multiplies bfloat16 faster than float32.

    Those with matrix units (AMX) do, about four times as fast. Vectors of AVX512_BF16 hold twice as
    many numbers: on AMD's CPUs they are as quick as those of float32. Intel's cores have fewer
    units for them; on a Xeon with both, products in such vectors had 105 GFLOP/s, of float32 175.
    """
    wanted = r"\b(amx_bf16|avx512_bf16)\b" if is_of_amd() else r"\bamx_bf16\b"
    return re.search(wanted, _facts()) is not None


def is_of_amd() -> bool:
    """Return True if AMD made the CPU."""
    return "AuthenticAMD" in _facts()


@functools.cache
def _facts() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
