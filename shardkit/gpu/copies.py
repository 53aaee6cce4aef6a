"""Copies between a GPU and the host, beside the computation, through page-locked memory.

    computation   | step 1         | step 2          | step 3 ...    the stream of the kernels
    lane                           | copy a | copy b |               a stream of its own
                                   ^ starts when all earlier work is done
                                                     ^ done.hold_back(): step 3 may write a and b
    host            ...                      done.wait(): a and b can be read

A copy from ordinary host memory makes the host wait; page-locked memory is what the GPU can read by
itself.
"""

from collections import deque

import numpy

from ..array.accounts import owner_of
from ..array.copies import Copies, Done


class LaneCopies(Copies):
    """Copies of arrays of one GPU on a stream of their own.

    For one thread; arrays on the host may be used by any thread.

    xp     cupy
    pool   of page-locked memory, in bytes
    """

    def __init__(self, xp, pool):
        self._xp, self._pool = xp, pool
        self._stream = xp.cuda.Stream(non_blocking=True)
        self._windows = deque()  # (memory, Done of what it was delivered to) of the last two
        self._last = Done()

    def to_host(self, array, target, after=None):
        if isinstance(array, numpy.ndarray):
            return super().to_host(array, target)
        array = self._xp.ascontiguousarray(array)
        before = () if after is None else after.arrays
        return self._copy(
            target.ctypes.data,
            array.data.ptr,
            array.nbytes,
            "memcpyDeviceToHost",
            (array, target, *before),
        )

    def _copy(self, target: int, source: int, num_bytes: int, kind: str, arrays) -> Done:
        """Copy from address to address, after all work on the current stream."""
        runtime = self._xp.cuda.runtime
        self._stream.wait_event(self._xp.cuda.get_current_stream().record(self._event()))
        runtime.memcpyAsync(target, source, num_bytes, getattr(runtime, kind), self._stream.ptr)
        return Done(self._stream.record(self._event()), tuple(map(owner_of, arrays)))

    def _event(self):
        return self._xp.cuda.Event(block=True, disable_timing=True)

    def hold_back(self, done):
        done.hold_back(self._xp.cuda.get_current_stream())

    def parts(self, array, spans):
        return (
            super().parts(array, spans)
            if isinstance(array, numpy.ndarray)
            else self._parts_of_gpu(array, spans)
        )

    def _parts_of_gpu(self, array, spans):
        # (memory, part, Done): one is read by the caller while the other is on its way.
        ahead = deque()
        try:
            for start, stop in spans:
                memory = self._pool.take((stop - start) * array.dtype.itemsize)
                part = memory.view(array.dtype)
                ahead.append((memory, part, self.to_host(array[start:stop], part)))
                if len(ahead) == 2:
                    yield from self._arrived(ahead)
            while ahead:
                yield from self._arrived(ahead)
        finally:  # of a caller that has given up
            for memory, _, done in ahead:
                done.wait()
                self._pool.give(memory)

    def _arrived(self, ahead):
        """Yield the first part; its memory is free when the caller comes back."""
        memory, part, done = ahead[0]
        done.wait()
        yield part
        ahead.popleft()
        self._pool.give(memory)

    def window(self, num_bytes):
        if len(self._windows) == 2:
            self._take_back()
        memory = self._pool.take(num_bytes)
        self._windows.append((memory, Done()))
        return memory

    def _take_back(self):
        memory, done = self._windows.popleft()
        done.wait()
        self._pool.give(memory)

    def deliver(self, values, target):
        memory, _ = self._windows.pop()
        packed = memory[: values.nbytes].view(values.dtype).reshape(values.shape)
        if values.flags.c_contiguous:
            packed = values
        else:
            packed[...] = values.copy()  # a copy first: it lies in the same memory
        there = target if target.flags.c_contiguous else self._xp.empty(target.shape, target.dtype)
        self._last = self._copy(
            there.data.ptr, packed.ctypes.data, there.nbytes, "memcpyHostToDevice", (there, memory)
        )
        if there is not target:
            self.hold_back(self._last)
            target[...] = there
        self._windows.append((memory, self._last))

    def finish(self):
        while self._windows:
            self._take_back()
        self.hold_back(self._last)
