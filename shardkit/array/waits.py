"""Waits of the host for a GPU: the one door, since what a GPU computes may wait for other ranks.

    to_host, Done.wait, Device.synchronize, ...  -->  fetched, await_event, await_stream, ...
                                                        nobody watches   CUDA waits
                                                        watched          the watch asks CUDA

A wait of CUDA has no end if a rank is lost that a kernel of NCCL waits for, and the thread runs no
Python meanwhile. So what puts such kernels on a stream watches over the waits of its thread
(gpu/transports/calls.py): it asks the event again and again, and knows what the GPU waits for.
"""

import sys
import threading
from typing import Any, Protocol


class WaitWatch(Protocol):
    """What watches over the waits of a thread."""

    def clear(self, event) -> None:
        """Wait until nothing before this event of CUDA waits for another rank any more.

        event   None: nothing on this GPU
        Errors: why that will never be.
        """


class _Watches(threading.local):
    """The watches of one thread, of which the last one counts."""

    def __init__(self):
        self.all: list[WaitWatch] = []


_watches = _Watches()


def watch(over: WaitWatch) -> None:
    """Let it watch over the waits of this thread from now on."""
    _watches.all.append(over)


def unwatch(over: WaitWatch) -> None:
    """Let it watch no more; whichever watched before does again."""
    if over in _watches.all:
        _watches.all.remove(over)


def own_watch() -> WaitWatch | None:
    """Return what watches over this thread, for waits that another thread does for it."""
    return _watches.all[-1] if _watches.all else None


def await_event(event, watched_by: WaitWatch | None = None) -> None:
    """Wait until the event is complete.

    watched_by   of the thread that the wait is for; None: of this one
    """
    watching = watched_by or own_watch()
    if watching is not None:
        watching.clear(event)
    event.synchronize()


def await_stream(cuda) -> None:
    """Wait until all that was put on the current stream of CuPy is done; cuda: its module."""
    stream = cuda.get_current_stream()
    _clear(cuda, stream.ptr)
    stream.synchronize()


def await_address(cuda, address: int) -> None:
    """Wait until all that was put on the stream at this address is done."""
    _clear(cuda, address)
    cuda.runtime.streamSynchronize(address)


def _clear(cuda, address: int) -> None:
    """Wait until nothing on the stream at this address waits for another rank."""
    watching = own_watch()
    if watching is not None:
        event = cuda.Event(disable_timing=True)
        cuda.runtime.eventRecord(event.ptr, address)
        watching.clear(event)


def await_device(cuda) -> None:
    """Wait until the whole GPU has done what it was told."""
    watching = own_watch()
    if watching is not None:
        watching.clear(None)
    cuda.runtime.deviceSynchronize()


def fetched(array: Any, out=None) -> Any:
    """Return the elements of a GPU's array on the host, in `out` if that is given."""
    _clear_current()
    return array.get() if out is None else array.get(out=out)


def fill_from_host(array: Any, values: Any) -> None:
    """Set the elements of a GPU's array; set() may wait for the current stream."""
    _clear_current()
    array.set(values)


def _clear_current() -> None:
    """Wait until nothing on the current stream of CuPy waits for another rank."""
    if own_watch() is not None and "cupy" in sys.modules:
        cuda = sys.modules["cupy"].cuda
        _clear(cuda, cuda.get_current_stream().ptr)
