"""CUDA C++ kernels on the CPU: compiled by g++ against cuda_on_host.h, which runs every thread of a
block as a fiber.

    module = EmulatedModule('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }')
    module.function("twice")((1, 1, 1), (32, 1, 1), (array.ctypes.data,))

    with thread_order("backward"):      # or a number, the seed of a shuffle: what depends on the
                                        order is a race
        ...

It needs g++. Compiled code is kept in the temporary directory, named by a hash of all that went
into it.
"""

from .module import EmulatedModule, EmulationError, compiler, thread_order

__all__ = ["EmulatedModule", "EmulationError", "compiler", "thread_order"]
