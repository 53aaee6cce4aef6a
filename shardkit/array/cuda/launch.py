"""Compile a .cu file of this folder with NVRTC, at first use and for one dtype, and launch it.

Every file is compiled with STORED, the type of the arrays in memory, after the text of common.cuh.
No headers are needed, and x y + z is never contracted, so that rounding is what the source says.
"""

import functools
from pathlib import Path

import numpy

from ..backend import xp_of

STORED = {
    "float32": "float",
    "float64": "double",
    "float16": "half_number",
    "bfloat16": "bfloat_number",
}
OPTIONS = ("--std=c++17", "--fmad=false")
TENSOR_CORES = ("attention.cuh", "tensor_cores.cuh", "tensor_tiles.cuh")
BEFORE = {  # texts that files need between common.cuh and their own
    "attention.cu": ("attention.cuh",),
    "attention_along.cu": ("attention.cuh",),
    "tensor_attention.cu": TENSOR_CORES,
    "tensor_attention_for_queries.cu": TENSOR_CORES,
    "tensor_attention_for_keys.cu": TENSOR_CORES,
}
FOLDER = Path(__file__).parent
MAX_BLOCKS = 2**31 - 1
PLAIN_SHARED_BYTES = 48 << 10  # more has to be asked for
NULL = numpy.uint64(0)


@functools.cache
def source(file: str) -> str:
    """Return the text that is compiled for a file of this folder."""
    names = ("common.cuh", *BEFORE.get(file, ()), file)
    parts = [f'#line 1 "{name}"\n{(FOLDER / name).read_text()}' for name in names]
    return "\n".join(parts)


def options(dtype_name: str, **macros) -> tuple[str, ...]:
    """Return NVRTC's options for arrays of this dtype, with more macros."""
    return (
        *OPTIONS,
        f"-DSTORED={STORED[dtype_name]}",
        *[f"-D{name}={value}" for name, value in macros.items()],
    )


@functools.cache
def _function(xp, ordinal, file, name, flags, shared_bytes):
    """Return the kernel on a device.

    xp and ordinal are part of the key, since code is loaded into one device.
    """
    function = xp.RawModule(code=source(file), options=flags).get_function(name)
    if shared_bytes > PLAIN_SHARED_BYTES:
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function


def launch(
    x,
    file: str,
    name: str,
    grid: tuple,
    block: tuple,
    *args,
    dtype=None,
    shared_bytes: int = 0,
    **macros,
) -> None:
    """Run a kernel on the device of the array x, in its dtype or another.

    Nothing happens if the grid has no blocks.
    args  arrays; None: a null pointer; ints: long long; floats: double; scalars of NumPy as they
          are
    """
    if 0 in grid:
        return
    flags = options((x.dtype if dtype is None else numpy.dtype(dtype)).name, **macros)
    function = _function(xp_of(x), x.device.id, file, name, flags, shared_bytes)
    function(grid, block, tuple([_argument(value) for value in args]), shared_mem=shared_bytes)


def _argument(value):
    if value is None:
        return NULL
    if isinstance(value, (bool, int)):
        return numpy.int64(value)
    return numpy.float64(value) if type(value) is float else value
