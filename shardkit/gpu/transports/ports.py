"""Ports on GPU arrays: anything with `__cuda_array_interface__`.

Source: numba.readthedocs.io, "CUDA Array Interface (Version 3)"; mpi4py test/arrayimpl.py for
testing without a GPU.
"""

import numpy

from ...comm.wire import wire_dtypes
from .device import EVERY_STREAM


class DevicePort:
    """A contiguous GPU array, reached by its address through `copies`.

    array    as it was given
    stream   address of the stream that produces it; EVERY_STREAM if that is not known, None if
             nothing need be waited for
    copies   CudaCopies, or a fake in tests
    """

    is_on_device = True

    def __init__(self, array, address, size, dtype, wire, stream, copies):
        self.array = array
        self.address = address
        self.size = size
        self.dtype = dtype
        self.wire = wire
        self.num_bytes = size * dtype.itemsize
        self.stream = stream
        self.host = None
        self._copies = copies

    def settle(self):
        """Wait until the kernels that were launched on the array's stream are done."""
        if self.stream is not None:
            self._copies.synchronize(self.stream)

    def begin_load(self, pieces):
        """Begin to fill scratch from elements; settle() first.

        pieces   (start, scratch [n] wire dtype) each: elements [start, start + n)
        Returns a function that returns when they are there.
        """
        narrow = [(start, self._narrow(scratch), scratch) for start, scratch in pieces]
        for start, raw, _ in narrow:
            self._copies.begin_to_host(self._at(start), raw)
        arrived = self._copies.loaded()

        def wait():
            arrived.wait()
            for _, raw, scratch in narrow:
                if raw is not scratch:
                    scratch[...] = raw

        return wait

    def begin_store(self, pieces):
        """Begin to set elements, rounded back, from scratch; pieces as for begin_load().

        Returns a function that returns when they are there; the scratch must not change before.
        """
        narrow = [(start, self._narrow(scratch), scratch) for start, scratch in pieces]
        for start, raw, scratch in narrow:
            if raw is not scratch:
                raw[...] = scratch
            self._copies.begin_to_device(raw, self._at(start))
        stored = self._copies.stored()

        def wait(kept=narrow):  # page-locked memory that is let go may be handed out again
            stored.wait()

        return wait

    def _at(self, start):
        return self.address + start * self.dtype.itemsize

    def _narrow(self, scratch):
        return (
            scratch
            if self.dtype == scratch.dtype
            else self._copies.pinned(scratch.size, self.dtype)
        )


def open_device_port(what: str, array, copies, *, writes: bool, reduces: bool):
    """Return a DevicePort on the array; arguments and errors as for open_port()."""
    interface = array.__cuda_array_interface__
    shape, strides = interface["shape"], interface.get("strides")
    dtype, wire = wire_dtypes(
        what, numpy.dtype(getattr(array, "dtype", interface["typestr"])), reduces
    )
    size = int(numpy.prod(shape, dtype=numpy.int64))
    if strides is not None and size and not _is_contiguous(shape, strides, dtype.itemsize):
        raise ValueError(
            f"{what} of shape {shape} and strides {strides} on the GPU is not contiguous; pass a "
            "copy"
        )
    address, is_read_only = interface["data"]
    if writes and is_read_only:
        raise ValueError(f"{what} is read-only; wanted an array that can receive")
    return DevicePort(array, address, size, dtype, wire, _producer(interface), copies)


def _producer(interface):
    """Return the stream to wait for; None: nothing.

    Before version 3 of the interface it is not known.
    """
    stream = interface.get("stream")
    return EVERY_STREAM if stream is None and interface["version"] < 3 else stream


def _is_contiguous(shape, strides, itemsize):
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
