"""The machine that the stand-in pretends to have: GPUs whose memory is NumPy's, and a book of
everything that happens.

    transfers    every copy between host and GPU: what kind, how many bytes, from which line of
                 whose code
    launches     how often each kernel, operation, copy or graph was launched; what is captured is
                 not, and neither are copies between host and GPU
    host_waits   the lines of code where the host waited for the GPU, each time
    mistakes     what a real GPU would not report, but answer with wrong numbers: memory that is
                 read before what fills it was waited for, or given back while a copy is still on
                 the way

Work on arrays is done at once. What a program may not count on until it has waited, copies on
streams, is done as late as a real GPU might do it: when somebody waits.
"""

import mmap
import os
import sys
import tempfile
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy

_HERE = str(Path(__file__).parents[1])
LIMIT_SECONDS = 20.0  # that work on a stream waits for others before the stand-in gives up
_UNIT = 512  # bytes: what the pool rounds an allocation up to
_LARGE = 1 << 20  # bytes


class Transfer(NamedTuple):
    """One copy between host and GPU.

    kind     "to host" or "to device": asked of an array; "size to host": the host must learn how
             large a result is; "copy to host", "copy to device": asked of the runtime, by address
    place    file:line of the first caller outside of the stand-in
    thread   its name
    """

    kind: str
    num_bytes: int
    place: str
    thread: str


class Allocation:
    """A block of GPU memory, held by the arrays and pointers that use it.

    written   (stream, tick) of the work that last wrote it
    parts     (start, stop, stream, tick) of copies by address that wrote these bytes since, not all
              of which have been waited for
    """

    def __init__(self, machine, memory, device, size, written):
        self.machine, self.memory, self.device, self.size, self.written = (
            machine,
            memory,
            device,
            size,
            written,
        )
        self.stream = written[0]  # that of the pool's arena which lent it
        self.parts: list[tuple] = []
        self.handle = None  # of cuBLAS, whose workspace it is
        self.used_bytes = machine.used_bytes
        self.address = memory.__array_interface__["data"][0]

    @property
    def block(self):
        return self

    def mark_written(self, stream):
        """Work on this stream, or what is noted of it, writes here."""
        if stream.capture is None:
            stream.tick += 1
            self.block.written = stream, stream.tick
        else:
            stream.capture.targets.append(self.block)

    def __del__(self):
        self.machine.give_back(self)


class Lease:
    """A block of a pool, lent out: like the Allocation, but gone when its last user is gone."""

    def __init__(self, block, give_back):
        self.block, self._give_back = block, give_back
        block.handle = None

    def __getattr__(self, name):
        return getattr(self.block, name)

    def __del__(self):
        self._give_back(self.block)


class Capture:
    """What a stream was told while it was captured.

    works     functions: nothing of it is done before the graph is launched
    targets   blocks that are written
    made      memory that came into being, whose contents mean nothing afterwards
    """

    def __init__(self):
        self.works, self.targets, self.made, self.is_valid = [], [], [], True


class Here(threading.local):
    """What each thread has of its own: its current device, {device: current stream}, and the
    allocator of the block that it is in.
    """

    device, streams, allocator = 0, MappingProxyType({}), None


