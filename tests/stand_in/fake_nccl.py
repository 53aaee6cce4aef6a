"""Stands for cupy.cuda.nccl between ranks that are threads, on the memory of the stand-in for CuPy.

    with pretended_gpu(num_devices=3), fake_nccl.installed():
        run_ranks(3, ...)

As strict as NCCL: two ranks on one GPU are refused, collectives must agree, a send blocks until it
is received unless both are in one group, a receive must have the size of its send. Its sums are
added in an order of its own (from the last rank down), and what it reads must come before it on the
stream.
"""

import ctypes
import itertools
import operator
import threading
from collections import deque
from contextlib import contextmanager

import numpy

LIMIT_SECONDS = 20.0
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
_worlds: dict[tuple, "World"] = {}
_numbers = itertools.count()
_here = threading.local()


class NcclError(RuntimeError):
    """What NCCL answers."""


@contextmanager
def installed():
    """`from cupy.cuda import nccl` finds this module."""
    import sys

    cuda, this = sys.modules["cupy.cuda"], sys.modules[__name__]
    calls.clear()
    cuda.nccl = this
    try:
        yield this
    finally:
        del cuda.nccl


def get_unique_id():
    number = next(_numbers)
    return tuple([number % 100, number // 100] + [-1] * 126)


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
        _run(waiting)


class World:
    """What the communicators of one unique id share."""

    def __init__(self, size):
        self.size, self.changed = size, threading.Condition()
        self.devices: dict[int, int] = {}
        self.boxes: dict[tuple[int, int], deque] = {}  # (from, to) -> messages
        self.meetings: dict[
            int, dict[int, tuple]
        ] = {}  # number of a collective -> {rank: what it brought}

    def wait_for(self, holds):
        """Return when it holds; the condition is held."""
        if not self.changed.wait_for(holds, LIMIT_SECONDS):
            raise NcclError("NCCL_ERROR_INTERNAL_ERROR: nobody came")


class NcclCommunicator:
    """One rank's end."""

    def __init__(self, ndev, commId, rank):
        assert len(commId) == 128
        self._rank, self._count, self._alive = rank, 0, True
        with World.lock:
            self._world = _worlds.setdefault(commId, World(ndev))
        world = self._world
        with world.changed:
            world.devices[rank] = _machine().device
            world.changed.notify_all()
            world.wait_for(lambda: len(world.devices) == ndev)
        if len(set(world.devices.values())) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")  # Duplicate GPU detected

    def destroy(self):
        self._alive = False

    def size(self):
        return self._world.size

    def rank_id(self):
        return self._rank

    def check_async_error(self):
        """All is well."""

    def send(self, sendbuf, count, datatype, peer, stream):
        self._ask(("send", sendbuf, count * _size(datatype), peer, stream))

    def recv(self, recvbuf, count, datatype, peer, stream):
        self._ask(("recv", recvbuf, count * _size(datatype), peer, stream))

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        self._ask(("allReduce", sendbuf, recvbuf, count, datatype, op, None, stream))

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        self._ask(("reduce", sendbuf, recvbuf, count, datatype, op, root, stream))

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        self._ask(("reduceScatter", sendbuf, recvbuf, recvcount, datatype, op, None, stream))

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        self._ask(("allGather", sendbuf, recvbuf, count, datatype, None, None, stream))

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        self._ask(("broadcast", sendbuff, recvbuff, count, datatype, None, root, stream))

    def _ask(self, what):
        if not self._alive:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        calls.append((self._rank, what[0]))
        if getattr(_here, "depth", 0):
            _here.waiting.append((self, what))
        else:
            _run([(self, what)])

    # ---- messages --------------------------------------------------------------------------------

    def post(self, address, num_bytes, peer, stream):
        """A message for the peer; it stays in the memory of the sender until it is received."""
        _read(address, num_bytes, stream)
        message = {"address": address, "num_bytes": num_bytes, "is_received": False}
        with self._world.changed:
            self._world.boxes.setdefault((self._rank, peer), deque()).append(message)
            self._world.changed.notify_all()
        return message

    def take(self, address, num_bytes, peer, stream):
        """The peer's next message."""
        world, box = self._world, (peer, self._rank)
        with world.changed:
            world.wait_for(lambda: world.boxes.get(box))
            message = world.boxes[box].popleft()
            if message["num_bytes"] != num_bytes:
                raise NcclError(
                    f"rank {peer} sends {message['num_bytes']} bytes, rank {self._rank} receives "
                    f"{num_bytes}"
                )
            _write(address, numpy.array(_bytes(message["address"], num_bytes)), stream)
            message["is_received"] = True
            world.changed.notify_all()

    def wait_until_received(self, message):
        """As the kernel of a send does."""
        with self._world.changed:
            self._world.wait_for(lambda: message["is_received"])

    # ---- collectives -----------------------------------------------------------------------------

    def meet(self, name, source, target, count, datatype, op, root, stream):
        """Bring what this rank gives, and take what it gets."""
        world, factor = self._world, self._world.size if name == "reduceScatter" else 1
        dtype = numpy.dtype(_DTYPES[datatype])
        num_bytes = count * factor * dtype.itemsize
        gives = root in (None, self._rank) or name == "reduce"
        given = _read(source, num_bytes, stream) if gives else b""
        number, self._count = self._count, self._count + 1
        with world.changed:
            meeting = world.meetings.setdefault(number, {})
            meeting[self._rank] = (name, count, datatype, op, root), given
            world.changed.notify_all()
            world.wait_for(lambda: len(meeting) == world.size)
        if len({signature for signature, _ in meeting.values()}) > 1:
            raise NcclError(
                f"ranks call {sorted({signature[0] for signature, _ in meeting.values()})}"
            )
        everyones = [numpy.frombuffer(meeting[rank][1], dtype) for rank in range(world.size)]
        result = self._result(name, everyones, op, root)
        if result is not None:
            _write(target, result.view(numpy.uint8), stream)

    def _result(self, name, everyones, op, root):
        if name == "broadcast":
            return everyones[root]
        if name == "allGather":
            return numpy.concatenate(everyones)
        if name == "reduce" and root != self._rank:
            return None
        total = everyones[-1]
        for array in everyones[-2::-1]:
            total = _ADD[op](total, array)
        return (
            numpy.ascontiguousarray(numpy.split(total, self._world.size)[self._rank])
            if name == "reduceScatter"
            else total
        )


World.lock = threading.Lock()


def _run(asked):
    """Operations of one group: messages come to an end together, collectives in order."""
    sent = [
        (communicator, communicator.post(*what[1:]))
        for communicator, what in asked
        if what[0] == "send"
    ]
    for communicator, what in asked:
        if what[0] == "recv":
            communicator.take(*what[1:])
    for communicator, message in sent:
        communicator.wait_until_received(message)
    for communicator, what in asked:
        if what[0] not in ("send", "recv"):
            communicator.meet(*what)


def _size(datatype):
    return numpy.dtype(_DTYPES[datatype]).itemsize


def _machine():
    from .cupy import _machine

    return _machine


def _bytes(address, num_bytes):
    return (ctypes.c_uint8 * num_bytes).from_address(address) if num_bytes else b""


def _read(address, num_bytes, stream) -> bytes:
    """What is there when the stream comes to it."""
    machine = _machine()
    queue = machine.stream_at(stream)
    queue.finish()
    if num_bytes:
        allocation = machine.find(address, num_bytes)
        start = address - allocation.address
        machine.check_seen(queue, allocation, "NCCL reads", start, start + num_bytes)
    return bytes(_bytes(address, num_bytes))


def _write(address, values, stream):
    machine = _machine()
    queue = machine.stream_at(stream)
    queue.finish()
    allocation = machine.find(address, max(values.size, 1))
    if values.size:
        start = address - allocation.address
        machine.check_seen(queue, allocation, "NCCL writes", start, start + values.size)
        machine.check_not_on_the_way(address, address + values.size)
        ctypes.memmove(address, values.ctypes.data, values.size)
        queue.tick += 1
        machine.note_written(allocation, queue, start, start + values.size)
