"""Peers: a rank that waits for a lost one raises, where a failure does not end the job.

    a rank of the node dies             its process is gone
    it leaves while others need it      its entry in the roll says so
    it waits in shutdown() meanwhile    a file says so, and which calls it has made
    a rank of another node is lost      one that saw it there sends a note to all

A rank looks while it waits, and only then: no thread, no process, nothing that ends a rank. What is
lost stays lost: every later wait raises too. The ranks of a node that is lost whole are not missed.
"""

import time
import zlib
from collections import Counter
from contextlib import suppress

from ...errors import CommunicationError
from ..watch.attendance import attendance
from ..watch.closing import calls_before_closing
from ..watch.processes import state_of
from ..watch.roll import Entry
from ..watch.warden import SURE_SECONDS, whereabouts

LOOK_SECONDS = 0.25
LOST_TAG = 2
ADVICE = (
    "All ranks of the backend's communicator must stay until all have called shutdown(); the "
    "others can go on with a new backend, on a communicator without the lost"
)


class Peers:
    """The ranks of a communicator, as one of them sees them.

    failure   who is lost, in words; None: nobody, as far as is known
    number    of the communicator, above 0: the same on all its ranks
    """

    _numbers: Counter[tuple[int, ...]] = Counter()  # of communicators with these ranks, so far

    def __init__(self, mpi, comm):
        self.failure: str | None = None
        self._lost: dict[int, str] = {}  # rank -> what has become of it
        self._mpi = mpi
        self._rank, self._size = comm.rank, comm.size
        self._places = _places(mpi, comm)  # of its ranks in the roll
        self._numbers[self._places] += 1
        of_these = self._places, self._numbers[self._places]
        self.number = zlib.crc32(repr(of_these).encode()) or 1
        self._comm = None
        self._notes: list = []  # requests whose messages must live
        self._next_look = 0.0
        self._left_since: float | None = None

    def speak_on(self, comm) -> None:
        """Send notes about lost ranks over this communicator of the same ranks."""
        self._comm = comm

    def look(self, progress=None, *, doing: str = "", at_once: bool = False) -> None:
        """Raise if a rank is lost; to be called again and again while this one waits.

        progress   names the call under way and its ranks; None: `doing` does, for all ranks
        at_once    even if it has looked a moment ago
        Errors: CommunicationError that names the lost rank.
        """
        if self.failure is None and (at_once or time.monotonic() >= self._next_look):
            call = None if progress is None else progress.current
            self._learn(range(self._size) if call is None else call.ranks, call)
            self.failure = _joined(self._lost)
        if self.failure is not None:
            doing = doing or str(progress.current or "its own code")
            raise CommunicationError(
                f"rank {self._rank} of {self._size} waits in {doing}: {self.failure}. {ADVICE}"
            )

    @property
    def has_news(self) -> bool:
        """True if a rank is lost, or it is time to look whether one is."""
        return bool(self._lost) or time.monotonic() >= self._next_look

    def missing(self, needed) -> str | None:
        """Return which of these ranks are lost, in words; None: none of them, as far as is known.

        For who can go on without the others: it is asked again and again, and raises nothing.
        """
        if time.monotonic() >= self._next_look:
            self._learn(needed)
        return _joined({rank: self._lost[rank] for rank in needed if rank in self._lost})

    def _learn(self, needed, call=None) -> None:
        """Add to the lost.

        needed   ranks without which the call under way does not end
        call     that one; None: it is shutdown() itself
        """
        self._next_look = time.monotonic() + LOOK_SECONDS
        heard = self._heard()
        found = {} if heard else self._found(needed, call)
        self._lost |= heard | found

    def _heard(self) -> dict[int, str]:
        """Return the lost of whom another rank has said so, if one has."""
        anyone = self._mpi.ANY_SOURCE
        with suppress(self._mpi.Exception):  # an MPI that goes on hears nobody when one is dead
            if self._comm is not None and self._comm.iprobe(anyone, LOST_TAG):
                return self._comm.recv(None, anyone, LOST_TAG)
        return {}

    def _found(self, needed, call) -> dict[int, str]:
        """Return who is lost that was not, and tell the others.

        needed, call   as for _learn()
        """
        here = self._entries()
        lost = {rank for rank in here if _has_died(here[rank])}
        left = {rank for rank in here if _has_left(here[rank])}.intersection(needed)
        closing = self._closing(here, needed, call)
        gone = left | closing.keys()
        if self._have_lasted(gone):
            lost |= gone
        new = lost - self._lost.keys()
        told = {rank: _told(rank, here[rank]) for rank in sorted(new)}
        told |= {rank: closing[rank] for rank in closing.keys() & new}
        if told:
            self._tell(told, closing)
        return told

    def _closing(self, here, needed, call) -> dict[int, str]:
        """Return who is in shutdown(), and has not made the call under way before."""
        ranks = [] if call is None else here.keys() & set(needed)
        late = [rank for rank in ranks if self._lacks(rank, call)]
        meanwhile = f"is in shutdown() while rank {self._rank} is in {call}"
        return {rank: f"rank {rank} {meanwhile}" for rank in late}

    def _lacks(self, rank: int, call) -> bool:
        """Return True if a rank that closes the communicator has not made this call before."""
        made = calls_before_closing(self.number, self._places[rank])
        if made is None or call.number is None:
            return made is not None
        return made.get(call.group, 0) < call.number

    def _entries(self) -> dict[int, Entry]:
        """Return what the roll has of the other ranks, as far as they are on this node."""
        entries = attendance().others_here()
        here = dict(enumerate(map(entries.get, self._places)))
        del here[self._rank]
        return {rank: entry for rank, entry in here.items() if entry is not None}

    def _have_lasted(self, left) -> bool:
        """Return True if ranks have left for so long that no message of theirs is under way."""
        now = time.monotonic()
        self._left_since = (self._left_since or now) if left else None
        return self._left_since is not None and now > self._left_since + SURE_SECONDS

    def _tell(self, told: dict[int, str], closing):
        """Send it to all that are not lost, and to those that only wait in shutdown()."""
        gone = {self._rank, *told, *self._lost} - closing.keys()
        others = {*range(self._size)} - gone
        with suppress(self._mpi.Exception):  # another one is lost by now
            if self._comm is not None:
                self._notes += [self._comm.isend(told, rank, LOST_TAG) for rank in sorted(others)]


def _joined(lost: dict[int, str]) -> str | None:
    return "; ".join(lost[rank] for rank in sorted(lost)) or None


def _places(mpi, comm) -> tuple[int, ...]:
    """Return the ranks of a communicator in the roll: those of the launcher."""
    world, own = mpi.COMM_WORLD.Get_group(), comm.Get_group()
    places = own.Translate_ranks(None, world)
    world.Free()
    own.Free()
    return tuple(places)


def _told(rank: int, entry: Entry) -> str:
    where = (
        f"which has left the program (process {entry.process})"
        if _has_left(entry)
        else whereabouts(entry)
    )
    return f"rank {rank} is missing, {where}"


def _has_left(entry: Entry) -> bool:
    """Return True if the rank has come to its end, or is not needed by its own account."""
    return entry.has_left or entry.may_end and state_of(entry.process) is None


def _has_died(entry: Entry) -> bool:
    """Return True if the rank's process is gone before it might be."""
    return not (entry.has_left or entry.may_end) and state_of(entry.process) is None
