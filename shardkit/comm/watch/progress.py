"""Progress: the verb that this process is in, and how many calls it has made on each group.

All ranks of a group make the same collective calls in the same order, so "rank 2 left after 11
calls on this group" and "rank 0 is in call 12" together prove that rank 0 waits in vain.
"""

import time
from collections import Counter
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Call:
    """One call of a verb. Nobody changes it, but a frozen dataclass takes four times as long.

    group    key of the group, the same on all its ranks
    ranks    world ranks that must take part
    number   of the collective calls on that group; None for a message between two ranks
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
    """The current call, if any. A backend shares it with all groups split from it."""

    def __init__(self):
        self.timeout = inf  # seconds that a call may take; the backend's
        self.current: Call | None = None
        self.broken: Call | None = None  # the last call that an exception ended
        self.began = 0.0  # time.monotonic() when the call under way began, or was resumed
        self.ledger = None  # Ledger that notes every call, if one is kept
        self.num_calls: Counter[str] = Counter()  # group key -> collective calls begun
        self.seconds: Counter[str] = Counter()  # group key -> spent in its verbs, with waiting

    def begin_collective(
        self, verb: str, group: str, ranks: tuple[int, ...], dtype=None, count: int = -1
    ) -> None:
        """Begin a collective verb; end() must follow. dtype, count: see describe(), if known."""
        self.began = time.monotonic()
        number = self.num_calls[group] = self.num_calls[group] + 1
        self.current = Call(verb, group, ranks, number)
        if self.ledger is not None:
            self.ledger.begin(verb, group, ranks, number, dtype, count)

    def begin_message(self, verb: str, group: str, ranks: tuple[int, ...]) -> None:
        """Begin a verb between two ranks; end() must follow."""
        self.began = time.monotonic()
        self.current = Call(verb, group, ranks, None)
        if self.ledger is not None:
            self.ledger.begin(verb, group, ranks, None)

    def resume(self, call: Call) -> None:
        """Begin to wait for a call that was started earlier; end() must follow."""
        self.began = time.monotonic()
        self.current = call
        if self.ledger is not None:
            self.ledger.begin(f"wait for {call.verb}", call.group, call.ranks, call.number)

    def describe(self, dtype, count: int) -> None:
        """Note what the current call carries, in elements."""
        if self.ledger is not None:
            self.ledger.describe(dtype, count)

    def end(self) -> None:
        """End the current verb."""
        if self.current is not None:
            self.seconds[self.current.group] += time.monotonic() - self.began
        self.current = None
        if self.ledger is not None:
            self.ledger.end()

    def fail(self) -> None:
        """End the current verb by an exception: others may wait in it for this rank."""
        self.broken = self.current
        self.end()
        if self.ledger is not None:
            self.ledger.fail()

    def calls_made(self) -> dict[str, int]:
        """Return {group key: collective calls for which nobody needs this rank any more}."""
        made = dict(self.num_calls)
        last = self.current or self.broken
        if last is not None and last.number is not None and last.number == made[last.group]:
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


class Exposure:
    """Seconds that this rank spends in collectives of each group, not computing.

    groups    {name: group of ranks}
    of_step   {name: seconds} between the last begin_step() and its end_step()
    """

    def __init__(self, groups: dict):
        self._groups = groups
        self._before = self._so_far()
        self.of_step = dict.fromkeys(groups, 0.0)

    def begin_step(self) -> None:
        """Begin to count."""
        self._before = self._so_far()

    def end_step(self) -> None:
        """Set of_step to the seconds since begin_step()."""
        self.of_step = {
            name: seconds - self._before[name] for name, seconds in self._so_far().items()
        }

    def _so_far(self):
        return {
            name: group.progress.seconds[group.group_key] for name, group in self._groups.items()
        }
