"""InMemoryCommunicationBackend: ranks are threads of one process.

For tests, for learning, and for meshes of 512 ranks.

    def step(backend):
        mine = numpy.full(3, backend.rank, "float32")
        backend.all_reduce(mine)
        return mine

    run_ranks(4, step)          # a list of four arrays of 6.0

It is stricter than MPI: send() returns only when the receiver has taken the message (as large
messages do in MPI), ranks that make different calls get an error, and so does what can never
complete.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import CommunicationError
from ...public import import_all
from ...refusal import run_beside
from ..backend import CommunicationBackend
from ..checks import check_timeout
from ..under_way import check_not_forked
from ..watch.progress import Awaited
from .channel import ThreadChannel
from .rendezvous import Environment, Environments, Group

DEFAULT_TIMEOUT_SECONDS = 60.0


T = TypeVar("T")


class InMemoryCommunicationBackend(CommunicationBackend):
    """One thread's end of a world that lives in this process.

    Parameters
    ----------
    rank, world_size
        Position of this thread, and the number of threads.
    environment_id
        Backends of the same id and world size meet each other.

    Raises
    ------
    ValueError
        On a rank outside the world.
    CommunicationError
        If the rank is taken.
    """

    _environments = Environments()  # the one registry of the package

    def __init__(self, rank: int, world_size: int, environment_id: str = "default") -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"rank {rank} of world size {world_size}; wanted a size >= 1 and 0 <= rank < size"
            )
        environment = self._environments.join(
            environment_id, rank, world_size, DEFAULT_TIMEOUT_SECONDS
        )
        super().__init__(rank, environment.world.world_ranks)
        self._group = environment.world

    @classmethod
    def of_group(cls, group: Group, rank: int, **options: Any) -> "InMemoryCommunicationBackend":
        """Return the end of this rank in a group that exists already; options: as for its base."""
        backend = cls.__new__(cls)
        CommunicationBackend.__init__(backend, rank, group.world_ranks, **options)
        backend.join(group)
        return backend

    def join(self, group: Group) -> None:
        """Meet the ranks of this group; before initialize()."""
        self._group = group

    def _open_group(self, place, key):
        group = self.of_group(*place, key=key, parent=self)
        group.initialize()
        return group

    @property
    def timeout(self) -> float:
        """Seconds that a rank waits for the others in one verb; the same for all ranks."""
        return self._group.environment.timeout

    @timeout.setter
    def timeout(self, seconds: float):
        self._group.environment.limit(check_timeout(seconds))

    def work(self) -> None:
        self._group.environment.worked[self.world_ranks[self.rank]] = time.monotonic()

    def initialize(self) -> None:
        if self.channel is None:
            check_not_forked(self, "initialize()")
            self._group.environment.progress[self.world_ranks[self.rank]] = self.progress
            self.use(ThreadChannel(self._group, self.rank))

    def shutdown(self) -> None:
        """Leave: ranks that still wait for this one get a CommunicationError."""
        self.use_gpu_transport(None)
        environment = self._group.environment
        if self.is_initialized and self._group is environment.world:
            environment.leave(self.rank)
        self.use(None)

    def abort(self, message: str, code: int = 1) -> None:
        """Wake all ranks with the message, and raise it here as CommunicationError.

        A thread cannot end a process.
        """
        error = CommunicationError(message)
        self._group.environment.fail(self.world_ranks[self.rank], error)
        raise error

    def look_at_others(self, awaited: Awaited | None = None) -> None:
        if awaited is not None:
            self._group.environment.check(awaited)

    def exchange_within(self, note: Any, seconds: float | None) -> list | None:
        parting = self._group.environment.parting
        meeting = parting.arrive(
            self.world_ranks[self.rank], 0, "exchange_within", note, lambda given: given
        )
        meeting.done.wait(seconds)
        return meeting.results


def run_ranks(
    world_size: int,
    fn: Callable[[InMemoryCommunicationBackend], T],
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
) -> list[T]:
    """Call fn(backend) on every rank, each in a thread; return the results in rank order.

    Parameters
    ----------
    world_size
        How many ranks.
    fn
        Function (backend), called once on each rank.
    timeout
        Seconds that a rank waits for the others in one verb.

    Raises
    ------
    BaseException
        The first failure in time, itself, with a note that names its rank; it wakes the others.

    Examples
    --------
    >>> def rank(backend):
    ...     total = np.full(2, backend.rank + 1.0)
    ...     backend.all_reduce(total, op="sum")
    ...     return total
    >>> sk.run_ranks(3, rank)[0]
    array([6., 6.])
    """
    import_all(__name__.partition(".")[0])
    environment = Environment(world_size, check_timeout(timeout))
    results: list[Any] = [None] * world_size
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
        rank, failure = environment.failures[0]
        failure.add_note(f"raised on rank {rank} of {world_size}")
        raise failure
    return results


def _run_rank(environment, rank, fn, results):
    run_beside(environment.world_size)
    backend = InMemoryCommunicationBackend.of_group(environment.world, rank)
    backend.initialize()
    try:
        results[rank] = fn(backend)
    except BaseException as error:  # also SystemExit: it must not vanish in a thread
        environment.fail(rank, error)
    finally:
        environment.leave(rank)


def _join_threads(threads, environment):
    """Wait for all threads; once one has failed, no longer than the timeout for the rest.

    They may compute and not listen.
    """
    deadline = None
    for thread in threads:
        while thread.is_alive() and not (deadline and time.monotonic() > deadline):
            thread.join(0.1)
            if environment.failures and deadline is None:
                deadline = time.monotonic() + environment.timeout
