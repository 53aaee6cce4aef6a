"""Streams and events."""

import itertools
import time

from .._machine import Capture, Held, Queue, machine
from . import graph

_addresses = itertools.count(0x1000, 0x10)


class _BaseStream:
    """What all streams can do."""

    @property
    def ptr(self):
        return self._queue.address

    @property
    def is_non_blocking(self):
        return self._queue.non_blocking

    @property
    def done(self):
        return not self._queue.waiting

    def __eq__(self, other):
        return isinstance(other, _BaseStream) and self._queue is other._queue

    def __hash__(self):
        return hash(self._queue.address)

    def __enter__(self):
        self._before.append(machine.stream)
        machine.use_stream(self._queue)
        return self

    def __exit__(self, *args):
        machine.use_stream(self._before.pop())

    def use(self):
        machine.use_stream(self._queue)
        return self

    def synchronize(self):
        self._queue.synchronize()

    def record(self, event=None):
        event = Event() if event is None else event
        event._mark(self._queue)
        return event

    def wait_event(self, event):
        wait_for(self._queue, event._point)

    def begin_capture(self, mode=None):
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if not self.is_non_blocking:
            machine.mistake(
                "a stream is captured that waits for the null stream, which others use meanwhile"
            )
        self._queue.capture = Capture()

    def end_capture(self):
        capture, self._queue.capture = self._queue.capture, None
        for memory in capture.made:
            memory.fill(0xFF)
        if not capture.is_valid:
            from .runtime import CUDARuntimeError

            raise CUDARuntimeError(901)
        return graph.Graph._of(capture)


class Stream(_BaseStream):
    """Work in order. What is copied on one that is not the current one is copied when somebody
    waits for it.
    """

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        if null:
            self._queue = machine.null_stream(machine.device)
        else:
            self._queue = Queue(
                machine, machine.device, next(_addresses), non_blocking=non_blocking
            )
            with machine.lock:
                machine.streams[self._queue.address] = self._queue
        self._before = []

    @classmethod
    def _of(cls, queue):
        self = cls.__new__(cls)
        self._queue, self._before = queue, []
        return self


class ExternalStream(_BaseStream):
    """One that the runtime made."""

    def __init__(self, ptr, device_id=-1):
        self._queue, self._before = machine.stream_at(ptr), []


class Point:
    """A place in a stream: what was put before it."""

    def __init__(self):
        self.queue, self.place, self.seen, self.when = None, 0, {}, None

    def set(self, queue):
        self.queue, self.place, self.when = queue, queue.num_put, time.perf_counter()
        self.seen = {**queue.seen, queue: queue.tick}

    def reach(self):
        """Do what comes before it."""
        if self.queue is not None:
            self.queue.finish(self.place)

    def synchronize(self):
        """The host waits for it."""
        machine.note_wait(self.seen)
        self.reach()
        machine.know(self.seen)

    def ask(self) -> bool:
        """Whether it is reached, as the host may ask; what is late on purpose is done when it has
        been asked for.
        """
        if self.queue is None or self.queue.num_done >= self.place:
            machine.know(self.seen)
            return True
        self.queue.advance(self.place)
        return False


def wait_for(queue, point):
    """What is put into the queue from now on comes after the point."""
    for stream, tick in point.seen.items():
        queue.seen[stream] = max(queue.seen.get(stream, -1), tick)
    if point.queue is not None and point.queue is not queue and point.queue.num_done < point.place:
        queue.put(_Reach(point.queue, point.place))


class _Reach(Held):
    """What comes before a place in another stream."""

    def __init__(self, queue, place):
        self._queue, self._place = queue, place

    def is_ready(self):
        return self._queue.advance(self._place)


class Event:
    """A point in a stream that can be waited for."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self._point, self._has_time = Point(), not disable_timing
        self.ptr = next(_addresses)
        points[self.ptr] = self._point

    def _mark(self, queue):
        self._point.set(queue)

    def __del__(self):
        points.pop(self.ptr, None)

    @property
    def done(self):
        return self._point.ask()

    def record(self, stream=None):
        self._mark(machine.stream if stream is None else stream._queue)

    def synchronize(self):
        self._point.synchronize()


points: dict[int, Point] = {}  # address of an event -> its point


def get_elapsed_time(start_event, end_event):
    if not start_event._has_time or not end_event._has_time:
        raise ValueError("an event that keeps no time")
    return 1000 * (end_event._point.when - start_event._point.when)


def get_current_stream(device_id=-1):
    return Stream._of(machine.stream)


Stream.null = Stream(null=True)
