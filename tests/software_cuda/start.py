"""Run at the start of each Python of an environment that real_cupy.py has made: load the software
CUDA before anything looks for another, and tell CuPy to hand over PTX.

Kernels that were translated are kept, by the text of their PTX and of all that translates it.
"""

import ctypes
import hashlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = ("libcuda.so.1", "libcublas.so.13", "libcublasLt.so.13")
TRANSLATORS = (
    *[f"software_cuda/{name}" for name in ("program.py", "instructions.py", "translation.py")],
    *("software_cuda/*.h", "stand_in/emulator/*"),
)


def load(folder: Path) -> None:
    """Load the libraries in this folder."""
    kernels = folder / f"kernels-{_digest()}"
    kernels.mkdir(exist_ok=True)
    defaults = {
        "CUPY_COMPILE_WITH_PTX": "1",
        "CUPY_ACCELERATORS": "",  # CUB's kernels are machine code
        "CUPY_CACHE_DIR": str(folder / "cupy"),
        "SOFTWARE_CUDA_KERNELS": str(kernels),
        "SOFTWARE_CUDA_PYTHON": sys.executable,
        "SOFTWARE_CUDA_TRANSLATOR": str(HERE / "translate.py"),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    for name in LIBRARIES:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)


def _digest() -> str:
    files = sorted(
        path for each in TRANSLATORS for path in HERE.parent.glob(each) if path.is_file()
    )
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
