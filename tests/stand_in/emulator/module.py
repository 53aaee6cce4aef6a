"""From the text of CUDA C++ kernels to functions that run on host memory."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextvars import ContextVar
from pathlib import Path

import numpy

HEADER = "cuda_on_host.h"  # read for every kernel
MACHINE, OBJECT = "machine.cpp", "machine.o"  # compiled once for all
SOURCES = [
    Path(__file__).parent / name
    for name in (HEADER, MACHINE, "machine.h", "switch.h", "words.h", "tensor_cores.h")
]
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-w",
    "-fsanitize=alignment,bounds",
    "-fno-sanitize-recover=all",
]
if platform.machine() == "x86_64":
    FLAGS.append("-mtls-dialect=gnu2")  # threadIdx without a call
BOUNDS = r"(?:\s+__launch_bounds__\s*\([^()]*\))?"
KERNEL = re.compile(rf"__global__{BOUNDS}\s+void{BOUNDS}\s+(\w+)\s*\(")
DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\d+\)\s*)?([\w\s:]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
STATIC = re.compile(
    r"__shared__\s+(?:__align__\s*\(\d+\)\s*)?([\w\s:<>]+?)\s+(\w+)\s*((?:\[[^\]]*\]\s*)*);"
)
DEFAULT_SHARED_BYTES, MAX_SHARED_BYTES = 48 << 10, 227 << 10
MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)

_order: ContextVar[int] = ContextVar("emulated_thread_order", default=0)


class EmulationError(RuntimeError):
    """What would not compile, or would hang or be undefined on a GPU."""


@contextlib.contextmanager
def thread_order(order):
    """Inside, blocks and threads run "forward", "backward" or shuffled by a seed (a whole number
    from 2 on).
    """
    token = _order.set({"forward": 0, "backward": 1}.get(order, order))
    try:
        yield
    finally:
        _order.reset(token)


@functools.cache
def compiler():
    """(path of g++, its version), or None where there is none."""
    path = shutil.which("g++")
    return path and (
        path,
        subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout,
    )


class EmulatedModule:
    """The kernels of a source. options: of NVRTC; -D and -U are used, the rest is for real GPUs.

    Errors: EmulationError if there is no g++ or it refuses the source, with what it says.
    """

    def __init__(self, source: str, options: tuple[str, ...] = ()):
        if compiler() is None:
            raise EmulationError("the emulator of CUDA kernels needs g++, which was not found")
        plain = _preprocessed(
            source, tuple([option for option in options if option[:2] in ("-D", "-U")])
        )
        self.names = KERNEL.findall(plain)
        self._library = ctypes.CDLL(str(compiled_cpp(_as_cpp(plain, self.names))))

    def function(self, name: str) -> "EmulatedFunction":
        """The kernel of this name; EmulationError if there is none."""
        if name not in self.names:
            raise EmulationError(
                f"no kernel {name!r} in this module; it has {', '.join(self.names) or 'none'}"
            )
        return EmulatedFunction(name, getattr(self._library, f"launch_{name}"))


class EmulatedFunction:
    """A kernel: call it with (grid, block, args, shared_mem). It is done when the call returns.

    args  Python ints are addresses (or other 64-bit numbers), Python floats are doubles, NumPy
          scalars have their own type
    memory  arrays that it may touch, which stay at least as long as it runs
    max_dynamic_shared_size_bytes  as in CuPy: has to be set before more than 48 KB of shared memory
                                   may be asked for
    """

    def __init__(self, name, launch):
        self.name, self._launch, self.max_dynamic_shared_size_bytes = (
            name,
            launch,
            DEFAULT_SHARED_BYTES,
        )
        launch.restype = None

    def __call__(self, grid: tuple, block: tuple, args: tuple, shared_mem: int = 0, memory=()):
        sizes = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        self._check(*sizes, shared_mem)
        values = [
            numpy.asarray(value, numpy.uint64 if isinstance(value, int) and value >= 0 else None)
            for value in args
        ]
        pointers = (ctypes.c_void_p * len(values))(*[value.ctypes.data for value in values])
        num_bytes = (ctypes.c_uint * len(values))(*[value.nbytes for value in values])
        limit = max(DEFAULT_SHARED_BYTES, self.max_dynamic_shared_size_bytes)
        error = ctypes.create_string_buffer(512)
        self._launch(
            pointers,
            num_bytes,
            ctypes.c_uint(len(values)),
            (ctypes.c_uint * 6)(*sizes[0], *sizes[1]),
            ctypes.c_uint(shared_mem),
            ctypes.c_uint(limit),
            ctypes.c_int(_order.get()),
            error,
        )
        if error.value:
            raise EmulationError(
                f"kernel {self.name}, grid {sizes[0]}, block {sizes[1]}: {error.value.decode()}"
            )

    def _check(self, grid, block, shared_mem):
        """Raise EmulationError where a launch on a GPU would fail."""
        if (
            not all(1 <= n <= most for n, most in zip((*grid, *block), MAX_GRID + MAX_BLOCK))
            or numpy.prod(block) > MAX_THREADS
        ):
            raise EmulationError(
                f"kernel {self.name}: grid {grid}, block {block}; wanted a grid of 1 to "
                f"{MAX_GRID} and a block "
                f"of 1 to {MAX_BLOCK} with at most {MAX_THREADS} threads"
            )
        allowed = max(DEFAULT_SHARED_BYTES, self.max_dynamic_shared_size_bytes)
        if not 0 <= shared_mem <= min(allowed, MAX_SHARED_BYTES):
            raise EmulationError(
                f"kernel {self.name}: {shared_mem} bytes of dynamic shared memory; wanted at "
                f"most {allowed} "
                f"(max_dynamic_shared_size_bytes) and {MAX_SHARED_BYTES}"
            )


def _run(command, text=""):
    """The output of a compiler that reads this text; EmulationError with its message if it
    refuses.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise EmulationError(f"g++ refuses this source:\n{done.stderr[:4000]}")
    return done.stdout