class Machine:
    """All GPUs of one process. capacity_bytes is of each; num_devices how many are visible."""

    def __init__(self):
        self.lock = threading.RLock()
        self.num_devices, self.capacity_bytes = 1, 1 << 30
        self.here = Here()
        self.transfers: list[Transfer] = []
        self.launches: Counter = Counter()
        self.host_waits: list[tuple[str, str]] = []  # (place, name of the thread)
        self.wait_watchers: list = []  # functions ({stream: tick}): the host waits for these
        self.mistakes: list[str] = []
        self.streams = weakref.WeakValueDictionary()  # address -> Queue of those that were made
        self.busy: set[Queue] = set()  # those with work that is still to be done
        self._null_streams: dict[int, Queue] = {}  # device -> the one that it has anyway
        self._to_go: list[tuple] = []  # (stream, place in it until which it is needed, memory)
        self._kept: list = []  # memory that copies still need
        self.known_to_host: dict[object, int] = {}  # stream -> tick that somebody has waited for
        self.pinned: dict[int, int] = {}  # address -> bytes
        self.used_bytes: dict[int, int] = {}  # of each device
        self.limit_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}  # of total_bytes: the pool keeps what it has
        self._addresses: list[tuple[int, int]] = []  # (address, bytes) of allocations, sorted
        self._allocations: dict[int, weakref.ref] = {}  # by address
        self.on_the_way: list[
            tuple[int, int]
        ] = []  # (address, bytes) of GPU memory that copies will touch
        self.nans = tempfile.TemporaryFile()  # as many bytes of NaN as the largest block has

    # ---- the book --------------------------------------------------------------------------------

    def open_book(self, num_devices, capacity_bytes):
        """Begin anew, on the first device of so many."""
        self.num_devices, self.capacity_bytes, self.device = num_devices, capacity_bytes, 0
        self.here.streams = {}
        self.limit_bytes.clear()
        self.used_bytes, self.peak_bytes = {}, {}  # what others still hold is of another machine
        self.forget()
        self.mistakes.clear()

    def forget(self):
        """Count transfers, launches and waits from here."""
        self.transfers.clear()
        self.launches.clear()
        self.host_waits.clear()

    def launched(self, name):
        """Work of this name goes to the current stream."""
        if self.stream.capture is None:
            with self.lock:
                self.launches[name] += 1

    def note(self, kind, num_bytes):
        """A transfer has been asked for."""
        self.transfers.append(Transfer(kind, num_bytes, caller(), threading.current_thread().name))

    def mistake(self, text):
        """Wrong numbers on a real GPU: written down, and raised."""
        text = f"{text} (at {caller()})"
        self.mistakes.append(text)
        raise RuntimeError(text)

    # ---- devices and streams ---------------------------------------------------------------------

    @property
    def device(self) -> int:
        """The current one of this thread."""
        return self.here.device

    @device.setter
    def device(self, ordinal):
        self.here.device = ordinal

    @property
    def stream(self):
        """The current one of this thread and device."""
        here = self.here
        return here.streams.get(here.device) or self.null_stream(here.device)

    def stream_of(self, device):
        """The current one of this thread and this device."""
        return self.here.streams.get(device) or self.null_stream(device)

    def use_stream(self, queue):
        """Make it the current one."""
        self.here.streams = {**self.here.streams, self.device: queue}

    def null_stream(self, device):
        """The one that every device has; its address is 0."""
        found = self._null_streams.get(device)
        if found is not None:  # each operation asks: without the lock that all threads want
            return found
        with self.lock:
            if device not in self._null_streams:
                self._null_streams[device] = Queue(self, device, 0, non_blocking=False)
            return self._null_streams[device]

    def stream_at(self, address):
        """The stream of this address, or the null stream of the current device. Errors:
        KeyError.
        """
        return self.null_stream(self.device) if address in (0, 1) else self.streams[address]

    def all_streams(self, device) -> list:
        """Of one device."""
        with self.lock:
            return [
                queue
                for queue in [self.null_stream(device), *self.streams.values()]
                if queue.device == device
            ]

    def begin(self, device=None):
        """Before work on arrays in this thread: what its stream was told to do first is done.
        Returns the stream.

        device   whose stream; None: the current one's
        """
        stream = self.stream if device is None else self.stream_of(device)
        stream.finish_before()
        return stream

    def perform(self, work):
        """Work on arrays: done at once, or noted where the current stream is captured."""
        capture = self.stream.capture
        if capture is None:
            work()
        else:
            capture.works.append(work)

    def waits(self, stream=None):
        """The host waits for this stream, or the current one, or for a number that it makes.
        Errors: if it is captured.
        """
        self.refuse_capture(stream)
        stream = self.stream if stream is None else stream
        self.note_wait({**stream.seen, stream: stream.tick})

    def know(self, seen):
        """The host knows that this is done; {stream: tick}."""
        with self.lock:
            for stream, tick in seen.items():
                self.known_to_host[stream] = max(self.known_to_host.get(stream, -1), tick)

    def note_wait(self, seen=None):
        """The host waits; seen: {stream: tick} of what it waits for, None: the current stream."""
        for watcher in self.wait_watchers:
            watcher({**self.stream.seen, self.stream: self.stream.tick} if seen is None else seen)
        self.host_waits.append((caller(), threading.current_thread().name))

    def refuse_capture(self, stream=None):
        """Errors: if this stream, or the current one, is captured."""
        capture = (self.stream if stream is None else stream).capture
        if capture is not None:
            capture.is_valid = False
            from .cuda.runtime import CUDARuntimeError

            raise CUDARuntimeError(900)

    # ---- memory ----------------------------------------------------------------------------------

    def lease(self, num_bytes):
        """Memory of the allocator of this thread; None if it uses the pool that all have."""
        allocator = self.here.allocator
        if allocator is None:
            if self.stream.capture is not None:
                self.mistake(
                    "memory of the pool that all have, in a graph: others get it before the "
                    "graph is launched"
                )
            return None
        lease = allocator(num_bytes).mem._allocation
        if self.stream.capture is not None:
            self.stream.capture.made.append(lease.memory)
        return lease

    def allocate(self, num_bytes, memory=None) -> Allocation:
        """A block of the pool on the current device; `memory` is a NumPy array that already holds
        its contents.
        """
        device, size = self.device, -(-max(num_bytes, 1) // _UNIT) * _UNIT
        with self.lock:
            used = self.used_bytes.get(device, 0) + size
            most = min(self.capacity_bytes, self.limit_bytes.get(device, 0) or self.capacity_bytes)
            if used > most:
                from .cuda.memory import OutOfMemoryError

                raise OutOfMemoryError(size, used - size, most)
            self.used_bytes[device] = used
            self.peak_bytes[device] = max(self.peak_bytes.get(device, 0), used)
        if memory is None:
            memory = _aligned(max(num_bytes, 1))
        stream = self.stream
        before = stream.tick if stream.capture is None else -1  # what is captured is not done yet
        allocation = Allocation(self, memory, device, size, (stream, before))
        with self.lock:
            insort(self._addresses, (allocation.address, max(num_bytes, 1)))
            self._allocations[allocation.address] = weakref.ref(allocation)
        return allocation

    def give_back(self, allocation):
        """Its last user is gone. Copies on its own stream come before what is done with it next, as
        in CuPy's pool.
        """
        queue = allocation.stream
        with self.lock:
            self._to_go = [each for each in self._to_go if each[0].num_done < each[1]]
            if not queue.advance(queue.num_put):  # others have to come first; it knows its place
                self._to_go.append((queue, queue.num_put, allocation.memory))
            if allocation.used_bytes is self.used_bytes:
                self.used_bytes[allocation.device] -= allocation.size
            at = bisect_right(self._addresses, (allocation.address, float("inf"))) - 1
            _, num_bytes = self._addresses.pop(at)
            del self._allocations[allocation.address]
            stop = allocation.address + num_bytes
            if queue.num_done == queue.num_put and any(
                start < stop and allocation.address < start + size
                for start, size in self.on_the_way
            ):
                self.mistakes.append(
                    f"{num_bytes} bytes were given back while a copy of them was on the way"
                )
                self._kept.append(allocation.memory)

    def find(self, address, num_bytes=1):
        """The allocation that holds these bytes, or None. Errors: RuntimeError if they run out of
        it.
        """
        with self.lock:
            at = bisect_right(self._addresses, (address, float("inf"))) - 1
            if at < 0 or self._addresses[at][0] + self._addresses[at][1] <= address:
                return None
            start, size = self._addresses[at]
            allocation = self._allocations[start]()
        if address + num_bytes > start + size:
            self.mistake(f"{num_bytes} bytes from byte {address - start} of a block of {size}")
        return allocation

    def is_pinned(self, address, num_bytes=1) -> bool:
        """Whether these bytes of host memory are page-locked."""
        with self.lock:
            return any(
                start <= address and address + num_bytes <= start + size
                for start, size in self.pinned.items()
            )

    def check_seen(self, stream, allocation, what, start=0, stop=float("inf")):
        """Errors: RuntimeError unless work on this stream comes after what last wrote these bytes
        of the allocation.
        """
        if allocation.written[0] is stream and not allocation.parts:
            return  # as nearly all that is read
        with self.lock:
            writers = [allocation.written] + [
                part[2:] for part in allocation.parts if part[0] < stop and start < part[1]
            ]
        if not all(self._has_seen(stream, *writer) for writer in writers):
            self.mistake(
                f"{what} on a stream that has not waited for the work that writes this memory"
            )

    def check_not_on_the_way(self, start, stop):
        """Errors: RuntimeError if a copy still reads or writes a byte of these addresses."""
        with self.lock:
            found = any(at < stop and start < at + size for at, size in self.on_the_way)
        if found:
            self.mistake("memory is overwritten while a copy of it is on the way")

    def check_host_has_waited(self, address, num_bytes, what):
        """Errors: RuntimeError unless the host has waited for what wrote these bytes, which it now
        gives to somebody who knows no streams.
        """
        allocation = self.find(address, max(num_bytes, 1))
        if allocation is not None and num_bytes:
            start = address - allocation.address
            nobody = Queue(self, allocation.device, -1, non_blocking=True)
            self.check_seen(nobody, allocation, what, start, start + num_bytes)

    def _has_seen(self, stream, writer, tick):
        if (
            writer is stream
            or stream.seen.get(writer, -1) >= tick
            or self.known_to_host.get(writer, -1) >= tick
        ):
            return True  # the null stream and ordinary ones wait for each other
        return (
            0 in (writer.address, stream.address)
            and not writer.non_blocking
            and not stream.non_blocking
        )

    def note_written(self, allocation, stream, start, stop):
        """A copy by address, put on this stream, writes these bytes."""
        with self.lock:
            allocation.parts = [
                part for part in allocation.parts if self.known_to_host.get(part[2], -1) < part[3]
            ]
            allocation.parts.append((start, stop, stream, stream.tick))


class Held:
    """Work that may have to wait for others."""

    def is_ready(self) -> bool:
        """Return whether it can be done now; called when all before it is done."""

    def __call__(self):
        """Do it."""


class Queue:
    """A stream: what it was told and has not done yet, in order."""

    def __init__(self, machine, device, address, *, non_blocking):
        self.machine, self.device, self.address, self.non_blocking = (
            machine,
            device,
            address,
            non_blocking,
        )
        self.waiting: list = []  # functions
        self.num_done = 0  # of all that were ever put in
        self.tick = 0  # grows with every piece of work
        self.seen: dict[Queue, int] = {}  # of other streams, the ticks that this one has waited for
        self.capture: Capture | None = None

    def put(self, work):
        """Do this later."""
        if self.capture is not None:
            return self.capture.works.append(work)
        with self.machine.lock:
            self.tick += 1
            self.waiting.append(work)
            self.machine.busy.add(self)

    @property
    def num_put(self) -> int:
        """Pieces of work so far."""
        return self.num_done + len(self.waiting)

    def advance(self, upto) -> bool:
        """Do what is waiting, up to this place, as far as it does not wait for another process or
        rank; return whether all of it is done.
        """
        with self.machine.lock:
            while self.num_done < upto and self.waiting:
                work = self.waiting[0]
                if isinstance(work, Held) and not work.is_ready():
                    return False
                self.waiting.pop(0)
                self.num_done += 1
                work()
            if not self.waiting:
                self.machine.busy.discard(self)
            return True

    def finish(self, upto=None):
        """Do what is waiting, or the first part of it."""
        upto = self.num_put if upto is None else upto
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self.advance(upto):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody came within {LIMIT_SECONDS:g} s (at {caller()})")
            time.sleep(0.0005)

    def finish_before(self):
        """As before work that is done at once: the null stream waits for ordinary ones, and they
        for it.
        """
        if not self.machine.busy:
            return
        self.finish()
        with self.machine.lock:
            others = [
                queue
                for queue in self.machine.busy
                if queue.device == self.device and 0 in (self.address, queue.address)
            ]
        for other in others if not self.non_blocking else ():
            if not other.non_blocking:
                other.finish()

    def synchronize(self):
        """The host waits for all of it."""
        self.machine.waits(self)
        self.complete()

    def complete(self):
        """All of it is done, and the host knows."""
        self.finish_before()
        self.machine.know({**self.seen, self: self.tick})


def _aligned(num_bytes):
    """Bytes that begin where the pool lets a block begin; NaN, for those who read them."""
    if num_bytes >= _LARGE:
        return numpy.frombuffer(_large_block(num_bytes), numpy.uint8, num_bytes)
    block = numpy.full(num_bytes + _UNIT, 0xFF, numpy.uint8)
    start = -block.ctypes.data % _UNIT
    return block[start : start + num_bytes]


def _large_block(num_bytes):
    """The same, of pages that cost nothing until they are written: workspaces hardly are."""
    with machine.lock:
        file = machine.nans
        size = file.seek(0, os.SEEK_END)
        while size < num_bytes:
            size += file.write(b"\xff" * _LARGE)
        file.flush()
    return mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_COPY)


def caller() -> str:
    """file:line of the first frame that is not ours."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "?" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


machine = Machine()
