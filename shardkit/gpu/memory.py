"""Arrays in GPU memory, and page-locked ones of the host, which a GPU reads by itself."""

from math import prod

import numpy

from ..array.accounts import bytes_text
from ..errors import DeviceMemoryError

POOLED_BYTES = 1 << 20  # of page-locked memory; CuPy's pool keeps what it gave, in powers of two


def empty(device, shape, dtype, purpose: str):
    """Return an uninitialized array from CuPy's pool.

    Errors: DeviceMemoryError that names what takes the most there.
    """
    try:
        return device.xp.empty(shape, dtype)
    except MemoryError:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        asked = bytes_text(numpy.dtype(dtype).itemsize * prod(shape))
        raise DeviceMemoryError(
            f"{device!r} has no room for {asked} of {purpose}", device.memory_text()
        ) from None


def page_locked_array(device, shape, dtype, purpose: str) -> numpy.ndarray:
    """Return a host array that the system keeps in its place.

    Errors: DeviceMemoryError if the system does not lock so much.
    """
    dtype = numpy.dtype(dtype)
    num_bytes = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    cuda = device.xp.cuda
    try:
        memory = page_locked(cuda, num_bytes)
    except (MemoryError, cuda.runtime.CUDARuntimeError) as error:
        raise DeviceMemoryError(
            f"the system locks no {bytes_text(num_bytes)} of host memory for {purpose} ({error})",
            "ask for less, or raise the limit of locked memory (ulimit -l)",
        ) from None
    return numpy.ndarray(shape, dtype, buffer=memory)


def page_locked(cuda, num_bytes: int):
    """Return a buffer of page-locked host memory; a large one is given back with its last user."""
    if num_bytes <= POOLED_BYTES:
        return cuda.alloc_pinned_memory(max(num_bytes, 1))
    return cuda.PinnedMemoryPointer(cuda.PinnedMemory(num_bytes), 0)
