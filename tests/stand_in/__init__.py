"""Stand-ins for what a machine without a GPU lacks: `cupy`, and `emulator`, which runs CUDA C++ on
the CPU.

    with pretended_gpu() as machine:            `import cupy` finds the stand-in until the end of
                                                the block
        device = Device("cuda")
        ...
        machine.transfers                       copies between host and GPU
    a program that a real GPU might answer with wrong numbers is a RuntimeError, at the latest at
    the end of the block

For processes of their own (ranks of MPI): put this folder on PYTHONPATH before anything that holds
CuPy.
"""

import gc
import sys
from contextlib import contextmanager

NAMES = (
    "cupy",
    "cupy.cuda",
    "cupy.cuda.runtime",
    "cupy.cuda.memory",
    "cupy.cuda.pinned_memory",
    "cupy.cuda.stream",
)


@contextmanager
def pretended_gpu(*, num_devices: int = 1, capacity_bytes: int = 1 << 30):
    """`import cupy` finds the stand-in, with this many GPUs of this size; yields its machine, whose
    book is empty.
    """
    from . import cupy

    before = {
        name: sys.modules.get(name)
        for name in list(sys.modules)
        if name.partition(".")[0] == "cupy"
    }
    _put({name: sys.modules[f"{__name__}.{name}"] for name in NAMES})
    machine = cupy._machine
    machine.open_book(num_devices, capacity_bytes)
    try:
        yield machine
        gc.collect()
        assert not machine.mistakes, "\n".join(machine.mistakes)
    finally:
        _put(before)


def _put(modules):
    """Make these all that sys.modules knows of CuPy."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        del sys.modules[name]
    sys.modules.update(modules)
