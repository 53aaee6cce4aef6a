"""Which verb this process is in right now, and how many it has made on each group.

All ranks of a group make the same collective calls in the same order, so "rank 2 left after 11
calls on this group" and "rank 0 is in call 12" together prove that rank 0 waits in vain.
"""

import time
from collections import Counter
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Call:
    """One call of a verb. Nobody changes it; a frozen one takes four times as long to make, before
    every message.

    group    the key of the group it is on, the same on all its ranks; number counts the collective
             calls on that group
    ranks    world ranks that must take part
    number   None for a message between two ranks
    """

    verb: str
    group: str
    ranks: tuple[int, ...]
    number: int | None

    def __str__(self):
        return (
            self.verb
            if self.number is None
            else f"{self.verb} (call {self.number} on group {self.group})"
        )


class Progress:
    """The call under way, if any. One per process, shared by a backend and all groups split from
    it.
    """

    def __init__(self):
        self.timeout = inf  # seconds that a call may take; the backend's
        self.current: Call | None = None
        self.broken: Call | None = None  # the last call that an exception ended
        self.began = 0.0  # time.monotonic() when the call under way began, or was resumed
        self.ledger = None  # Ledger that notes every call, if one is kept
        self.num_calls: Counter[str] = Counter()  # group key -> collective calls begun
        self.seconds: Counter[str] = (
            Counter()
        )  # group key -> spent in its verbs, waiting or moving bytes

    def begin_collective(
        self, verb: str, group: str, ranks: tuple[int, ...], dtype=None, count: int = -1
    ) -> None:
        """A collective verb begins; end() must follow. dtype, count: as for describe(), if they are
        known already.
        """
        self.began = time.monotonic()
        number = self.num_calls[group] = self.num_calls[group] + 1
        self.current = Call(verb, group, ranks, number)
        if self.ledger is not None:
            self.ledger.begin(verb, group, ranks, number, dtype, count)

    def begin_message(self, verb: str, group: str, ranks: tuple[int, ...]) -> None:
        """A verb between two ranks begins; end() must follow."""
        self.began = time.monotonic()
        self.current = Call(verb, group, ranks, None)
        if self.ledger is not None:
            self.ledger.begin(verb, group, ranks, None)

    def resume(self, call: Call) -> None:
        """Waiting for a call that was begun earlier; end() must follow."""
        self.began = time.monotonic()
        self.current = call
        if self.ledger is not None:
            self.ledger.begin(f"wait for {call.verb}", call.group, call.ranks, call.number)

    def describe(self, dtype, count: int) -> None:
        """What the call under way carries, in elements."""
        if self.ledger is not None:
            self.ledger.describe(dtype, count)

    def end(self) -> None:
        """The verb is over."""
        if self.current is not None:
            self.seconds[self.current.group] += time.monotonic() - self.began
        self.current = None
        if self.ledger is not None:
            self.ledger.end()

    def fail(self) -> None:
        """The verb is over by an exception: others may wait in it for this rank."""
        self.broken = self.current
        self.end()
        if self.ledger is not None:
            self.ledger.fail()

    def calls_made(self) -> dict[str, int]:
        """Group key -> collective calls that nobody needs this rank for any more."""
        made, last = dict(self.num_calls), self.current or self.broken
        if last is not None and last.number is not None and last.number == made[last.group]:
            made[last.group] -= 1
        return made
