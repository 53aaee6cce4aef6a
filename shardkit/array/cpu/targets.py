"""Which machine code fits this CPU: a named target, whose code is the same on all of its CPUs.

    x86-64         any; for very old ones
    x86-64-v3      AVX2 and FMA: Haswell, Zen and later
    x86-64-v4      AVX-512: Skylake-SP, Zen 4 and later
    x86-64-v4bf16  and products of bfloat16: Cooper Lake, Sapphire Rapids, Zen 4 and later
    aarch64        NEON: Graviton, Grace, Ampere and others
    host           this kind of CPU alone, with all that it has

A seeded training has the same bits on every CPU of a named target. (Vectors of SVE are as long as
the CPU wants, and so would be the parts that a sum is made of: only host uses them.)
SHARDKIT_KERNELS chooses another than the best named one.
"""

import functools
import hashlib
import platform
from contextlib import suppress
from dataclasses import dataclass

from ...environment import wanted_kernels
from ...errors import ConfigurationError, FileError
from ...files.reading import opened

CPUINFO = "/proc/cpuinfo"
CPUINFO_BYTES = 1 << 14  # the first CPU is in it; a file of hundreds takes long to make


@dataclass(frozen=True)
class Target:
    """CPUs that run the same code.

    cpu, features     what LLVM calls it; "": this one
    vector_bytes      of a register
    has_pairs         products of pairs of bfloat16
    has_half_floats   casts of float16
    flags             what the CPU has to have, as Linux calls it
    """

    name: str
    cpu: str
    features: str
    vector_bytes: int
    has_pairs: bool
    has_half_floats: bool
    flags: frozenset[str]

    @property
    def is_kept(self) -> bool:
        """Whether its code can be kept in files (linking.py)."""
        return platform.machine() in NAMED


_V3 = frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm", "popcnt", "sse4_2"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_PAIRS = _V4 | {"avx512_bf16"}

# of a machine, the best first
NAMED = {
    "x86_64": (
        Target("x86-64-v4bf16", "x86-64-v4", "-prefer-256-bit,+avx512bf16", 64, True, True, _PAIRS),
        Target("x86-64-v4", "x86-64-v4", "-prefer-256-bit", 64, False, True, _V4),
        Target("x86-64-v3", "x86-64-v3", "", 32, False, True, _V3),
        Target("x86-64", "x86-64", "", 16, False, False, frozenset()),
    ),
    "aarch64": (Target("aarch64", "generic", "+neon", 16, False, True, frozenset(("asimd",))),),
}
HOST = "host"


@functools.cache
def target() -> Target:
    """Return the target that this process has code for.

    Errors: ConfigurationError if SHARDKIT_KERNELS is none.
    """
    wanted, named = wanted_kernels(), NAMED.get(platform.machine(), ())
    if wanted == HOST or not named:
        return _host()
    fitting = [one for one in named if one.name == wanted or not wanted and runs_here(one)]
    if not fitting:
        names = ", ".join((*(one.name for one in named), HOST))
        raise ConfigurationError(f"SHARDKIT_KERNELS = {wanted!r}; wanted one of {names}")
    return fitting[0]


def runs_here(one: Target) -> bool:
    """Return whether this CPU runs the code of a target."""
    return one.flags <= _cpu()[0]


def check_that_it_runs_here(one: Target) -> None:
    """Raise ConfigurationError if this CPU lacks what the code of a target needs."""
    missing = sorted(one.flags - _cpu()[0])
    if missing:
        best = next(other.name for other in NAMED[platform.machine()] if runs_here(other))
        raise ConfigurationError(
            f"SHARDKIT_KERNELS = {one.name!r}, but this CPU has no {', '.join(missing)}; "
            f"the best that it runs is {best}"
        )


def _host() -> Target:
    """Return the target that is this kind of CPU."""
    flags, kind = _cpu()
    is_x86 = platform.machine() == "x86_64"
    vector_bytes = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    has_pairs = vector_bytes == 64 and "avx512_bf16" in flags
    return Target(
        f"{HOST}-{platform.machine()}-{kind}",
        "",
        "",
        vector_bytes,
        has_pairs,
        "f16c" in flags if is_x86 else platform.machine() == "aarch64",
        flags,
    )


@functools.cache
def _cpu() -> tuple[frozenset[str], str]:
    """Return the flags of the first CPU, and a digest of what Linux says that it is."""
    first = ""
    with suppress(OSError, FileError), opened(CPUINFO) as file:
        first = file.read(CPUINFO_BYTES).decode(errors="replace").split("\n\n")[0]
    lines = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    lines = {name.strip(): value.strip() for name, value in lines.items()}
    flags = frozenset(lines.get("flags", lines.get("Features", "")).split())
    kind = [value for name, value in lines.items() if name in _KIND]
    return flags, hashlib.sha256(repr((kind, sorted(flags))).encode()).hexdigest()[:10]


_KIND = (
    *("vendor_id", "cpu family", "model", "model name", "stepping"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),
)
