"""NVRTC by ctypes, which compiles for GPUs without one; with the options that CuPy adds.

resources = compiled(text, options, arch)      -> {kernel: Resources}, read from what ptxas says
text = ptx(text, options, arch)                   what a driver compiles for its GPU
"""

import ctypes
import functools
import importlib.util
import re
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# CuPy compiles every RawModule so: denormal float32 numbers are zero in all arithmetic.
OPTIONS_OF_CUPY = ("-ftz=true",)


class Resources(NamedTuple):
    """What a thread of a kernel takes: registers, and bytes of its stack and of spilled values."""

    registers: int
    stack_bytes: int
    spilled_bytes: int


@functools.cache
def library():
    """Return the library, of a wheel or of the system; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations)
    found = [path for folder in folders for path in Path(folder).rglob("libnvrtc.so.*")]
    for path in found:  # which looks for this one by name, and not beside itself
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
    for name in (*map(str, found), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def version() -> tuple[int, int]:
    """Return that of the library, (0, 0) where there is none."""
    parts = ctypes.c_int(), ctypes.c_int()
    if library() is not None:
        _check(library().nvrtcVersion(*map(ctypes.byref, parts)))
    return parts[0].value, parts[1].value


def compiled(text: str, options: tuple[str, ...], arch: str) -> dict[str, Resources]:
    """Compile to machine code. Errors: RuntimeError with what NVRTC says."""
    flags = [*options, *OPTIONS_OF_CUPY, f"-arch=sm_{arch}", "--ptxas-options=-v"]
    with _program(text, flags) as (_, log):
        return resources_in(log)


def ptx(text: str, options: tuple[str, ...], arch: str) -> str:
    """Return the PTX that CuPy hands to a driver. Errors: RuntimeError with what NVRTC says."""
    with _program(text, [*options, *OPTIONS_OF_CUPY, f"-arch=compute_{arch}"]) as (program, _):
        return _text(program, "PTX")


@contextmanager
def _program(text, flags):
    """Yield what NVRTC compiles of this text, and what it says."""
    program = ctypes.c_void_p()
    encoded = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    nvrtc = library()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(flags), encoded)
        log = _text(program, "ProgramLog")
        if status or "warning" in log:
            raise RuntimeError(log)
        yield program, log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def resources_in(log: str) -> dict[str, Resources]:
    """Return {kernel: Resources} of the report of ptxas -v, for one architecture."""
    found = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        numbers = [
            int(re.search(pattern, part)[1])
            for pattern in (
                r"Used (\d+) registers",
                r"(\d+) bytes stack frame",
                r"(\d+) bytes spill stores",
            )
        ]
        found[part.partition("'")[0]] = Resources(*numbers)
    return found


def _text(program, what):
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{what}")(program, text))
    return text.value.decode()


def _check(status):
    if status:
        raise RuntimeError(f"NVRTC returns {status}")
