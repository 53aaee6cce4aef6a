"""A fair clock on a machine with more work than cores: who waits for a core is late, not missing.

    a rank that runs or sleeps           every second counts
    a rank that waits for a core         so does the wait, up to WAITS_PER_RUN times what it ran;
                                         the rest does not: others have the cores
    a rank that gives its core away      every second counts: it waits for others in MPI, whatever
                                         /proc says
    a rank that loads or compiles code   every second counts in which it does not even want a core,
                                         or wait for a disk: it hangs in that

A rank that hangs asleep, is stopped, or spins on a core that it shares with a few others is found
as by any clock. /proc/PID/schedstat tells for how long the main thread of a process has waited
while it could have run; where there is none, every second counts. A process in a loop of
sched_yield() waits by that measure nearly all the time, but it runs for some microseconds between
two switches that /proc/PID/status calls not voluntary; one that computes for milliseconds.
"""

import time
from typing import NamedTuple

WAITS_PER_RUN = 3.0  # four processes per core are usual where ranks spin and others compute
MOST_SECONDS = 900.0  # that a clock lets pass uncounted, in all
YIELDING_SECONDS = 2e-4  # a process that runs for less between two switches gives its core away
FEW_SWITCHES = 3  # so few say nothing
NANOSECONDS = 1e9


class OnCores(NamedTuple):
    """What a process has had of the cores since it began."""

    ran: float  # seconds
    waited: float  # seconds in which it could have run
    switches: int  # how often it lost its core without going to sleep

    def __sub__(self, earlier: "OnCores") -> "OnCores":
        ran, waited = self.ran - earlier.ran, self.waited - earlier.waited
        return OnCores(ran, waited, self.switches - earlier.switches)

    @property
    def wanted(self) -> float:
        """The seconds in which it ran or could have."""
        return self.ran + self.waited

    @property
    def starved(self) -> float:
        """The seconds of waiting that are more than its share of a busy machine."""
        gives_away = self.switches > FEW_SWITCHES and self.ran < YIELDING_SECONDS * self.switches
        return 0.0 if gives_away else self.waited - WAITS_PER_RUN * self.ran


def on_cores(process: int) -> OnCores | None:
    """Return what the main thread of a process has had of the cores; None: not known."""
    try:
        with open(f"/proc/{process}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
        with open(f"/proc/{process}/status", "rb") as file:
            switches = file.read().rpartition(b"nonvoluntary_ctxt_switches:")[2]
        return OnCores(int(ran) / NANOSECONDS, int(waited) / NANOSECONDS, int(switches))
    except (OSError, ValueError):
        return None


def children_of(process: int) -> list[int]:
    """Return the ids of the children of a process, as far as the system tells."""
    try:
        with open(f"/proc/{process}/task/{process}/children", "rb") as file:
            return list(map(int, file.read().split()))
    except OSError:
        return []


class FairClock:
    """The seconds that others have made somebody wait, without those in which they had no core.

    seconds   counted since `began`, up to the last call of `count`
    began     time.monotonic() from which on they are counted
    """

    def __init__(self, began: float):
        self.began = began
        self.seconds = 0.0
        self._counted_to = began
        self._left = MOST_SECONDS
        self._before: Seen = {}

    def count(self, processes, *, preparing=(), until_fair: float = 0.0) -> float:
        """Count the time since the last call, and return all seconds counted.

        processes    those that are waited for
        preparing    those among them that prepare what they need, loading code for example
        until_fair   time.monotonic() before which nothing counts
        """
        now = time.monotonic()
        passed = now - self._counted_to
        found = {process: on_cores(process) for process in processes}
        before, self._before = self._before, {p: seen for p, seen in found.items() if seen}
        unfair = max(
            _starved(before, self._before),
            _at_work(before, self._before, preparing, passed),
            min(now, until_fair) - self._counted_to,
        )
        unfair = min(max(unfair, 0.0), passed, self._left)
        self._left -= unfair
        self._counted_to = now
        self.seconds += passed - unfair
        return self.seconds


Seen = dict[int, OnCores]


def _starved(before: Seen, now: Seen) -> float:
    """Return the longest time that a process waited for a core in vain between two looks.

    A process that is seen for the first time says nothing yet.
    """
    both = now.keys() & before.keys()
    return max(((now[process] - before[process]).starved for process in both), default=0.0)


def _at_work(before: Seen, now: Seen, preparing, passed: float) -> float:
    """Return the longest time that one of these has run, or wanted to, between two looks.

    All of the time if that is not known, or if it waits for a disk.
    """
    return max(
        (
            (now[process] - before[process]).wanted
            if process in now and process in before and not is_at_disk(process)
            else passed
            for process in preparing
        ),
        default=0.0,
    )


def is_at_disk(process: int) -> bool:
    """Return True if the process waits for a disk, or another device, as far as is known."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"D"
    except (OSError, IndexError):
        return False
