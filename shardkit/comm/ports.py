"""Ports: an array, in host or GPU memory, as a source and sink of elements on their way.

    port.host      the flat NumPy array that a channel can take as it is, or None if it must be
                   staged: the memory is a GPU's, or a reduction needs half floats as float32
    port.settle    wait until what computes the array is done: before any copy, and before any
                   other rank reads it
    port.begin_load    elements -> host scratch, in the dtype that travels (`wire`)
    port.begin_store   host scratch -> elements

The last two begin copies and return a function that waits for them. gpu/ports.py has those of GPU
arrays.
"""

import numpy

from ..array.backend import is_device_array
from ..on_gpu import gpu_part
from .wire import wire_dtypes


def _nothing():
    """Do nothing: there is nothing to wait for."""


class HostPort:
    """A C-contiguous NumPy array."""

    is_on_device = False

    def __init__(self, flat, wire):
        self._flat = flat
        self.size = flat.size
        self.dtype = flat.dtype
        self.wire = wire
        self.num_bytes = flat.nbytes
        self.host = flat if flat.dtype == wire else None

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self._flat.ctypes.data

    def settle(self):
        """Do nothing: there is nothing to wait for."""

    def begin_load(self, pieces):
        """Fill the scratch of each (start, scratch [n]) with elements [start, start + n).

        Scratch is of the wire dtype.
        """
        for start, scratch in pieces:
            scratch[...] = self._flat[start : start + scratch.size]
        return _nothing

    def begin_store(self, pieces):
        """Set elements [start, start + n), rounded back, from each (start, scratch [n])."""
        for start, scratch in pieces:
            self._flat[start : start + scratch.size] = scratch
        return _nothing


class NoPort:
    """Stands for the array that only the root of a scatter or gather has.

    Nothing is loaded or stored.
    """

    def __init__(self, like):
        self.dtype = like.dtype
        self.wire = like.wire
        self.is_on_device = like.is_on_device
        self.size = self.num_bytes = self.address = 0
        self.host = numpy.empty(0, like.wire)

    def settle(self):
        """Do nothing: there is nothing to wait for."""

    def begin_load(self, pieces):
        """Do nothing."""
        return _nothing

    begin_store = begin_load


def open_port(what: str, array, staging, *, writes: bool = False, reduces: bool = False):
    """Return a HostPort or DevicePort on the array.

    reduces   values will be added: half floats travel as float32
    Errors: ValueError if it is not a contiguous array, holds Python objects, or is read-only and
    `writes`.
    """
    if is_device_array(array):
        open_device_port = gpu_part("transports.ports").open_device_port
        return open_device_port(what, array, staging.copies, writes=writes, reduces=reduces)
    if not isinstance(array, numpy.ndarray):
        raise ValueError(f"{what} is a {type(array).__name__}; wanted a NumPy or GPU array")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{what} of shape {array.shape} and strides {array.strides} is not contiguous; pass a "
            "copy"
        )
    if writes and not array.flags.writeable:
        raise ValueError(f"{what} is read-only; wanted an array that can receive")
    dtype, wire = wire_dtypes(what, array.dtype, reduces)
    flat = array.reshape(-1)
    return HostPort(flat if flat.dtype == dtype else flat.view(dtype), wire)
