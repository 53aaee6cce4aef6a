"""Stands for cupy.cuda.nccl between ranks that are threads, on the memory of the stand-in for CuPy,
and between processes, each with a stand-in of its own.

    with pretended_gpu(num_devices=3), fake_nccl.installed() as nccl:
        run_ranks(3, ...)
    assert not nccl.unwatched           # where the host waited for others in a way that has no end

A call returns at once, as those of NCCL do: the stream waits for the other ranks, and goes on when
they have come, whatever the host does. As strict as NCCL: two ranks on one GPU are refused,
collectives must agree, a send is done when it is received unless both are in one group, a receive
must have the size of its send. Its sums are added in an order of its own (from the last rank down),
and what it reads must come before it on the stream. A communicator that is aborted lets its stream
go on, with wrong numbers, and the others hear of it when they ask.

Processes meet in the folder that FOLDER_VARIABLE in the environment names.
"""

import ctypes
import operator
import os
import pickle
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import numpy

LIMIT_SECONDS = 20.0
FOLDER_VARIABLE = "FAKE_NCCL_FOLDER"
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)
(
    NCCL_INT8,
    NCCL_UINT8,
    NCCL_INT32,
    NCCL_UINT32,
    NCCL_INT64,
    NCCL_UINT64,
    NCCL_FLOAT16,
    NCCL_FLOAT32,
    NCCL_FLOAT64,
) = range(9)
_DTYPES = dict(
    enumerate(
        ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
    )
)
_ADD = {
    NCCL_SUM: operator.add,
    NCCL_PROD: operator.mul,
    NCCL_MAX: numpy.maximum,
    NCCL_MIN: numpy.minimum,
}
available = True
calls: list[tuple] = []  # (rank, name) of everything that was asked for
sent: list[tuple] = []  # (rank, peer, bytes) of every message
unwatched: list[str] = []  # places where the host waited for what it had not asked about before
_here = threading.local()


class NcclError(RuntimeError):
    """What NCCL answers."""


@contextmanager
def installed():
    """`from cupy.cuda import nccl` finds this module."""
    import sys

    cuda, this = sys.modules["cupy.cuda"], sys.modules[__name__]
    for book in (calls, sent, unwatched):
        book.clear()
    cuda.nccl = this
    _machine().wait_watchers.append(_note_unwatched)
    try:
        yield this
    finally:
        _machine().wait_watchers.remove(_note_unwatched)
        _asked.clear()
        del cuda.nccl


def get_unique_id():
    return tuple(byte - 128 for byte in uuid.uuid4().bytes * 8)


def get_version():
    return 22703


def groupStart():
    _here.depth = getattr(_here, "depth", 0) + 1
    _here.waiting = getattr(_here, "waiting", [])


def groupEnd():
    if not getattr(_here, "depth", 0):
        raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")
    _here.depth -= 1
    if _here.depth == 0:
        waiting, _here.waiting = _here.waiting, []
        for stream in dict.fromkeys(part.stream for part in waiting):
            _put(stream, [part for part in waiting if part.stream == stream])


# ---- where ranks meet ----------------------------------------------------------------------------


class OfThreads:
    """What the ranks of one unique id have published: {key: value}."""

    worlds: dict[tuple, dict] = {}
    lock = threading.Lock()

    def __init__(self, commId):
        with self.lock:
            self._values = self.worlds.setdefault(commId, {})

    def put(self, key, value):
        self._values[key] = value

    def get(self, key):
        return self._values.get(key)

    def forget(self, key):
        self._values.pop(key, None)


class OfProcesses:
    """The same, in files."""

    def __init__(self, commId):
        name = "".join(f"{byte + 128:02x}" for byte in commId[:16])
        self._folder = Path(os.environ[FOLDER_VARIABLE], name)
        self._folder.mkdir(exist_ok=True)

    def _path(self, key):
        return self._folder / "-".join(map(str, key))

    def put(self, key, value):
        path = self._path(key)
        path.with_suffix(".new").write_bytes(pickle.dumps(value))
        path.with_suffix(".new").rename(path)

    def get(self, key):
        try:
            return pickle.loads(self._path(key).read_bytes())
        except FileNotFoundError:
            return None

    def forget(self, key):
        self._path(key).unlink(missing_ok=True)


