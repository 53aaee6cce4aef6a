"""CommunicationBackend: one rank's end of a group of ranks, and the life of that group.

    Verbs                             all_reduce, send, isend, ...               verbs.py
      CommunicationBackend            the group, objects, split(), watching      this file
        MPICommunicationBackend       channels over MPI and shared memory        mpi/backend.py
        InMemoryCommunicationBackend  channels between threads                   threads/backend.py

A new kind of ranks needs a Channel (channel.py) and a subclass that opens it.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from operator import index
from pathlib import Path
from typing import Any

from ..annotations import Array, DTypeLike, FilePath
from ..files.notes import tell
from ..forks import disown, own
from . import checks, objects
from .channel import Channel, NotedCalls
from .life import Lifetime
from .staging import Staging
from .under_way import check_alive
from .verbs import Verbs
from .watch.ledger import Ledger
from .watch.progress import Awaited, Progress, UnderWay

WORLD = "world"  # the key of a group that is split from no other


class CommunicationBackend(Verbs, Lifetime):
    """One rank's end of a group of ranks.

    Parameters
    ----------
    rank, world_ranks
        Position in the group, and the ranks of the group in the first backend.
    key
        The same on all ranks of a group, different between groups.
    parent
        The backend that the group is split from; None: the group is a world.
    timeout
        Of a world.

    Attributes
    ----------
    timeout
        Seconds that a rank may wait for the others in one verb; may be set at any time, here or on
        a group from split().
    seconds_left
        Function () -> seconds until the batch system kills the job, for this rank's watchdog; may
        be set, here or on a group from split().
    """

    def __init__(
        self,
        rank: int,
        world_ranks: Sequence[int],
        *,
        key: str = WORLD,
        parent: "CommunicationBackend | None" = None,
        timeout: float = inf,
    ) -> None:
        super().__init__(
            rank,
            world_ranks,
            key,
            staging=Staging() if parent is None else parent.staging,
            progress=Progress(timeout) if parent is None else parent.progress,
        )

    @property
    def local_rank(self) -> int:
        """Position among the ranks of the node; threads share one."""
        return self.world_ranks[self.rank]

    # ---- life ------------------------------------------------------------------------------------

    @property
    def is_initialized(self) -> bool:
        """True between initialize() and shutdown()."""
        return self.channel is not None

    def close(self) -> None:
        """Do what shutdown() does; the usual name for a group that split() made. Collective."""
        self.shutdown()

    @abstractmethod
    def abort(self, message: str, code: int = 1) -> None:
        """Print the message and end all ranks of the job. Does not return normally.

        Parameters
        ----------
        message
            For standard error.
        code
            Exit code of the job.
        """

    @abstractmethod
    def exchange_within(self, note: Any, seconds: float | None) -> list | None:
        """Return the notes (small objects) of all ranks of the world.

        None if not all of them call this within the time (None: no time limit). For ranks that fail
        or leave: it does not disturb a collective that is under way.

        Parameters
        ----------
        note
            A small object that can be pickled.
        seconds
            Time limit; None: there is none.
        """

    def use(self, channel: Channel | None, under_way: UnderWay | None = None) -> None:
        """Carry the verbs over this channel from now on. On all ranks, between two calls.

        Parameters
        ----------
        channel
            An open one; None: the verbs cannot be called.
        under_way
            Context manager around verbs, from now on; None: as before.
        """
        self.noted.close()
        self.channel = channel
        self.noted = NotedCalls() if channel is None else channel.noted_calls(self)
        self.under_way = self.under_way if under_way is None else under_way
        if channel is None:
            disown(self)
        elif self.world_size > 1:
            own(self, _close_channel)

    def split(self, color: int | None, key: int = 0) -> "CommunicationBackend | None":
        """Return the group of the ranks that gave the same color, ordered by (key, rank).

        None for color None. Collective over this backend. The group is initialized; close() it on
        all its ranks.

        Parameters
        ----------
        color
            At least 0; None: this rank is in no group.
        key
            Ranks of a group are ordered by it, then by their rank.
        """
        with self.verb("split"):
            if color is not None and index(color) < 0:
                raise ValueError(
                    f"color {color} is negative; wanted 0 or more, or None to stay out"
                )
            number = self.progress.num_calls(self.group_key)
            place = self.channel.split(color, index(key))
            if place is None:
                return None
            return self._open_group(place, f"{self.group_key}/{number}.{color}")

    @abstractmethod
    def _open_group(self, place, key: str) -> "CommunicationBackend":
        """Return the initialized group at the place that channel.split() found. Collective."""

    # ---- watching --------------------------------------------------------------------------------

    @property
    def timeout(self) -> float:
        """Seconds that a call may take; the same for a backend and all groups split from it."""
        return self.progress.timeout

    @timeout.setter
    def timeout(self, seconds: float):
        self.progress.timeout = checks.check_timeout(seconds)

    @property
    def seconds_left(self) -> Callable[[], float]:
        """Function () -> seconds until the job is killed; one for a backend and all its groups."""
        return self.progress.seconds_left

    @seconds_left.setter
    def seconds_left(self, function: Callable[[], float]):
        self.progress.seconds_left = function

    @property
    def ledger_folder(self) -> Path | None:
        """The folder of this rank's ledger; None: it has none, or one in memory only."""
        ledger = self.progress.kept
        return None if ledger is None or ledger.path is None else ledger.path.parent

    def keep_ledger(self, folder: FilePath | None) -> None:
        """Note every call of this rank in a file there from now on (watch/ledger.py).

        Parameters
        ----------
        folder
            One that all ranks see, if there is one: then `shardkit inspect hang FOLDER` covers all
            ranks. None, or one that cannot be written: the calls of this rank are noted in memory
            only.

        Raises
        ------
        CommunicationError
            Before initialize().
        """
        check_alive(self, "keep_ledger")
        place = self.progress.places.of(self.world_ranks[self.rank])
        ledger = Ledger(folder, self.rank, self.world_size, self.progress.names, place)
        self.progress.ledger = ledger

    def work(self) -> None:
        """Note that this rank gets on with work of its own, while others wait for it in a verb.

        They wait for the timeout from the last such note on, so long work that gets on meets no
        limit. No communication, and no time: call it often.
        """
        self.progress.work()

    def look_at_others(self, awaited: Awaited | None = None) -> None:
        """End the job if another rank, in no verb, noted no work for the timeout.

        For a phase in which all ranks note their work; call it as often as work(). Threads of one
        process are not looked at.

        Parameters
        ----------
        awaited
            A call that this rank waits for in no channel: then raise if a rank that it needs has
            failed, left, or not come within the timeout, unless others watch, and end the job.
        """

    def say(self, message: str) -> None:
        """Write a message to standard error in one write, so that ranks do not mix theirs.

        Parameters
        ----------
        message
            One line or several.
        """
        with suppress(OSError, ValueError, AttributeError):  # what it does not take is lost
            sys.stdout.flush()
        tell(message)

    # ---- memory ----------------------------------------------------------------------------------

    @property
    def communicator(self) -> Any:
        """The mpi4py communicator that carries the verbs, or None.

        For libraries that use MPI themselves.
        """
        return None if self.channel is None else self.channel.communicator

    def memory(self) -> Any:
        """Return a heap with empty(shape, dtype) for arrays that travel; None: anywhere will do."""
        return None if self.channel is None else self.channel.memory.heap

    @property
    def shares_memory(self) -> bool:
        """True if all ranks see each other's memory.

        Each rank copies what it needs, and nothing moves meanwhile.
        """
        return self.channel is not None and self.channel.memory.is_shared

    def common(self, size: int, dtype: DTypeLike) -> Array | None:
        """Return an array [size] that all ranks of the group see, contents undefined. Collective.

        None on all of them if they do not share memory, or it is full.

        Parameters
        ----------
        size, dtype
            Of the array, size in elements; the same on all ranks.
        """
        if self.memory() is None or not self.shares_memory:
            return None
        with self.verb("common"):
            return self.channel.memory.common(size, dtype)

    # ---- objects ---------------------------------------------------------------------------------

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Return the root's object, on every rank; `value` of other ranks is ignored.

        Collective over the backend.

        Parameters
        ----------
        value
            On the root: anything that can be pickled.
        root
            The rank that has it.

        Raises
        ------
        ValueError
            On a bad root.
        PeerError
            If the root cannot pickle its object.
        """
        with self.verb("broadcast_object"):
            root = checks.check_rank("root", root, self.world_size)
            value, num_bytes = objects.broadcast(self.channel, value, root)
            sent = (self.world_size - 1) * num_bytes
            self.traffic.add("broadcast_object", sent if self.rank == root else 0)
            return value

    def gather_object(self, value: Any, root: int = 0) -> list | None:
        """Return the objects of all ranks in rank order on the root, None elsewhere.

        Collective over the backend.

        Parameters
        ----------
        value
            Anything that can be pickled.
        root
            The rank that gets the list.

        Raises
        ------
        ValueError
            On a bad root.
        PeerError
            If a rank cannot pickle its object.
        """
        with self.verb("gather_object"):
            root = checks.check_rank("root", root, self.world_size)
            values, num_bytes = objects.gather(self.channel, value, root)
            self.traffic.add("gather_object", 0 if self.rank == root else num_bytes)
            return values

    def all_gather_object(self, value: Any) -> list:
        """Return the objects of all ranks in rank order, on every rank.

        Collective over the backend.

        Parameters
        ----------
        value
            Anything that can be pickled.

        Raises
        ------
        PeerError
            If a rank cannot pickle its object.
        """
        with self.verb("all_gather_object", site=self.progress.site(2)):
            values, num_bytes = objects.all_gather(self.channel, value)
            self.traffic.add("all_gather_object", (self.world_size - 1) * num_bytes)
            return values


def _close_channel(backend: CommunicationBackend) -> None:
    backend.use(None)
