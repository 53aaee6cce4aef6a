"""Ports: an array, in host or GPU memory, as a source and sink of elements on their way to other
ranks.

    port.host      the flat NumPy array that can be handed to the backend as it is, or None if it
                   must be staged: the memory is a GPU's, or a reduction needs half floats as
                   float32
    port.settle    wait until whoever computes the array is done: before any copy, and before any
                   other rank reads it
    port.begin_load    elements -> host scratch, in the dtype that travels (`wire`)
    port.begin_store   host scratch -> elements

The last two begin copies and return a function that waits for them. A GPU array is anything with
`__cuda_array_interface__`.
Source: numba.readthedocs.io, "CUDA Array Interface (Version 3)"; mpi4py test/arrayimpl.py for
testing without a GPU.
"""

from functools import lru_cache

import numpy

from ..array.backend import is_device_array
from .gpu.device import EVERY_STREAM

HALF_FLOATS = ("float16", "bfloat16")


def _nothing():
    """To wait for."""


class HostPort:
    """A C-contiguous NumPy array."""

    is_on_device = False

    def __init__(self, flat, wire):
        self._flat = flat
        self.size, self.dtype, self.wire = flat.size, flat.dtype, wire
        self.num_bytes = flat.nbytes
        self.host = flat if flat.dtype == wire else None

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._flat.ctypes.data

    def settle(self):
        """Nothing to wait for."""

    def begin_load(self, pieces):
        """Fill the scratch of each (start, scratch [n] wire dtype) with elements [start, start +
        n).
        """
        for start, scratch in pieces:
            scratch[...] = self._flat[start : start + scratch.size]
        return _nothing

    def begin_store(self, pieces):
        """For each (start, scratch [n]): elements [start, start + n), rounded back from scratch."""
        for start, scratch in pieces:
            self._flat[start : start + scratch.size] = scratch
        return _nothing


class NoPort:
    """Stands for the array that only the root of a scatter or gather has: nothing is loaded or
    stored.
    """

    def __init__(self, like):
        self.dtype, self.wire, self.is_on_device = like.dtype, like.wire, like.is_on_device
        self.size = self.num_bytes = self.address = 0
        self.host = numpy.empty(0, like.wire)

    def settle(self):
        """Nothing to wait for."""

    def begin_load(self, pieces):
        """Nothing."""
        return _nothing

    begin_store = begin_load


class DevicePort:
    """A contiguous GPU array, reached by its address through `copies` (CudaCopies, or a fake in
    tests).

    array    as it was given
    stream   address of the stream that produces it; EVERY_STREAM if that is not known, None if
             nothing need be waited for
    """

    is_on_device = True

    def __init__(self, array, address, size, dtype, wire, stream, copies):
        self.array, self.address, self.size, self.dtype, self.wire = (
            array,
            address,
            size,
            dtype,
            wire,
        )
        self.num_bytes = size * dtype.itemsize
        self.stream = stream
        self.host = None
        self._copies = copies

    def settle(self):
        """Return when the kernels that were launched on the array's stream are done."""
        if self.stream is not None:
            self._copies.synchronize(self.stream)

    def begin_load(self, pieces):
        """Begin to fill the scratch of each (start, scratch [n] wire dtype) with elements [start,
        start + n); settle() first.

        Returns a function that returns when they are there.
        """
        narrow = [(start, self._narrow(scratch), scratch) for start, scratch in pieces]
        for start, raw, _ in narrow:
            self._copies.begin_to_host(self._at(start), raw)
        arrived = self._copies.loaded()

        def wait():
            arrived.synchronize()
            for _, raw, scratch in narrow:
                if raw is not scratch:
                    scratch[...] = raw

        return wait

    def begin_store(self, pieces):
        """Begin to set elements [start, start + n), rounded back, from each (start, scratch [n]).

        Returns a function that returns when they are there; the scratch must not change before.
        """
        narrow = [(start, self._narrow(scratch), scratch) for start, scratch in pieces]
        for start, raw, scratch in narrow:
            if raw is not scratch:
                raw[...] = scratch
            self._copies.begin_to_device(raw, self._at(start))
        stored = self._copies.stored()

        def wait(kept=narrow):  # page-locked memory that is let go may be handed out again
            stored.synchronize()

        return wait

    def _at(self, start):
        return self.address + start * self.dtype.itemsize

    def _narrow(self, scratch):
        return (
            scratch
            if self.dtype == scratch.dtype
            else self._copies.pinned(scratch.size, self.dtype)
        )


def open_port(what: str, array, staging, *, writes: bool = False, reduces: bool = False):
    """A HostPort or DevicePort on the array.

    reduces   values will be added: half floats travel as float32
    Errors: ValueError if it is not a contiguous array, holds Python objects, or is read-only and
    `writes`.
    """
    if is_device_array(array):
        return _device_port(what, array, staging.copies, writes, reduces)
    if not isinstance(array, numpy.ndarray):
        raise ValueError(f"{what} is a {type(array).__name__}; wanted a NumPy or GPU array")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{what} of shape {array.shape} and strides {array.strides} is not contiguous; pass a copy"
        )
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
        raise ValueError(
            f"{what} of shape {shape} and strides {strides} on the GPU is not contiguous; pass a copy"
        )
    address, is_read_only = interface["data"]
    if writes and is_read_only:
        raise ValueError(f"{what} is read-only; wanted an array that can receive")
    return DevicePort(array, address, size, dtype, wire, _producer(interface), copies)


def _producer(interface):
    """The stream to wait for: since version 3 the interface says; None is then nothing to wait
    for.
    """
    stream = interface.get("stream")
    return EVERY_STREAM if stream is None and interface["version"] < 3 else stream


@lru_cache
def _dtypes(what, dtype, reduces):
    """The dtype to see the elements as, and the one in which they travel. By name: ml_dtypes need
    not be installed.
    """
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects; use the verbs with _object in their name")
    if reduces:
        return dtype, numpy.dtype("float32") if dtype.name in HALF_FLOATS else dtype
    if dtype.kind in "biufc":
        return dtype, dtype
    if dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"{what} is {dtype}; wanted numbers")
    bits = numpy.dtype(f"u{dtype.itemsize}")  # bfloat16 and its kind are moved as bits
    return bits, bits


def _is_contiguous(shape, strides, itemsize):
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
