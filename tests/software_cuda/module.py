"""From CUDA C++ through the PTX of NVRTC to functions that run on host memory."""

import contextlib
import ctypes
import functools
from unittest import mock

import nvrtc
import stand_in.emulator
from stand_in.emulator import EmulatedModule, EmulationError
from stand_in.emulator.module import EmulatedFunction

from shardkit.testing.gpu import cuda_launch

from .instructions import Unknown
from .translation import translated


class PtxModule(EmulatedModule):
    """The kernels of a source, for GPUs of this architecture ("90" for sm_90).

    Errors: EmulationError where there is no g++, on what NVRTC refuses, and on instructions that
    are not known here.
    """

    def __init__(self, source: str, options: tuple[str, ...] = (), arch: str = "90"):
        try:
            library, self.names = translated(nvrtc.ptx(source, options, arch))
        except (RuntimeError, Unknown) as error:
            raise EmulationError(f"PTX of sm_{arch}: {error}") from None
        self._library = ctypes.CDLL(str(library))

    def function(self, name):
        """The kernel of this name; EmulationError if there is none."""
        super().function(name)
        return PtxFunction(name, getattr(self._library, f"launch_{name}"), self._library)


class PtxFunction(EmulatedFunction):
    """A kernel, which may touch the arrays that it is given and no others."""

    def __init__(self, name, launch, library):
        super().__init__(name, launch)
        self._library = library

    def __call__(self, grid, block, args, shared_mem=0, memory=()):
        """Run it; an access outside of `memory` is an error, if there is any."""
        places = [(array.ctypes.data, array.nbytes) for array in memory]
        ends = [end for address, num_bytes in places for end in (address, address + num_bytes)]
        arrays = (ctypes.c_uint64 * len(ends))(*ends)
        self._library.arrays_of_the_next_launch(arrays, len(memory))
        super().__call__(grid, block, args, shared_mem)


@contextlib.contextmanager
def running_ptx(arch: str):
    """Inside, the kernels of the stand-in for CuPy are PTX of this architecture."""
    cuda_launch._function.cache_clear()
    with mock.patch.object(
        stand_in.emulator, "EmulatedModule", functools.partial(PtxModule, arch=arch)
    ):
        try:
            yield
        finally:
            cuda_launch._function.cache_clear()
