"""InMemoryCommunicationBackend: ranks are threads of one process. For tests, for learning, and for
meshes of 512 ranks.

    def step(backend):
        mine = numpy.full(3, backend.rank, "float32")
        backend.all_reduce(mine)
        return mine

    run_ranks(4, step)          # a list of four arrays of 6.0

It is stricter than MPI: send() returns only when the receiver has taken the message (as large
messages do in MPI), ranks that call different things are told so, and what can never complete is an
error.
"""

import threading
import time
import weakref

from ...errors import CommunicationError
from ..backend import CommunicationBackend
from ..checked import SIGNATURES
from ..checks import check_timeout
from ..collectives import combine
from ..operations import Handle
from .rendezvous import Environment, Group, Wait

DEFAULT_TIMEOUT_SECONDS = 60.0


class InMemoryCommunicationBackend(CommunicationBackend):
    """One thread's end of a world that lives in this process.

    environment_id   backends of the same id and world size meet each other
    Errors: ValueError on a rank outside the world; CommunicationError if the rank is taken.
    """

    # The one registry of the package: threads that share nothing but a name have to find each other
    # somewhere. An environment disappears with the last backend that refers to it.
    _environments: "weakref.WeakValueDictionary[str, Environment]" = weakref.WeakValueDictionary()
    _environments_lock = threading.Lock()

    def __init__(self, rank: int, world_size: int, environment_id: str = "default"):
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"rank {rank} of world size {world_size}; wanted a size >= 1 and 0 <= rank < size"
            )
        with self._environments_lock:
            environment = self._environments.get(environment_id)
            if environment is None or len(environment.left) == environment.world_size:
                environment = Environment(world_size, DEFAULT_TIMEOUT_SECONDS)
                self._environments[environment_id] = environment
            _join(environment, environment_id, rank, world_size)
        self._enter(environment.world, rank)

    def _enter(self, group: Group, rank: int):
        super().__init__(rank, len(group.world_ranks), group.world_ranks)
        self._group = group
        self._is_initialized = False
        self._is_world = group is group.environment.world
        self._num_collectives = 0

    @classmethod
    def of_group(cls, group: Group, rank: int) -> "InMemoryCommunicationBackend":
        """The end of this rank in a group that exists already."""
        backend = cls.__new__(cls)
        backend._enter(group, rank)
        return backend

    @property
    def is_initialized(self) -> bool:
        return self._is_initialized

    @property
    def shares_memory(self) -> bool:
        return True

    @property
    def timeout(self) -> float:
        """Seconds that a rank waits for the others in one verb; one number for all ranks of the
        environment.
        """
        return self._group.environment.timeout

    @timeout.setter
    def timeout(self, seconds: float):
        self._group.environment.timeout = check_timeout(seconds)

    def initialize(self) -> None:
        self._is_initialized = True

    def shutdown(self) -> None:
        """Leave: whoever still waits for this rank gets a CommunicationError."""
        self.close_road()
        if self._is_initialized and self._is_world:
            self._group.environment.leave(self.rank)
        self._is_initialized = False

    def abort(self, message: str, code: int = 1) -> None:
        """Wake all ranks with the message, and raise it here as CommunicationError: a thread cannot
        end a process.
        """
        error = CommunicationError(message)
        self._group.environment.fail(self.world_ranks[self.rank], error)
        raise error

    def exchange_within(self, note, seconds: float | None) -> list | None:
        parting = self._group.environment.parting
        meeting = parting.arrive(
            self.world_ranks[self.rank], 0, "exchange_within", note, lambda given: given
        )
        meeting.done.wait(seconds)
        return meeting.results

    # ---- collectives: bring what you have, wait --------------------------------------------------

    def _arrive(self, signature, given, work):
        self._num_collectives += 1
        meeting = self._group.arrive(self.rank, self._num_collectives, signature, given, work)
        return _WaitHandle(self._group.environment, meeting)

    def _split(self, color, key):
        def work(given):
            members = combine.split(given)
            groups = {
                tuple(m): Group(self._group.environment, tuple(self.world_ranks[r] for r in m))
                for m in members
                if m
            }
            return [
                (groups[tuple(m)], m.index(rank)) if m else None for rank, m in enumerate(members)
            ]

        handle = self._arrive("split", (color, key), work)
        handle.wait()
        place = handle.waited.results[self.rank]
        if place is None:
            return None
        backend = self.of_group(*place)
        backend.initialize()
        return backend

    def _barrier(self):
        self._arrive(SIGNATURES["_barrier"](), None, lambda given: None).wait()

    def _all_reduce(self, array, op):
        self._iall_reduce(array, op, "_all_reduce").wait()

    def _iall_reduce(self, array, op, name="_iall_reduce"):
        signature = SIGNATURES[name](array, op)
        return self._arrive(signature, array, lambda given: combine.all_reduce(given, op))

    def _broadcast(self, array, root):
        self._arrive(
            SIGNATURES["_broadcast"](array, root),
            array,
            lambda given: combine.broadcast(given, root),
        ).wait()

    def _all_gather(self, send, receive, counts):
        self._iall_gather(send, receive, counts, "_all_gather").wait()

    def _iall_gather(self, send, receive, counts, name="_iall_gather"):
        signature = SIGNATURES[name](send, receive, counts)
        return self._arrive(
            signature, (send, receive), lambda given: combine.all_gather(given, counts)
        )

    def _reduce_scatter(self, send, receive, counts, op):
        self._ireduce_scatter(send, receive, counts, op, "_reduce_scatter").wait()

    def _ireduce_scatter(self, send, receive, counts, op, name="_ireduce_scatter"):
        signature = SIGNATURES[name](send, receive, counts, op)
        return self._arrive(
            signature, (send, receive), lambda given: combine.reduce_scatter(given, counts, op)
        )

    def _scatter(self, send, receive, root, counts):
        signature = SIGNATURES["_scatter"](send, receive, root, counts)
        self._arrive(
            signature, (send, receive), lambda given: combine.scatter(given, root, counts)
        ).wait()

    def _gather(self, send, receive, root, counts):
        signature = SIGNATURES["_gather"](send, receive, root, counts)
        self._arrive(
            signature, (send, receive), lambda given: combine.gather(given, root, counts)
        ).wait()

    def _all_to_all(self, send, receive, send_counts, receive_counts, send_starts, receive_starts):
        given = (send, receive, send_counts, receive_counts, send_starts, receive_starts)
        self._arrive(SIGNATURES["_all_to_all"](send), given, combine.all_to_all).wait()

    # ---- between two ranks -----------------------------------------------------------------------

    def _send(self, array, destination, tag):
        self._isend(array, destination, tag).wait()

    def _receive(self, array, source, tag):
        self._irecv(array, source, tag).wait()

    def _isend(self, array, destination, tag):
        message = self._group.post(self.rank, destination, tag, array, is_send=True)
        return _WaitHandle(self._group.environment, message)

    def _irecv(self, array, source, tag):
        message = self._group.post(source, self.rank, tag, array, is_send=False)
        return _WaitHandle(self._group.environment, message)


