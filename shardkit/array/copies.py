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

from .accounts import owner_of
from .waits import await_event, fetched, fill_from_host, own_watch


class Done:
    """The event after which some copies are complete; it keeps what they read and write alive.

    event   of CUDA; None: they are done
    """

    def __init__(self, event=None, arrays=()):
        self._event, self.arrays = event, arrays
        self._watch = own_watch()  # of the thread that copies, whichever waits

    def wait(self) -> None:
        """Wait until they are complete."""
        if self._event is not None:
            await_event(self._event, self._watch)
        self.arrays = ()

    def hold_back(self, stream) -> None:
        """Let later work on this stream start after the copies; the host does not wait."""
        if self._event is not None:
            stream.wait_event(self._event)


class Copies:
    """Copies that are complete when the call returns; arrays need no more than get() and set()."""

    def to_host(self, array, target, after: Done | None = None) -> Done:
        """Copy array [n] to target [n] on the host, page-locked if the array is on a GPU.

        after   copies that were asked for before; they are done too when this one is
        """
        if isinstance(array, numpy.ndarray):
            numpy.copyto(target, array)
        else:
            fetched(array, target)
        return Done()

    def hold_back(self, done: Done) -> None:
        """Let later computation start after these copies."""

    def parts(self, array, spans):
        """Yield the elements [start, stop) of array [n] for each span, on the host.

        Each part is valid until the next one is asked for.
        """
        for start, stop in spans:
            part = array[start:stop]
            yield numpy.ascontiguousarray(
                part if isinstance(part, numpy.ndarray) else fetched(part)
            )

    def window(self, num_bytes: int):
        """Return [num_bytes] uint8 on the host to fill and deliver; valid until the next call."""
        return numpy.empty(num_bytes, numpy.uint8)

    def deliver(self, values, target) -> None:
        """Copy values that lie in the last window to the contiguous target of their shape.

        Complete when finish() returns.
        """
        fill_from_host(target, numpy.ascontiguousarray(values))

    def finish(self) -> None:
        """Let later computation see everything that was delivered."""


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
