"""Copies between the host and where arrays live; on a GPU beside the computation: gpu/copies.py."""

import numpy

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