class NcclCommunicator:
    """One rank's end."""

    def __init__(self, ndev, commId, rank):
        assert len(commId) == 128
        self.world = (OfProcesses if FOLDER_VARIABLE in os.environ else OfThreads)(commId)
        self.rank, self.num_ranks, self.is_alive, self.is_aborted = rank, ndev, True, False
        self._spent: list = []
        self.counts: dict = {}  # of collectives, and of messages to and from each peer
        self.world.put(("device", rank), (os.getpid(), _machine().device))
        deadline = time.monotonic() + LIMIT_SECONDS
        devices: list = [None]
        while None in devices:
            devices = [self.world.get(("device", each)) for each in range(ndev)]
            if time.monotonic() > deadline:
                raise NcclError("NCCL_ERROR_INTERNAL_ERROR: nobody came")
            time.sleep(0.0005)
        if len({device for _, device in devices}) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")  # Duplicate GPU detected

    def number(self, what):
        """Of the next one of its kind."""
        self.counts[what] = self.counts.get(what, -1) + 1
        return self.counts[what]

    def clear(self, collectives):
        """All ranks have come to these, so all are through with those before."""
        for key in self._spent:
            self.world.forget(key)
        self._spent = [each.key for each in collectives]

    def destroy(self):
        self.is_alive = False

    def abort(self):
        self.is_alive, self.is_aborted = False, True
        self.world.put(("aborted", self.rank), True)

    def size(self):
        return self.num_ranks

    def rank_id(self):
        return self.rank

    def check_async_error(self):
        for rank in range(self.num_ranks):
            if rank != self.rank and self.world.get(("aborted", rank)):
                raise NcclError(
                    "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error"
                )

    def send(self, sendbuf, count, datatype, peer, stream):
        self._ask(Send, sendbuf, count * _size(datatype), peer, stream)

    def recv(self, recvbuf, count, datatype, peer, stream):
        self._ask(Receive, recvbuf, count * _size(datatype), peer, stream)

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        self._ask(AllReduce, sendbuf, recvbuf, count, datatype, op, None, stream)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        self._ask(Reduce, sendbuf, recvbuf, count, datatype, op, root, stream)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        self._ask(ReduceScatter, sendbuf, recvbuf, recvcount, datatype, op, None, stream)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        self._ask(AllGather, sendbuf, recvbuf, count, datatype, None, None, stream)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        self._ask(Broadcast, sendbuff, recvbuff, count, datatype, None, root, stream)

    def _ask(self, kind, *what):
        if not self.is_alive:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        calls.append((self.rank, kind.name))
        part = kind(self, *what)
        if getattr(_here, "depth", 0):
            _here.waiting.append(part)
        else:
            _put(part.stream, [part])


# ---- what is asked for ---------------------------------------------------------------------------


class Send:
    """A message to a peer; it is done when it is received."""

    name = "send"

    def __init__(self, communicator, address, num_bytes, peer, stream):
        self.communicator, self.stream = communicator, stream
        self.reads, self.writes = (address, num_bytes), (0, 0)
        self._key = communicator.rank, peer, communicator.number(("to", peer))
        sent.append((communicator.rank, peer, num_bytes))

    def begin(self):
        self.communicator.world.put(("sent", *self._key), _read(*self.reads))

    def has_come(self):
        return self.communicator.world.get(("received", *self._key)) is not None

    def end(self):
        self.communicator.world.forget(("received", *self._key))


class Receive:
    """The next message of a peer."""

    name = "recv"

    def __init__(self, communicator, address, num_bytes, peer, stream):
        self.communicator, self.stream = communicator, stream
        self.reads, self.writes = (0, 0), (address, num_bytes)
        self._key = peer, communicator.rank, communicator.number(("from", peer))
        self._content = None

    def begin(self):
        """Nothing: the sender begins."""

    def has_come(self):
        world = self.communicator.world
        if self._content is None:
            self._content = world.get(("sent", *self._key))
            if self._content is not None:
                world.forget(("sent", *self._key))
                world.put(("received", *self._key), True)
        return self._content is not None

    def end(self):
        if len(self._content) != self.writes[1]:
            raise NcclError(
                f"rank {self._key[0]} sends {len(self._content)} bytes, rank {self._key[1]} "
                f"receives {self.writes[1]}"
            )
        _write(self.writes[0], self._content)


class Collective:
    """A call of all ranks: what one brings is published, and what it gets comes from all."""

    def __init__(self, communicator, source, target, count, datatype, op, root, stream):
        self.communicator, self.stream = communicator, stream
        self.op, self.root, self.dtype = op, root, numpy.dtype(_DTYPES[datatype])
        self._number = communicator.number("collective")
        self._signature = self.name, count, datatype, op, root
        size, rank, num_bytes = (
            communicator.num_ranks,
            communicator.rank,
            count * self.dtype.itemsize,
        )
        gives = root in (None, rank) or self.name == "reduce"
        gets = self.name != "reduce" or root == rank
        self.reads = source, num_bytes * self.given_by(size) if gives else 0
        self.writes = target, num_bytes * self.got_by(size) if gets else 0
        self._brought: list = [None] * size

    def given_by(self, size):
        return 1

    def got_by(self, size):
        return 1

    @property
    def key(self):
        return "came", self._number, self.communicator.rank

    def begin(self):
        self.communicator.world.put(self.key, (self._signature, _read(*self.reads)))

    def has_come(self):
        get = self.communicator.world.get
        for rank, brought in enumerate(self._brought):
            if brought is None:
                self._brought[rank] = get(("came", self._number, rank))
        return None not in self._brought

    def end(self):
        if len({signature for signature, _ in self._brought}) > 1:
            names = sorted({signature[0] for signature, _ in self._brought})
            raise NcclError(f"ranks call {names}")
        if self.writes[1]:
            everyones = [numpy.frombuffer(given, self.dtype) for _, given in self._brought]
            _write(self.writes[0], self.result(everyones).tobytes())

    def total(self, everyones):
        total = everyones[-1]
        for array in everyones[-2::-1]:
            total = _ADD[self.op](total, array)
        return total