class _WaitHandle(Handle):
    def __init__(self, environment: Environment, waited: Wait):
        self._environment, self.waited = environment, waited

    def wait(self):
        self._environment.wait(self.waited)

    def test(self):
        if self.waited.done.is_set():
            self._environment.wait(self.waited)  # raises if it failed
        return self.waited.done.is_set()


def run_ranks(world_size: int, fn, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> list:
    """fn(backend) on every rank, each in a thread of its own; the results in rank order.

    timeout   seconds that a rank waits for the others in one verb
    Errors: the first failure in time, itself, with a note that names its rank; the other ranks are
    woken by it.
    """
    environment = Environment(world_size, check_timeout(timeout))
    results = [None] * world_size
    threads = [
        threading.Thread(
            target=_run_rank,
            args=(environment, rank, fn, results),
            daemon=True,
            name=f"rank {rank}",
        )
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    try:
        _join_threads(threads, environment)
    except BaseException as error:  # KeyboardInterrupt in the caller: the ranks must end too
        environment.fail(0, error)
        raise
    if environment.failures:
        rank, error = environment.failures[0]
        error.add_note(f"raised on rank {rank} of {world_size}")
        raise error
    return results


def _run_rank(environment, rank, fn, results):
    backend = InMemoryCommunicationBackend.of_group(environment.world, rank)
    backend.initialize()
    try:
        results[rank] = fn(backend)
    except BaseException as error:  # also SystemExit: it must not vanish in a thread
        environment.fail(rank, error)
    finally:
        environment.leave(rank)


def _join_threads(threads, environment):
    """Wait for all; once one has failed, no longer than the timeout for the rest, which may compute
    and not listen.
    """
    deadline = None
    for thread in threads:
        while thread.is_alive() and not (deadline and time.monotonic() > deadline):
            thread.join(0.1)
            if environment.failures and deadline is None:
                deadline = time.monotonic() + environment.timeout


def _join(environment, environment_id, rank, world_size):
    with environment.lock:
        if environment.world_size != world_size:
            raise ValueError(
                f"environment {environment_id!r} has {environment.world_size} ranks, not {world_size}"
            )
        if rank in environment.joined:
            raise CommunicationError(
                f"rank {rank} of environment {environment_id!r} is taken; give another environment_id"
            )
        environment.joined.add(rank)
