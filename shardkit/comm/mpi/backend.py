"""MPICommunicationBackend: a group of MPI ranks, from initialize() to shutdown().

    backend = MPICommunicationBackend()            # imports mpi4py, which calls MPI_Init; importing
                                                   shardkit does not
    backend.initialize()                           # collective: makes communicators of its own

The verbs use a duplicate of the user's communicator (channel.py, or the channels of ../node around
it); messages about ranks that leave or fail go over another one (job.py).
"""

import time
from contextlib import nullcontext
from typing import Any

from ...annotations import FilePath
from ..backend import WORLD, CommunicationBackend
from ..channel import WrappedChannel
from ..checks import check_timeout
from ..under_way import check_alive, check_not_forked
from ..watch.attendance import attendance
from ..watch.progress import Awaited
from ..watch.warden import NEXT_TO_WATCHDOG_SECONDS
from ..watch.watchdog import Watchdog
from .ending import FORWARDING_SECONDS, end_mpi
from .exits import exits
from .guard import SILENT_SECONDS
from .job import Job, compare_calls, shared_folder
from .launch import check_launch
from .library import import_mpi, parent_of

TIMEOUT_SECONDS = 600.0
ON_FAILURE = ("abort", "raise")


class MPICommunicationBackend(CommunicationBackend):
    """One MPI rank's end of a communicator.

    Parameters
    ----------
    comm
        An mpi4py communicator, for example of a running simulation, whose job stays as it is: how
        long its ranks work, and how they end, is its own business; None: all ranks that mpiexec or
        srun started.
    timeout
        Seconds that one call may take, and the slowest rank may be late, before the job is ended
        with a report; also at the start (MPI_Init, initialize()) and at the end (shutdown(),
        MPI_Finalize). May be set at any time.
    on_failure
        What follows if a rank dies, or leaves while others need it. "abort": the job ends, with all
        ranks that mpiexec or srun started, and a message names that rank; no call takes longer than
        the timeout. "raise": ranks of `comm` that wait for it get a CommunicationError that names
        it, and the program goes on, on a communicator of the others, if its launcher lets it; how
        long a call takes is not limited. None: "abort" without a communicator, else "raise".
    outlives_ranks
        The ranks that live go on when others die (elastic.py): all calls go through MPI,
        which reports deaths.

    Attributes
    ----------
    job, carrier
        What all groups share; the channel that is used once the first calls are compared.

    Raises
    ------
    CommunicationError
        If mpi4py is missing, or if the launcher started more ranks than MPI sees.
    ValueError
        If comm, on_failure or timeout is no such value.
    """

    def __init__(
        self,
        comm: Any = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        on_failure: str | None = None,
        outlives_ranks: bool = False,
    ) -> None:
        on_failure = check_on_failure(on_failure, "abort" if comm is None else "raise")
        mpi = import_mpi(check_timeout(timeout))
        parent = parent_of(mpi, comm)
        if comm is None:
            check_launch(parent.size, mpi.get_vendor()[0])
        super().__init__(parent.rank, range(parent.size), timeout=timeout)
        ends_job = on_failure == "abort"
        self.job = Job(
            mpi,
            parent,
            owns_job=ends_job and comm is None,
            ends_job=ends_job,
            outlives_ranks=outlives_ranks,
        )
        self.carrier: Any = None
        if self.job.is_guarded:
            attendance().guard_job(lambda: self.timeout, survives=outlives_ranks)
        if ends_job:
            exits().add(self)

    @classmethod
    def of_group(
        cls, parent: "MPICommunicationBackend", messages: Any
    ) -> "MPICommunicationBackend":
        """Return the group of these messages, initialized. Collective over it."""
        group, members = cls.__new__(cls), messages.members
        CommunicationBackend.__init__(
            group, messages.rank, members.world_ranks, key=members.key, parent=parent
        )
        group.job = parent.job
        group.open(messages)
        return group

    @property
    def is_world(self) -> bool:
        """False for what split() makes."""
        return self.group_key == WORLD

    @property
    def local_rank(self) -> int:
        return self.job.local_rank

    @property
    def messages(self) -> Any:
        """The MPI channel, which the carrier is, or is around."""
        carrier = self.carrier
        return carrier.inside if isinstance(carrier, WrappedChannel) else carrier

    def open(self, messages: Any) -> None:
        """Carry the verbs over these messages, or shared memory around them. Collective."""
        self.carrier = self.job.carrier(messages)
        compare_calls(self, messages, self.carrier)

    def _open_group(self, place, key):
        return self.of_group(self, self.job.group_messages(self.messages, place, key))

    def initialize(self) -> None:
        if self.channel is None:
            check_not_forked(self, "initialize()")
            with self.job.attending("initialize()", self.timeout):
                self.open(self.job.world_messages(self.progress, self.group_key))
                self.job.open_guard(self)
                self.job.meet_at_end()
                if self.job.is_guarded or self.job.ends_job:
                    self.keep_ledger(shared_folder(self))

    def shutdown(self) -> None:
        if self.channel is None:
            return
        if self.job.peers.failure is None:
            self._close()
        elif self.is_world:  # the others have their error, and some are gone: nobody can be met
            self.job.guard.forsake()
        self.use(None)
        self.job.end_watch(self.group_key)
        if self.is_world:
            self.job.close()
            if self.job.ends_job:
                exits().remove(self)

    def _close(self):
        """Free all that ranks have made together. Collective; watched to its end."""
        limit = self.timeout + NEXT_TO_WATCHDOG_SECONDS
        attending = self.job.attending("shutdown()", limit) if self.is_world else nullcontext()
        with attending, self.verb("shutdown" if self.is_world else "close"):
            if self.is_world:  # noted and watched: a rank may never come here
                self.job.guard.meet()  # no rank is in another verb any more
            self.use_gpu_transport(None)
            self.carrier.close()
            if self.is_world:
                self.job.guard.stop()

    def revoke(self) -> None:
        """Let every call on this backend and its groups fail, on all ranks, so that none waits.

        MPI must have ULFM. No communication to wait for, and no use of the backend after it.
        """
        self.job.end_watch(self.group_key)
        self.progress.gpu.abort()
        self.job.revoke()

    def is_revoked(self) -> bool:
        """Return True once a rank has called revoke(), as far as this one has heard of it."""
        return self.job.is_revoked()

    def keep_ledger(self, folder: FilePath | None) -> None:
        """Note every call in a file there, and watch over how long calls take. No communication.

        Parameters
        ----------
        folder
            One that all ranks see, if there is one: then reports, and `shardkit inspect hang
            FOLDER`, cover all ranks. None, or one that cannot be written: the calls of this rank
            are noted in memory only.
        """
        check_alive(self, "keep_ledger")
        watchdog = Watchdog(
            self.progress,
            folder,
            self.rank,
            self.world_size,
            seconds=lambda: self.timeout,
            abort=self.abort,
            seconds_left=lambda: self.seconds_left(),
            patience=NEXT_TO_WATCHDOG_SECONDS if self.job.outlives_ranks else 0.0,
            place=self.progress.places.of(self.world_ranks[self.rank]),
        )
        self.job.watch(self.group_key, watchdog)

    def look_at_others(self, awaited: Awaited | None = None) -> None:
        if awaited is not None:
            self.job.check_living(awaited.doing)
        elif (watchdog := self._watchdog) is not None:
            watchdog.look_at_others()

    def suspects(self) -> str:
        """Return a phrase that names the ranks for which others wait, as far as ledgers tell."""
        watchdog = self._watchdog
        return "all ranks are there" if watchdog is None else watchdog.suspects()

    @property
    def _watchdog(self) -> Watchdog | None:
        return self.job.watchdogs.get(self.group_key)

    def abort(self, message: str, code: int = 1) -> None:
        self.progress.gpu.end_job()
        if _may_speak(self.job.guard):
            self.say(message)
            time.sleep(FORWARDING_SECONDS)
        end_mpi(self.job.mpi, code)

    def exchange_within(self, note: Any, seconds: float | None) -> list | None:
        guard = self.job.guard
        if guard is None or guard.has_stopped:
            return attendance().exchange_within(note, seconds)
        return guard.exchange_within(note, seconds)


def _may_speak(guard) -> bool:
    """Return True for one rank of the node; the others leave it the time to."""
    is_first = attendance().may_speak()
    if is_first is None:
        return guard is None or guard.may_speak()
    if not is_first:
        time.sleep(SILENT_SECONDS)
    return is_first


def check_on_failure(given: str | None, default: str) -> str:
    """Return what follows a failure; None: the default. Errors: ValueError."""
    if given not in (None, *ON_FAILURE):
        raise ValueError(
            f'on_failure = {given!r}; wanted "abort", which ends the job, "raise", or None: '
            '"abort" without a communicator, else "raise"'
        )
    return default if given is None else given
