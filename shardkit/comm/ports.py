"""Ports: an array, in host or GPU memory, as a source and sink of elements on their way to other ranks.

    port.host      the flat NumPy array that can be handed to the backend as it is, or None if it must be staged:
                   the memory is a GPU's, or a reduction needs half floats as float32
    port.load      elements -> host scratch, in the dtype that travels (`wire`)
    port.store     host scratch -> elements

A GPU array is anything with `__cuda_array_interface__`. The stream that produces it is synchronized when the port is
opened, before any MPI call sees the memory.
Source: numba.readthedocs.io, "CUDA Array Interface (Version 3)"; mpi4py test/arrayimpl.py for testing without a GPU.
"""
from functools import lru_cache

import numpy

from ..array.backend import is_device_array

HALF_FLOATS = ("float16", "bfloat16")


class HostPort:
    """A C-contiguous NumPy array."""

    def __init__(self, flat, wire):
        self._flat = flat
        self.size, self.dtype, self.wire = flat.size, flat.dtype, wire
        self.num_bytes = flat.nbytes
        self.host = flat if flat.dtype == wire else None

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._flat.ctypes.data

    def load(self, start, scratch):
        """scratch [n] wire dtype, filled with elements [start, start + n)."""
        scratch[...] = self._flat[start:start + scratch.size]

    def store(self, start, scratch):
        """Elements [start, start + n), rounded back from scratch [n]."""
        self._flat[start:start + scratch.size] = scratch


class NoPort:
    """Stands for the array that only the root of a scatter or gather has: nothing is loaded or stored."""

    def __init__(self, like):
        self.dtype, self.wire = like.dtype, like.wire
        self.size = self.num_bytes = self.address = 0
        self.host = numpy.empty(0, like.wire)

    def load(self, start, scratch):
        """Nothing."""

    def store(self, start, scratch):
        """Nothing."""


class DevicePort:
    """A contiguous GPU array, reached by its address through `copies` (CudaCopies, or a fake in tests)."""

    def __init__(self, address, size, dtype, wire, copies):
        self.address, self.size, self.dtype, self.wire = address, size, dtype, wire
        self.num_bytes = size * dtype.itemsize
        self.host = None
        self._copies = copies

    def load(self, start, scratch):
        """scratch [n] wire dtype, filled with elements [start, start + n)."""
        narrow = self._narrow(scratch)
        self._copies.to_host(self.address + start * self.dtype.itemsize, narrow)
        if narrow is not scratch:
            scratch[...] = narrow

    def store(self, start, scratch):
        """Elements [start, start + n), rounded back from scratch [n]."""
        narrow = self._narrow(scratch)
        if narrow is not scratch:
            narrow[...] = scratch
        self._copies.to_device(narrow, self.address + start * self.dtype.itemsize)

    def _narrow(self, scratch):
        return scratch if self.dtype == scratch.dtype else numpy.empty(scratch.size, self.dtype)


def open_port(what: str, array, staging, *, writes: bool = False, reduces: bool = False):
    """A HostPort or DevicePort on the array.

    reduces   values will be added: half floats travel as float32
    Errors: ValueError if it is not a contiguous array, holds Python objects, or is read-only and `writes`.
    """
    if is_device_array(array):
        return _device_port(what, array, staging.copies, writes, reduces)
    if not isinstance(array, numpy.ndarray):
        raise ValueError(f"{what} is a {type(array).__name__}; wanted a NumPy or GPU array")
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} of shape {array.shape} and strides {array.strides} is not contiguous; pass a copy")
    if writes and not array.flags.writeable:
        raise ValueError(f"{what} is read-only; wanted an array that can receive")
    dtype, wire = _dtypes(what, array.dtype, reduces)
    flat = array.reshape(-1)
    return HostPort(flat if flat.dtype == dtype else flat.view(dtype), wire)


def _device_port(what, array, copies, writes, reduces):
    interface = array.__cuda_array_interface__
    shape, strides = interface["shape"], interface.get("strides")
    dtype, wire = _dtypes(what, numpy.dtype(getattr(array, "dtype", interface["typestr"])), reduces)
    size = int(numpy.prod(shape, dtype=numpy.int64))
    if strides is not None and size and not _is_contiguous(shape, strides, dtype.itemsize):
        raise ValueError(f"{what} of shape {shape} and strides {strides} on the GPU is not contiguous; pass a copy")
    address, is_read_only = interface["data"]
    if writes and is_read_only:
        raise ValueError(f"{what} is read-only; wanted an array that can receive")
    if interface["version"] < 3 or interface.get("stream") is not None:      # version 3 with None: nothing to wait for
        copies.synchronize(interface.get("stream"))
    return DevicePort(address, size, dtype, wire, copies)


@lru_cache
def _dtypes(what, dtype, reduces):
    """The dtype to see the elements as, and the one in which they travel. By name: ml_dtypes need not be installed."""
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects; use the verbs with _object in their name")
    if reduces:
        return dtype, numpy.dtype("float32") if dtype.name in HALF_FLOATS else dtype
    if dtype.kind in "biufc":
        return dtype, dtype
    if dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"{what} is {dtype}; wanted numbers")
    bits = numpy.dtype(f"u{dtype.itemsize}")             # bfloat16 and its kind are moved as bits
    return bits, bits


def _is_contiguous(shape, strides, itemsize):
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
