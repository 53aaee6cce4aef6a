"""Kernels in CUDA C++, run on the CPU by the emulator beside this package."""

import threading

import numpy

from ._array import check_use, ndarray, root, written
from ._machine import machine

_one_at_a_time = threading.Lock()


class RawModule:
    """The kernels of a source text."""

    def __init__(
        self,
        code=None,
        *,
        path=None,
        options=(),
        backend="nvrtc",
        translate_cucomplex=False,
        enable_cooperative_groups=False,
        name_expressions=None,
        jitify=None,
    ):
        if code is None or not isinstance(options, tuple):
            raise TypeError("wanted code, a string, and options, a tuple")
        self.code, self.options, self.backend = code, options, backend
        self._emulated = None

    def compile(self, log_stream=None):
        with _one_at_a_time:  # ranks are threads
            if self._emulated is None:
                from stand_in.emulator import EmulatedModule

                self._emulated = EmulatedModule(self.code, self.options)

    def get_function(self, name):
        self.compile()
        return Function(self._emulated.function(name), name)


class RawKernel:
    """One kernel of a source text."""

    def __init__(
        self,
        code,
        name,
        options=(),
        backend="nvrtc",
        translate_cucomplex=False,
        *,
        enable_cooperative_groups=False,
        jitify=None,
    ):
        self._module, self.name = RawModule(code, options=options, backend=backend), name
        self.code, self.options = code, options

    def compile(self, log_stream=None):
        self._module.compile()

    def __call__(self, grid, block, args, **kwargs):
        self._module.get_function(self.name)(grid, block, args, **kwargs)


class Function:
    """What get_function gives: callable as a RawKernel is."""

    def __init__(self, run, name):
        self._run, self.name = run, name
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(self, grid, block, args, *, shared_mem=0):
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise RuntimeError(
                "CUDA_ERROR_INVALID_VALUE: more shared memory than max_dynamic_shared_size_bytes "
                "allows"
            )
        self._run.max_dynamic_shared_size_bytes = self.max_dynamic_shared_size_bytes
        machine.begin()
        machine.launched(self.name)
        arrays = [arg for arg in args if isinstance(arg, ndarray)]
        for array in arrays:
            check_use(array, writes=True)
        memory = [root(array._host) for array in arrays]
        arguments = tuple(map(_argument, args))
        machine.perform(lambda: self._run(tuple(grid), tuple(block), arguments, shared_mem, memory))
        for array in arrays:
            written(array)


def _argument(value):
    """As CuPy passes it: the address of an array, a Python number in 64 bits, a number of NumPy in
    its own size.
    """
    if isinstance(value, ndarray):
        return value._address
    if isinstance(value, numpy.generic):
        return value
    if type(value) in (bool, int, float):
        return {bool: numpy.bool_, int: numpy.int64, float: numpy.float64}[type(value)](value)
    raise TypeError(f"Unsupported type {type(value)}")
