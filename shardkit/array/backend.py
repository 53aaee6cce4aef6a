"""Which library computes on an array, NumPy or CuPy.

Code outside this room never names one of the two to compute: it asks `xp_of(array)`.
"""

import sys
from typing import Any

import numpy

from ..errors import DeviceError, ShapeError
from .waits import fetched

_NUMBERS = (int, float)
_OF_HOST = (numpy.ndarray, numpy.generic, *_NUMBERS)


def is_device_array(array) -> bool:
    """Return True for an array in GPU memory, one with `__cuda_array_interface__`."""
    if isinstance(array, _OF_HOST):
        return False
    # Of the class first: for an array itself, CuPy would put the interface together. Tensors of
    # PyTorch on the host have it in their class alone.
    is_known = hasattr(type(array), "__cuda_array_interface__")
    is_of_torch = type(array).__module__.startswith("torch")
    return is_known and not is_of_torch or hasattr(array, "__cuda_array_interface__")


def is_array(value) -> bool:
    """Return True for an array of NumPy or CuPy; False for lists, Tensors, and trees of arrays."""
    return isinstance(value, numpy.ndarray) or is_device_array(value)


def xp_of(*arrays):
    """Return the module, numpy or cupy, that computes on these arrays.

    Errors: DeviceError if NumPy and CuPy arrays are mixed; Python scalars go with either.
    """
    for array in arrays:
        if type(array) is not numpy.ndarray:
            break
    else:
        return numpy  # fast, since every operation asks
    cupy = sys.modules.get("cupy")  # imported by the maker of any array of it
    if cupy is not None and _are_of(cupy, arrays):
        return cupy
    on_device = [
        is_device_array(a)
        for a in arrays
        if is_device_array(a) or hasattr(a, "shape") and getattr(a, "ndim", 1) > 0
    ]
    if not any(on_device):
        return numpy
    if not all(on_device):
        raise DeviceError(
            "arrays of two devices in one operation: some are NumPy, some are on the GPU; move "
            "them first with Device.from_host or to_host"
        )
    return cupy


def _are_of(cupy, arrays) -> bool:
    """Return True for arrays of CuPy and Python numbers with them, without a look into arrays."""
    of_cupy, found = cupy.ndarray, False
    for array in arrays:
        if type(array) is of_cupy:
            found = True
        elif type(array) not in _NUMBERS:
            return False
    return found


def to_host(array):
    """Return the array as a NumPy array: itself if it is one, else a copy from the GPU."""
    return fetched(array) if is_device_array(array) else numpy.asarray(array)


def is_true(value) -> bool:
    """Return the truth of one element, of an array of either kind; a GPU is waited for."""
    return bool(to_host(value))


def host_array(what: str, array):
    """Return what a caller passed, as a NumPy array.

    Errors: DeviceError if it is on a GPU, ShapeError if values of it are masked.
    """
    if is_device_array(array):
        raise DeviceError(
            f"{what} is on the GPU; wanted an array of the host: each rank moves its own part to "
            "its own GPU, so pass what .get() returns, or .cpu() of PyTorch"
        )
    return plain_array(array, what)


def plain_array(values: Any, what: str = "values") -> numpy.ndarray:
    """Return an array of NumPy's own class. Errors: ShapeError if any of it is masked."""
    if isinstance(values, numpy.ma.MaskedArray) and numpy.ma.is_masked(values):
        raise ShapeError(
            f"{what}: {values.mask.sum()} of {values.size} numbers are masked, and the mask would "
            "be lost; fill them, x.filled(0.0), and give the mask as an array of its own"
        )
    return numpy.asarray(values)


def numbers_of(scalars) -> list[float]:
    """Return these arrays of one element as Python numbers, fetched from a GPU in one transfer."""
    scalars = list(scalars)
    if not any(map(is_device_array, scalars)):
        return list(map(float, scalars))
    return to_host(xp_of(*scalars).stack(scalars)).tolist()