@functools.lru_cache(maxsize=256)
def _preprocessed(source, options):
    """The source with macros expanded, the words of CUDA left as they are; line numbers are those
    of the source.
    """
    return _run([compiler()[0], "-E", "-x", "c++", "-std=c++17", *options, "-"], source)


def _as_cpp(plain, names):
    """C++ with a launcher for each kernel, named launch_ and its name."""
    plain = DYNAMIC.sub(r"\1* \2 = (\1*)emulator::dynamic_shared();", plain)
    plain = STATIC.sub(
        r"struct shared_\2 { \1 of \3; }; auto& \2 = emulator::shared_array<shared_\2>().of;", plain
    )
    launchers = [
        f"""
extern "C" __attribute__((visibility("default")))
void launch_{name}(void** values, const unsigned* bytes, unsigned count,
    const unsigned* sizes, unsigned shared, unsigned limit, int order, char* error) {{
    emulator::launch(::{name}, values, bytes, count, sizes, shared, limit, order, error);
}}"""
        for name in names
    ]
    return f'#include "{HEADER}"\n{plain}\n' + "".join(launchers)


def compiled_cpp(cpp, *flags, header=None) -> Path:
    """A shared library of this C++, made now or by an earlier process; processes that make it
    together do no harm.

    header  the file that the C++ includes first, which g++ has read beforehand with these flags
    """
    machine = _machine()
    folder = machine if header is None else _with_header(header, flags)
    library = folder / (_digest(cpp, *flags) + ".so")
    if not library.exists():
        unfinished = library.with_suffix(f".{os.getpid()}")
        places = ["-I", str(folder), "-I", str(machine)]
        command = [compiler()[0], *FLAGS, *flags, "-shared", *places, "-x", "c++", "-"]
        _run([*command, "-x", "none", str(machine / OBJECT), "-o", str(unfinished)], cpp)
        os.replace(unfinished, library)
    return library


@functools.cache
def _machine() -> Path:
    """The folder of what all libraries share, and of them: the machine, compiled, and the headers,
    which g++ has read beforehand.
    """
    above = Path(tempfile.gettempdir()) / f"emulated-cuda-{os.getuid()}"
    above.mkdir(mode=0o700, exist_ok=True)
    parts = [*FLAGS, *compiler(), *[source.read_text() for source in SOURCES]]
    return _made_once(above / _digest(*parts), _make_machine)


@functools.cache
def _with_header(header, flags) -> Path:
    """The folder of a header that g++ has read, and of the libraries that include it."""
    machine = _machine()

    def make(folder):
        shutil.copy(header, folder)
        command = [compiler()[0], *FLAGS, *flags, "-I", str(machine)]
        _run([*command, "-x", "c++-header", str(folder / header.name)])

    return _made_once(machine / _digest(header.read_text(), *flags), make)


def _made_once(folder, make) -> Path:
    """The folder, filled by make(folder), now or by an earlier process."""
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as new:
            make(Path(new))
            with contextlib.suppress(OSError):  # another process was first
                os.rename(new, folder)
    return folder


def _make_machine(folder):
    for source in SOURCES:
        shutil.copy(source, folder)
    command = [compiler()[0], *FLAGS]
    _run([*command, "-x", "c++-header", str(folder / HEADER)])
    _run([*command, "-c", str(folder / MACHINE), "-o", str(folder / OBJECT)])


def _digest(*parts) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
