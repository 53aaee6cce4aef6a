"""Compile a .cu file of this folder with NVRTC, at first use and for one dtype, and launch it.

Every file is compiled with STORED, the type of the arrays in memory, after the text of common.cuh.
No headers are needed, and x y + z is never contracted, so that rounding is what the source says.
"""

import functools
import sys
from pathlib import Path

import numpy

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
    parts = [f'#line 1 "{name}"\n{(FOLDER / name).read_text("utf-8")}' for name in names]
    return "\n".join(parts)


def options(dtype_name: str, **macros) -> tuple[str, ...]:
    """Return NVRTC's options for arrays of this dtype, with more macros."""
    return (
        *OPTIONS,
        f"-DSTORED={STORED[dtype_name]}",
        *[f"-D{name}={value}" for name, value in macros.items()],
    )


@functools.lru_cache(maxsize=4096)
def _function(file, name, dtype, ordinal, shared_bytes, macros):
    """Return the kernel on a device, which its code is loaded into.

    One look into this table is all that a launch does beside calling the function.
    """
    flags = options(dtype.name, **dict(macros))
    function = sys.modules["cupy"].RawModule(code=source(file), options=flags).get_function(name)
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
    """Run a kernel on the device of the CuPy array x, in its dtype or another.

    Nothing happens if the grid has no blocks.
    args  arrays; None: a null pointer; ints: long long; floats: double; scalars of NumPy as they
          are
    """
    if 0 in grid:
        return
    defined = tuple(macros.items()) if macros else ()
    dtype = x.dtype if dtype is None else numpy.dtype(dtype)
    function = _function(file, name, dtype, x.data.device_id, shared_bytes, defined)
    arguments = tuple([NULL if value is None else value for value in args])
    function(grid, block, arguments, shared_mem=shared_bytes)
