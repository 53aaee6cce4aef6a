"""The registry of kernels: one name and one signature for all implementations.

    reference/rules.py    @kernel()                       the definition of right, in plain NumPy
                          def sgd(parameters, ...): ...
    cpu/rules.py          @on_cpu                         loops for NumPy arrays
                          def sgd(parameters, ...): ...
    gpu/kernels/rules.py  @on_cuda(dtypes=NUMBERS)        CUDA C++ for CuPy arrays
                          def sgd(parameters, ...): ...

A kernel's implementations are in files of the same name in three folders; those in cpu/ and in
gpu/kernels are imported by the first call that needs them, and so is Numba. The definition computes
for NumPy arrays too where Numba is missing or turned off (NUMBA_DISABLE_JIT), and for any where an
implementation returns NotImplemented, as operators of Python do. Which one computes depends on the
kind, dtype and strides of the arrays alone, so ranks never differ in it.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from operator import itemgetter

import numpy

from ..environment import is_compiling_wanted
from ..on_gpu import gpu_part
from .dtypes import BFLOAT16, is_half

NUMBERS = ("float32", "float64")
ACTIVATIONS = (*NUMBERS, "float16", "bfloat16")
CHARACTERS = {"float32": "f", "float64": "d", "float16": "e", "bfloat16": BFLOAT16}
WITH_BFLOAT16 = "fd" + BFLOAT16  # characters of dtypes; see kernel()

KERNELS: dict[str, "Kernel"] = {}  # the one list of kernels; dispatchers: kernels.py


class Kernel:
    """One kernel and its implementations, which have one signature.

    reference   the definition, for NumPy and CuPy arrays of any dtype
    cpu, cuda   what computes for NumPy arrays of the dtypes `kinds`, and for the CuPy arrays that
                `computes_on_cuda` accepts
    half        (dtype, args, kwargs) -> result, for half floats that neither computes; or None
    dispatch    what callers call; it looks at the first argument, or at what `deciding` finds
    """

    def __init__(self, reference, deciding, kinds: str, rounded, after_adding, has_cuda_twin):
        self.name = reference.__name__
        self.reference = reference
        self._deciding = deciding
        self.rounded = rounded
        self.after_adding = after_adding
        self.cpu = self._first_on_cpu
        self.cuda = None if has_cuda_twin else reference
        self.half: Callable | None = None
        self.implementations = {"cpu": reference, "cuda": reference}  # as far as they are imported
        self.cuda_kinds = ""  # their characters
        self.fits: Callable | None = None
        self.dispatch = _dispatcher(self, deciding, kinds)

    def computes_on_cuda(self, x) -> bool:
        """Return True if the CUDA kernel computes CuPy arrays like this one."""
        if self.cuda is None:
            self.load("cuda")
        return x.dtype.char in self.cuda_kinds and (self.fits is None or self.fits(x))

    def _first_on_cpu(self, *args, **kwargs):
        """Load the implementation, which replaces this method, and call it."""
        self.load("cpu")
        return self.cpu(*args, **kwargs)

    def load(self, folder: str) -> None:
        """Import the file whose decorators enter an implementation of this kernel, if not done."""
        if getattr(self, folder) not in (None, self._first_on_cpu):
            return
        file = self.reference.__module__.rpartition(".")[2]
        if folder == "cuda":
            gpu_part(f"kernels.{file}")
        elif is_numba_enabled():
            import_module(f"{__package__}.cpu.{file}")
        setattr(self, folder, self.implementations[folder])
        if self.cpu is self.reference and self.half is not None:  # there is no Numba
            self.cpu = self._definition

    def _definition(self, *args, **kwargs):
        """Compute by the definition, half floats in float32."""
        dtype = self._deciding(args).dtype
        return self.half(dtype, args, kwargs) if is_half(dtype) else self.reference(*args, **kwargs)


def _dispatcher(entry: Kernel, deciding, kinds):
    """Return the function that callers of the kernel call."""

    @functools.wraps(entry.reference)
    def kernel(*args, **kwargs):
        x = deciding(args)
        if type(x) is numpy.ndarray and x.dtype.char in kinds and x.dtype.isnative:
            result = entry.cpu(*args, **kwargs)
        elif is_cupy_array(x) and entry.computes_on_cuda(x):
            result = entry.cuda(*args, **kwargs)
        elif entry.half is not None and hasattr(x, "dtype") and is_half(x.dtype):
            return entry.half(x.dtype, args, kwargs)
        else:
            result = NotImplemented
        return entry.reference(*args, **kwargs) if result is NotImplemented else result

    return kernel


def kernel(
    *, deciding=itemgetter(0), kinds="fd", rounded=None, after_adding=None, has_cuda_twin=True
):
    """Enter a definition into the registry; the function itself stays as it is.

    deciding      arguments -> the array whose kind and dtype decide which implementation computes
    kinds         dtypes that the loops compute: f float32, d float64, e float16, E bfloat16,
                  I uint32, B uint8. Without Numba `half` computes those of half floats
    rounded       which results are rounded to half floats where the arguments are half floats that
                  are computed in float32; None: this kernel takes half floats itself, or none
    after_adding  the kernel that follows the addition of the first two arguments, where the sum is
                  rounded in between
    has_cuda_twin False: the definition computes CuPy arrays too, or the kernel never gets any
    """

    def enter(reference):
        entry = KERNELS[reference.__name__] = Kernel(
            reference, deciding, kinds, rounded, after_adding, has_cuda_twin
        )
        reference.dispatch = entry.dispatch
        return reference

    return enter


def on_cpu(loop):
    """Enter the implementation for NumPy arrays of the kernel of this name."""
    KERNELS[loop.__name__].implementations["cpu"] = loop
    return loop


def on_cuda(*, dtypes=ACTIVATIONS, fits=None):
    """Enter the implementation for CuPy arrays of the kernel of this name.

    dtypes  that the deciding array may have
    fits    array -> False if it is too large for the kernel; None: none is
    """

    def enter(launcher):
        entry = KERNELS[launcher.__name__]
        entry.implementations["cuda"] = launcher
        entry.cuda_kinds = "".join([CHARACTERS[name] for name in dtypes])
        entry.fits = fits
        return launcher

    return enter


@contextmanager
def wrapped_kernels(wrap):
    """Inside, wrap(implementation, name) computes wherever an implementation did, in all threads.

    The seam for stopwatches: the dispatcher finds implementations in the registry, so a call pays
    nothing for it otherwise. See also products.wrapped_products.
    """
    before = []
    for entry in KERNELS.values():
        entry.load("cpu")
        entry.load("cuda")
        for slot in ("reference", "cpu", "cuda"):
            implementation = getattr(entry, slot)
            before.append((entry, slot, implementation))
            setattr(entry, slot, wrap(implementation, entry.name))
    try:
        yield
    finally:
        for entry, slot, implementation in before:
            setattr(entry, slot, implementation)


@functools.cache
def is_numba_enabled() -> bool:
    """Return True if loops can be compiled: Numba is there, and not turned off."""
    try:
        return is_compiling_wanted() and importlib.util.find_spec("numba") is not None
    except ValueError:  # something stands in its place
        return False


def is_cupy_array(x) -> bool:
    """Return True for an array of CuPy itself, not for others with its interface."""
    cupy = sys.modules.get("cupy")  # imported by the maker of any such array
    return cupy is not None and type(x) is cupy.ndarray