class AllReduce(Collective):
    name = "allReduce"
    result = Collective.total


class Reduce(Collective):
    name = "reduce"
    result = Collective.total


class ReduceScatter(Collective):
    name = "reduceScatter"

    def given_by(self, size):
        return size

    def result(self, everyones):
        return numpy.split(self.total(everyones), len(everyones))[self.communicator.rank]


class AllGather(Collective):
    name = "allGather"

    def got_by(self, size):
        return size

    def result(self, everyones):
        return numpy.concatenate(everyones)


class Broadcast(Collective):
    name = "broadcast"

    def result(self, everyones):
        return everyones[self.root]


# ---- on the stream -------------------------------------------------------------------------------


def _work_of(parts):
    """Return the work on a stream that is done when all these have come, together."""
    from .cupy._machine import Held

    class Work(Held):
        has_begun = False

        def is_ready(self):
            if any(part.communicator.is_aborted for part in parts):
                return True
            if not self.has_begun:
                self.has_begun = True
                for part in parts:
                    part.begin()
            return all([part.has_come() for part in parts])

        def __call__(self):
            for place in places:
                machine.on_the_way.remove(place)
            try:
                for part in parts:
                    if not part.communicator.is_aborted:
                        part.end()
                collectives = [part for part in parts if isinstance(part, Collective)]
                if collectives:
                    collectives[0].communicator.clear(collectives)
            except NcclError as error:  # NCCL would not end, or give wrong numbers
                machine.mistakes.append(str(error))

    machine = _machine()
    places = [place for part in parts for place in (part.reads, part.writes) if place[1]]
    machine.on_the_way.extend(places)
    return Work()


def _put(stream, parts):
    """Put them on the stream, which comes to them whatever the host does."""
    machine = _machine()
    queue = machine.stream_at(stream)
    with machine.lock:
        for what, attribute in (("NCCL reads", "reads"), ("NCCL writes", "writes")):
            for part in parts:
                address, num_bytes = getattr(part, attribute)
                if num_bytes:
                    allocation = machine.find(address, num_bytes)
                    start = address - allocation.address
                    machine.check_seen(queue, allocation, what, start, start + num_bytes)
        queue.put(_work_of(parts))
        for address, num_bytes in (part.writes for part in parts):
            if num_bytes:
                allocation = machine.find(address, num_bytes)
                start = address - allocation.address
                machine.note_written(allocation, queue, start, start + num_bytes)
        _asked.append((queue, queue.tick))
        _streams.going_on(queue)


_asked: list[tuple] = []  # (stream, tick) of all work whose end the host has not heard of


def _note_unwatched(seen):
    """The host waits for this in a way that has no end if others do not come."""
    from .cupy._machine import caller

    machine = _machine()
    with machine.lock:
        _asked[:] = [
            (queue, tick) for queue, tick in _asked if machine.known_to_host.get(queue, -1) < tick
        ]
        if any(seen.get(queue, -1) >= tick for queue, tick in _asked):
            unwatched.append(caller())


class _Streams:
    """A thread that brings streams forward, as a GPU does."""

    def __init__(self):
        self._goals: dict = {}  # queue -> place
        self._lock = threading.Lock()
        self._thread = None

    def going_on(self, queue):
        with self._lock:
            self._goals[queue] = queue.num_put
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="stand-in GPU")
                self._thread.start()

    def _run(self):
        while True:
            with self._lock:
                goals = dict(self._goals)
            for queue, place in goals.items():
                if queue.advance(place):
                    with self._lock:
                        if self._goals[queue] == place:
                            del self._goals[queue]
            with self._lock:
                if not self._goals:
                    self._thread = None
                    return
            time.sleep(0.0005)


_streams = _Streams()


def _size(datatype):
    return numpy.dtype(_DTYPES[datatype]).itemsize


def _machine():
    from .cupy._machine import machine

    return machine


def _read(address, num_bytes) -> bytes:
    return bytes((ctypes.c_uint8 * num_bytes).from_address(address)) if num_bytes else b""


def _write(address, content):
    if content:
        ctypes.memmove(address, content, len(content))
