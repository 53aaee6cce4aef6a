"""Progress: the verb that this process is in, and how many calls it has made on each group.

All ranks of a group make the same collective calls in the same order, so "rank 2 left after 11
calls on this group" and "rank 0 is in call 12" together prove that rank 0 waits in vain.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy

from .ledger import PLACE_IS_FREE, Ledger, Names
from .places import LedgerPlaces

NUM_CALLS, NANOSECONDS = range(2)  # of a tally
WAIT_FOR = "wait for "  # before a verb that was begun earlier


@dataclass(slots=True)
class Call:
    """One call of a verb. Nobody changes it, but a frozen dataclass takes four times as long.

    group    key of the group, the same on all its ranks
    ranks    world ranks that must take part
    number   of the collective calls on that group; None for a message between two ranks
    """

    verb: str
    group: str
    ranks: Sequence[int]
    number: int | None

    def __str__(self):
        return (
            self.verb
            if self.number is None
            else f"{self.verb} (call {self.number} on group {self.group})"
        )


@dataclass(frozen=True, slots=True)
class Awaited:
    """A call that this rank waits for in no channel: what it does in words, seconds so far."""

    call: Call
    doing: str
    seconds: float


@dataclass(slots=True)
class Carried:
    """What a verb carries, as recorders keep it.

    is_first   False: it is the wait for a call that began earlier
    count      of elements, -1 if it carries none
    """

    call: Call
    is_first: bool
    dtype: Any
    count: int


class Heard:
    """Stands in the place of a ledger, goes on writing it, and tells each verb to recorders.

    ledger   that was there, or None
    """

    is_written_by_loops = False  # every verb begins and ends here

    def __init__(self, ledger, recorders: list):
        self._ledger = ledger
        self._recorders = recorders

    def begin(self, verb, group, ranks, number, dtype=None, count=-1, site=None) -> None:
        """Begin a verb, or the wait for one that was begun earlier."""
        if self._ledger is not None:
            self._ledger.begin(verb, group, ranks, number, dtype, count, site)
        call = Call(verb.removeprefix(WAIT_FOR), group, ranks, number)
        for recorder in self._recorders:
            recorder.begin_verb(call, call.verb == verb, dtype, count)

    def describe(self, dtype, count) -> None:
        """Note what the verb under way carries."""
        if self._ledger is not None:
            self._ledger.describe(dtype, count)
        for recorder in self._recorders:
            recorder.describe_verb(dtype, count)

    def end(self) -> None:
        """End the verb."""
        for recorder in self._recorders:
            recorder.end_verb()
        if self._ledger is not None:
            self._ledger.end()

    def fail(self) -> None:
        """Pass on that an exception ended it."""
        if self._ledger is not None:
            self._ledger.fail()


class Tallies(dict):
    """What is counted for each group, by its key: int64 [2], calls, nanoseconds in its verbs.

    calls   collective ones that have begun
    Compiled verbs write there too (node/noted.py), a call when it has ended.
    """

    def __init__(self):
        super().__init__()
        self.arrays: dict[str, numpy.ndarray] = {}

    def __missing__(self, group: str) -> memoryview:
        array = self.arrays[group] = numpy.zeros(2, numpy.int64)
        words = self[group] = memoryview(array)
        return words


class WaitingCalls(Protocol):
    """The calls that a GPU has still to do, as far as they wait for other ranks (gpu/calls.py)."""

    def oldest(self) -> Call | None:
        """Return the first of them; None: there is none. In any thread."""

    def end_job(self) -> None:
        """Let none of them wait any more, since the job is ended. In any thread."""

    def abort(self) -> None:
        """Let none of them wait any more. In any thread."""


class GpuCalls:
    """What a GPU waits for, for those who watch over this rank.

    calls   None: nothing of it waits for other ranks
    """

    def __init__(self):
        self.calls: WaitingCalls | None = None
        self._oldest: Call | None = None
        self._since = 0.0

    def use(self, calls: WaitingCalls | None) -> None:
        """Look at these calls from now on."""
        self.calls = calls

    def oldest(self) -> tuple[Call | None, float]:
        """Return the call that the GPU is in, and since when it was seen there; for one thread."""
        call = None if self.calls is None else self.calls.oldest()
        if call is not self._oldest:
            self._oldest, self._since = call, time.monotonic()
        return call, self._since

    def end_job(self) -> None:
        """Let no kernel spin on while the job is ended. In any thread, and at once."""
        if self.calls is not None:  # a library may never return
            threading.Thread(target=self.calls.end_job, daemon=True).start()

    def abort(self) -> None:
        """Let nothing of it wait for other ranks any more."""
        if self.calls is not None:
            self.calls.abort()


class Progress:
    """The current call, if any. A backend shares it with all groups split from it.

    gpu   what its GPU waits for
    """

    def __init__(self, timeout: float = inf):
        self._timeout = timeout
        self.seconds_left: Callable[[], float] = lambda: inf
        self.current: Call | None = None
        self.broken: Call | None = None  # the last call that an exception ended
        self.began = 0.0  # time.monotonic() when the call under way began, or was resumed
        self.names = Names()
        self.tallies = Tallies()
        self.gpu = GpuCalls()
        self.places = LedgerPlaces()  # of the ledgers of all ranks
        self._recorders: list = []
        self._kept = None  # the ledger, and _ledger what stands in its place
        self.ledger = None

    @property
    def timeout(self) -> float:
        """The seconds that a call may take; the backend's, as seconds_left is.

        A new limit stands in the ledger at once: its rank may be stopped before the next beat.
        """
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float):
        self._timeout = seconds
        if self.kept is not None:
            self.kept.beat(seconds, 0.0)

    @property
    def ledger(self):
        """What notes every call, a Ledger or one that stands in its place; None: nothing does.

        Where recorders listen, they go on listening to one that is set.
        """
        return self._ledger

    @ledger.setter
    def ledger(self, ledger):
        self._kept = ledger
        self._hear()

    @property
    def kept(self) -> Ledger | None:
        """The ledger in which every call is noted, whoever listens; None: there is none."""
        return self._kept if isinstance(self._kept, Ledger) else None

    @contextmanager
    def telling(self, recorder) -> Iterator[None]:
        """Inside, a recorder hears every verb. Any number may, and they leave in any order."""
        self._recorders.append(recorder)
        self._hear()
        try:
            yield
        finally:
            self._recorders.remove(recorder)
            self._hear()

    def _hear(self) -> None:
        ledger = Heard(self._kept, [*self._recorders]) if self._recorders else self._kept
        self._ledger = ledger
        self.names.words[PLACE_IS_FREE] = ledger is None or ledger.is_written_by_loops

    def num_calls(self, group: str) -> int:
        """Return the collective calls begun on the group of this key."""
        return self.tallies[group][NUM_CALLS]

    def seconds(self, group: str) -> float:
        """Return the seconds spent in verbs of this group, with waiting."""
        return self.tallies[group][NANOSECONDS] * 1e-9

    def add_seconds(self, group: str, seconds: float) -> None:
        """Count seconds that were spent in verbs of this group."""
        self.tallies[group][NANOSECONDS] += int(seconds * 1e9)

    def site(self, depth: int) -> int:
        """Return the number of a caller's place, as Names.site(); 0 if no ledger notes it."""
        return 0 if self._ledger is None else self.names.site(depth + 1)

    def begin_collective(
        self,
        verb: str,
        group: str,
        ranks: Sequence[int],
        dtype=None,
        count: int = -1,
        site: int | None = None,
    ) -> None:
        """Begin a collective verb; end() must follow. dtype, count: see describe(), if known.

        site   number of the place that called it; None: the nearest caller outside of this room
        """
        number = self._begin_collective(verb, group, ranks)
        if self._ledger is not None:
            self._ledger.begin(verb, group, ranks, number, dtype, count, site)

    def take_over(self, verb: str, group: str, ranks: Sequence[int]) -> None:
        """Go on with a collective that compiled code has begun, and noted; end() must follow."""
        self._begin_collective(verb, group, ranks)

    def _begin_collective(self, verb, group, ranks) -> int:
        self.began = time.monotonic()
        tally = self.tallies[group]
        number = tally[NUM_CALLS] + 1
        self.current = Call(verb, group, ranks, number)
        tally[NUM_CALLS] = number
        return number

    def begin_message(self, verb: str, group: str, ranks: Sequence[int]) -> None:
        """Begin a verb between two ranks; end() must follow."""
        self.began = time.monotonic()
        self.current = Call(verb, group, ranks, None)
        if self._ledger is not None:
            self._ledger.begin(verb, group, ranks, None)

    def resume(
        self, call: Call, verb: str = "", *, dtype=None, count: int = -1, site: int | None = None
    ) -> None:
        """Begin to wait for a call that was started earlier; end() must follow.

        verb   that the ledger has; "": the call's own. Others as for begin_collective()
        """
        self.began = time.monotonic()
        self.current = call
        if self._ledger is not None:
            verb = f"{WAIT_FOR}{verb or call.verb}"
            self._ledger.begin(verb, call.group, call.ranks, call.number, dtype, count, site)

    def work(self) -> None:
        """Note that this rank gets on with work of its own, for which others wait in a verb."""
        if self.kept is not None:
            self.kept.work()

    def describe(self, dtype, count: int) -> None:
        """Note what the current call carries, in elements; nothing outside of a call."""
        if self._ledger is not None and self.current is not None:
            self._ledger.describe(dtype, count)

    def end(self) -> None:
        """End the current verb."""
        if self.current is not None:
            self.add_seconds(self.current.group, time.monotonic() - self.began)
        self.current = None
        if self._ledger is not None:
            self._ledger.end()

    def fail(self) -> None:
        """End the current verb by an exception: others may wait in it for this rank."""
        self.broken = self.current
        self.end()
        if self._ledger is not None:
            self._ledger.fail()

    def calls_made(self) -> dict[str, int]:
        """Return {group key: collective calls for which nobody needs this rank any more}."""
        made = {group: tally[NUM_CALLS] for group, tally in list(self.tallies.items())}
        last = self.current or self.broken
        if last is not None and last.number is not None and last.number == made.get(last.group):
            made[last.group] -= 1
        return made


class UnderWay:
    """A context manager around a verb: its progress hears when it ends, and how.

    given   what `with` gives. contextlib would cost a microsecond.
    """

    def __init__(self, progress, given=None):
        self.progress, self._given = progress, given

    def __enter__(self):
        return self._given

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.progress.end()
        else:
            self.progress.fail()
