"""A fair clock on a machine with more work than cores: who waits for a core is late, not missing.

    a rank that runs or sleeps           every second counts
    a rank that waits for a core         so does the wait, up to WAITS_PER_RUN times what it ran;
                                         the rest does not: others have the cores
    a rank that loads or compiles code   every second counts in which it does not even want a core,
                                         or wait for a disk: it hangs in that

A rank that hangs asleep, is stopped, or spins on a core that it shares with a few others is found
as by any clock. /proc/PID/schedstat tells for how long the main thread of a process has waited
while it could have run; where there is none, every second counts.
"""

import time

WAITS_PER_RUN = 3.0  # four processes per core are usual where ranks spin and others compute
MOST_SECONDS = 900.0  # that a clock lets pass uncounted, in all
NANOSECONDS = 1e9


def ran_and_waited(process: int) -> tuple[float, float] | None:
    """Return the seconds that the process has run, and has waited for a core; None: not known."""
    try:
        with open(f"/proc/{process}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):
        return None
    return int(ran) / NANOSECONDS, int(waited) / NANOSECONDS


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
        self._before: dict[int, tuple[float, float]] = {}

    def count(self, processes, *, preparing=(), until_fair: float = 0.0) -> float:
        """Count the time since the last call, and return all seconds counted.

        processes    those that are waited for
        preparing    those among them that prepare what they need, loading code for example
        until_fair   time.monotonic() before which nothing counts
        """
        now = time.monotonic()
        passed = now - self._counted_to
        found = {process: ran_and_waited(process) for process in processes}
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


Seen = dict[int, tuple[float, float]]  # process -> seconds that it has run, and has waited


def _starved(before: Seen, now: Seen) -> float:
    """Return the longest time that a process waited for a core in vain between two looks.

    A process that is seen for the first time says nothing yet.
    """
    return max(
        (
            now[process][1]
            - before[process][1]
            - WAITS_PER_RUN * (now[process][0] - before[process][0])
            for process in now.keys() & before.keys()
        ),
        default=0.0,
    )


def _at_work(before: Seen, now: Seen, preparing, passed: float) -> float:
    """Return the longest time that one of these has run, or wanted to, between two looks.

    All of the time if that is not known, or if it waits for a disk.
    """
    return max(
        (
            sum(now[process]) - sum(before[process])
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
