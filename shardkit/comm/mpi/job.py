"""Job: what an MPI backend and all groups split from it share.

communicators   the user's (parent), one for each group, one for the guard
this rank       its node, the cores of the node, who watches over it
"""

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from ...environment import checked_mode
from ...errors import CommunicationError
from ...files.notes import tell
from ..alone import AloneChannel
from ..checks import ranks_per_node
from ..collectives.rounds import DIRECT
from ..compared import CallComparison, ComparedChannel, ComparedUnderWay, Members
from ..node import open_node
from ..node.between import RoundsChannel
from ..node.levels import LevelsChannel
from ..ranks import compact
from ..seats import Seat, have_cores, settle_threads
from ..watch.attendance import attendance
from ..watch.closing import note_closed, note_open
from ..watch.own_warden import unwatched_text
from ..watch.places import LedgerPlaces
from ..watch.watchdog import Watchdog
from .channel import MPIChannel
from .ending import ending
from .guard import JobGuard
from .peers import Peers

NO_HOME = -1  # of a rank that sees no memory of its node


class Job:
    """One rank's part. Methods are collective, unless they say otherwise, but attending(), revoke()
    and is_revoked().

    mpi              mpi4py's module
    parent           the communicator that the backend was made for
    owns_job         it was started by mpiexec or srun for this backend, which guards it
    ends_job         the failure of a rank ends it, for others would wait; else they raise
    outlives_ranks   the ranks that live go on when others die: calls go through messages only
    watchdogs        of the backend and its groups, by their keys; the last one notes the calls
    """

    def __init__(self, mpi, parent, *, owns_job: bool, ends_job: bool, outlives_ranks: bool):
        self.mpi, self.parent = mpi, parent
        self.owns_job, self.ends_job = owns_job, ends_job
        self.outlives_ranks = outlives_ranks
        self.local_rank = parent.rank
        self.peers = Peers(mpi, parent)
        self.guard: Any = None  # a JobGuard, from open_guard()
        self.watchdogs: dict[str, Watchdog] = {}
        self._node = None  # of this rank, if it sees its neighbors' memory
        # of all ranks of the world: the first rank of its node, if it sees their memory
        self._homes: Sequence[int] = ()
        self._shares_cores = False
        self._communicators: list = []

    def attending(self, doing: str, seconds: float):
        """Return a context manager: wardens watch what all ranks do outside of the verbs."""
        return attendance().waiting(doing, seconds) if self.is_guarded else nullcontext()

    @property
    def is_guarded(self) -> bool:
        """True unless the job belongs to another program."""
        return self.owns_job or self.outlives_ranks

    def watch(self, key: str, watchdog) -> None:
        """Let it watch over the calls of a group, in place of one of before. No communication."""
        before = self.watchdogs.pop(key, None)
        self.watchdogs[key] = watchdog
        self._close_watchdog(before)

    def end_watch(self, key: str) -> None:
        """Close a group's watchdog, if it has one. No communication."""
        self._close_watchdog(self.watchdogs.pop(key, None))

    def _close_watchdog(self, watchdog) -> None:
        """Close it, if there is one; the last of the others notes the calls from now on."""
        if watchdog is not None:
            watchdog.close()
        if self.watchdogs:
            [*self.watchdogs.values()][-1].take_over()

    def find_node(self, places: LedgerPlaces) -> None:
        """Learn this rank's place on its node, and share the node's cores and memory.

        places   of the ledgers of all ranks, which are learned too: a file belongs to one node, and
                 where ranks are numbered anew, it keeps a number in MPI_COMM_WORLD for its name
        """
        node = self.parent.Split_type(self.mpi.COMM_TYPE_SHARED)
        self.local_rank = node.rank
        if self.owns_job:
            settle_threads(node)
        self._node = None if self.outlives_ranks else open_node(node, self.parent.rank)
        started = self.mpi.COMM_WORLD.rank if self.outlives_ranks else self.parent.rank
        numbers, seats = zip(*node.allgather((started, Seat.here(1))))
        home = NO_HOME if self._node is None else self._node.members[0]
        warden = attendance().warden
        own = home, min(numbers), not have_cores(seats), warden and warden.ended
        homes, nodes, crowded, unwatched = zip(*self.parent.allgather(own))
        self._homes = compact(homes)
        places.learn(compact(nodes), self.parent.bcast(int.from_bytes(os.urandom(7))))
        self._shares_cores = any(crowded)
        _warn_of_unwatched(unwatched)
        node.Free()

    def world_messages(self, progress, key: str) -> MPIChannel:
        """Return the messages of all ranks, on a duplicate of the user's communicator."""
        communicator = self._own(self.parent.Dup())
        communicator.Set_errhandler(self.mpi.ERRORS_RETURN)  # as exceptions
        self.find_node(progress.places)
        members = Members(key, compact(range(communicator.size)))
        return MPIChannel(
            self.mpi,
            communicator,
            members,
            progress,
            shares_cores=self._shares_cores,
            look=partial(self.peers.look, progress) if self._looks else None,
        )

    @property
    def _looks(self) -> bool:
        """True if ranks look for lost ones while they wait: nobody, nor MPI, ends that else."""
        return not self.ends_job and not self.outlives_ranks

    def group_messages(self, messages: MPIChannel, communicator, key: str) -> MPIChannel:
        """Return the messages of some of these ranks."""
        return messages.of_part(self._own(communicator), key)

    def open_guard(self, backend) -> None:
        """Begin to watch: from now on no rank waits for a dead one."""
        communicator = self._own(self.parent.Dup())
        communicator.Set_errhandler(self.mpi.ERRORS_RETURN)
        self.peers.speak_on(communicator)
        self.guard = JobGuard(backend, self.mpi, communicator, self.peers, is_active=self.ends_job)
        self.guard.start()
        note_open(self.peers.number, backend.progress.calls_made)

    def meet_at_end(self) -> None:
        """Let all ranks wait for each other when they end, if the job is guarded."""
        if self.is_guarded:
            ending().meet_on(self.parent, again=self.outlives_ranks)
        else:
            attendance().be_guest(+1)

    def close(self) -> None:
        """Let go of the node's memory; a guest leaves the job. No communication."""
        self._node = None
        note_closed(self.peers.number)
        if not self.is_guarded:
            attendance().be_guest(-1)

    def carrier(self, messages: MPIChannel):
        """Return the best channel for a group: memory of its node, levels, or its messages."""
        if messages.size == 1:
            return AloneChannel(messages)
        of_world = [None if home == NO_HOME else home for home in self._homes]
        homes = [of_world[rank] for rank in messages.members.world_ranks]
        if len(set(homes)) == 1 and homes[0] is not None:
            return self._node.channel(messages) or messages
        here = ranks_per_node(homes)
        if here is not None:
            return self._levels(messages, here)
        return RoundsChannel(messages) if messages.size > DIRECT else messages

    def _levels(self, messages, here: int):
        rank = messages.rank
        key = messages.members.key
        split = messages.communicator.Split
        near = self.group_messages(messages, split(rank // here, rank), f"{key}/node")
        far = self.group_messages(messages, split(rank % here, rank), f"{key}/nodes")
        memory = self._node.channel(near, calls_before_opening=0)
        if all(messages.communicator.allgather(memory is not None)):
            return LevelsChannel(messages, memory, far)
        (near if memory is None else memory).close()
        far.close()
        return messages

    def _own(self, communicator):
        """Note a communicator that revoke() must reach; forget those that were freed."""
        alive = [other for other in self._communicators if other != self.mpi.COMM_NULL]
        self._communicators = [*alive, communicator]
        return communicator

    def revoke(self) -> None:
        """Let every call fail, on all ranks; MPI must have ULFM. No communication."""
        for communicator in self._communicators:
            if communicator != self.mpi.COMM_NULL and not communicator.Is_revoked():
                communicator.Revoke()

    def check_living(self, doing: str) -> None:
        """Raise if a rank has died, where the others go on; else whoever watches ends the job.

        doing   what this rank waits for in no call of MPI, which would raise
        """
        if self._looks:
            self.peers.look(doing=doing)
        if self.outlives_ranks and (self.is_revoked() or self.parent.Get_failed().size):
            raise CommunicationError(f"{doing}: a rank has died") from self.mpi.Exception(
                self.mpi.ERR_PROC_FAILED
            )

    def is_revoked(self) -> bool:
        """Return True once a rank has called revoke(), as far as this one knows."""
        return any(
            communicator.Is_revoked()
            for communicator in self._communicators
            if communicator != self.mpi.COMM_NULL
        )


def _warn_of_unwatched(reasons) -> None:
    """Warn of the ranks that nobody watches; reasons: of each rank, None if it is watched."""
    found = {rank: reason for rank, reason in enumerate(reasons) if reason is not None}
    if found:
        warnings.warn(unwatched_text(found), RuntimeWarning, stacklevel=2)


def _gathered(messages: MPIChannel, note) -> list:
    """Return the notes of all ranks, once all have come. Collective."""
    if messages.look is not None:
        messages.plan("barrier")()
    return messages.communicator.allgather(note)


def compare_calls(group, messages: MPIChannel, carrier) -> None:
    """Let the group's calls be compared: all of them in checked mode, else the first ones."""
    if checked_mode():
        comparison = CallComparison(messages.members, partial(_gathered, messages))
        under_way = ComparedUnderWay(group.progress, comparison)
        group.use(ComparedChannel(carrier, comparison.compare), under_way)
    else:
        messages.comparison.begin_first(lambda: group.use(carrier))
        group.use(ComparedChannel(carrier, messages.comparison.compare_first))


def shared_folder(group):
    """Return a temporary folder for the ledgers of all ranks, as far as nodes share one.

    None: rank 0, or this one, can have none there; the ledgers are kept in memory then.
    """
    path = group.broadcast_object(attendance().folder)
    try:
        if path is not None:
            attendance().share(path)
    except OSError as error:
        tell(f"warning: this rank cannot use the folder {path}: {error.strerror or error}")
        return None
    return path
