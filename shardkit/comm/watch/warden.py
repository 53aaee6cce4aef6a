"""The warden: a small process beside each rank that ends it when it cannot end itself.

    what the warden sees                              what it does
    the rank waits too long in MPI_Init,              names the missing ranks (roll.py) and ends
      initialize(), shutdown() or MPI_Finalize          its rank, so that the launcher ends the job
    a rank that it waits for has left or died         the same, without waiting for the limit
    its rank died before it reached its end           reports the death
    the job is ending, but its rank still runs        kills it: a stopped process reacts to nothing
                                                        else, and an abort under Open MPI's ULFM may
                                                        end nobody

A thread cannot do this: mpi4py holds the interpreter's lock in MPI_Init and MPI_Finalize, and no
thread of a stopped process runs. The warden starts before MPI_Init as a program of its own, which
shares no memory and no library state with the rank. It has its own session, so that a launcher that
kills the ranks does not kill it too. It ends with its rank: the kernel then closes the pipe that is
its standard input.
"""

import json
import os
import platform
import select
import signal
import sys
import time
from dataclasses import dataclass

from .cores import FairClock, children_of
from .folder import JobFolder, remove_if_abandoned
from .roll import Entry, Roll

POLL_SECONDS = 0.4
SURE_SECONDS = 1.5  # a rank that left must be needed for so long: others may have a better report
GRACE_SECONDS = 2.5  # between the end of the job and the kill of a rank
FORWARDING_SECONDS = 0.1  # for the launcher to forward a message before it notices a death
MAX_NAMED = 8


@dataclass
class Warden:
    """The warden of one rank.

    process   id of the rank's process
    launcher  id of the process that started it
    facts     how the rank was started, for the message
    hints     {where a rank waits: what to check}
    """

    roll: Roll
    rank: int
    num_ranks: int
    process: int
    launcher: int
    facts: str
    hints: dict[str, str]

    def watch(self) -> None:
        """Watch until the rank's process is gone."""
        needed_since = None
        clock = FairClock(0.0)
        while not self._is_gone():
            if self.roll.is_ended():
                return self._end_rank(GRACE_SECONDS)
            own = self.roll.read(self.rank)
            if own is not None and own.has_ended:
                return self._watch_end(own)
            if own is None or not own.is_waiting:
                needed_since = None
                continue
            if clock.began != own.since:
                clock = FairClock(own.since)
            now = time.monotonic()
            needed_since = (needed_since or now) if self._are_gone(own) else None
            if (
                clock.count(self._needed(own)) > own.seconds + self._turn_seconds(own)
                or needed_since
                and now > needed_since + SURE_SECONDS
            ):
                if self.roll.read(self.rank) == own:
                    return self._report(own, now)
        self._name_death()

    def _needed(self, own: Entry) -> list[int]:
        """Return the processes of this node that have not come to this wait, or else of all.

        A rank without an entry may be any other child of the process that started this one.
        """
        entries = {rank: self.roll.read(rank) for rank in range(self.num_ranks)}
        known = {entry.process for entry in entries.values() if entry is not None}
        late = [
            entry.process
            for entry in entries.values()
            if entry is not None and not _has_come(entry, own)
        ]
        if None in entries.values():
            late += [child for child in children_of(self.launcher) if child not in known]
        return late or list(known)

    def _turn_seconds(self, own) -> float:
        """Return how long to wait for a warden that sees who is missing, if this one does not."""
        others = self._others().values()
        knows = None not in others or any(
            entry is not None and not _has_come(entry, own) for entry in others
        )
        return 0.0 if knows else SURE_SECONDS

    def _watch_end(self, own: Entry):
        """Watch a rank after MPI_Finalize: the launcher still waits for it, if it is stopped."""
        moved_at = time.monotonic()
        while not self._is_gone():
            if not is_stopped(self.process):
                moved_at = time.monotonic()
            elif time.monotonic() > moved_at + own.seconds:
                return self._end_job(
                    f"has been stopped for {own.seconds:.3g} s at the end of its program on "
                    f"{self._place()}; the job is ended"
                )

    def _is_gone(self) -> bool:
        """Wait a moment, and return True if the rank's process is gone."""
        readable, _, _ = select.select([0], [], [], POLL_SECONDS)
        return bool(readable) or os.getppid() != self.process

    def _hold_launcher(self):
        """Keep the launcher's socket open until the others are gone.

        A launcher that sees it closed drops messages, and takes exit code 0 for success.
        """
        deadline = time.monotonic() + GRACE_SECONDS + 2 * POLL_SECONDS
        while time.monotonic() < deadline and self._has_living_others():
            time.sleep(FORWARDING_SECONDS)

    def _has_living_others(self) -> bool:
        return any(
            entry is not None and state_of(entry.process) for entry in self._others().values()
        )

    def _others(self) -> dict[int, Entry | None]:
        return {rank: self.roll.read(rank) for rank in range(self.num_ranks) if rank != self.rank}

    def _are_gone(self, own: Entry) -> bool:
        """Return True if the rank waits for one that will never come."""
        if own.survives:
            return False
        others = [entry for entry in self._others().values() if entry is not None]
        return any(
            not _has_come(entry, own) and (entry.has_left or state_of(entry.process) is None)
            for entry in others
        )

    # ---- reports ---------------------------------------------------------------------------------

    def _report(self, own: Entry, now: float):
        seconds = min(now - own.since, own.seconds)
        whose = whom(self.rank, own, self._others())
        self._end_job(
            f"has waited {seconds:.3g} s in {own.doing} on {self._place()}: {whose}; the job is "
            f"ended{self.hints.get(own.doing, '')}"
        )

    def _end_job(self, text: str):
        """Report this about the rank, unless another process has reported, and end the rank."""
        if self.roll.may_report():
            self._say(f"rank {self.rank} of {self.num_ranks} {text}")
        self.roll.end()
        self._end_rank(FORWARDING_SECONDS)

    def _place(self) -> str:
        return f"{platform.node()} (process {self.process}{self.facts})"

    def _name_death(self):
        """Report the death of the rank, if nobody else on this node can know about it."""
        own = self.roll.read(self.rank)
        if (
            own is None
            or own.has_ended
            or own.survives
            or own.has_left
            and not own.is_waiting
            or self.roll.is_ended()
        ):
            return
        others = self._others()
        here = [entry for entry in others.values() if entry is not None]
        if all(state_of(entry.process) is not None for entry in here) and self.roll.may_report():
            # The launcher may have killed this rank because one on another node died before.
            absent = ""
            if len(here) < len(others) and own.number == 1:
                absent = f"; {whom(self.rank, own, others)}"
            self._say(
                f"rank {self.rank} died: its process ended without a word (killed, out of memory, "
                f"a crash in native code, or os._exit); it was {'in ' if own.is_waiting else ''}"
                f"{own.doing}{absent}; the job is ended"
            )
        self.roll.end()
        self._hold_launcher()

    def _end_rank(self, seconds: float):
        """Give the launcher some time to end the rank, then kill it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._is_gone():
                return
        if os.getppid() == self.process:  # otherwise the id may belong to another process by now
            os.kill(self.process, signal.SIGKILL)
            self._is_gone()

    def _say(self, text):
        try:
            os.write(2, f"shardkit: {text}\n".encode())
        except OSError:  # nobody reads standard error any more; the rank must end anyway
            pass


def whom(rank: int, own: Entry, others: dict[int, Entry | None]) -> str:
    """Return a phrase that names the ranks for which a rank waits.

    others   entries of the other ranks; None for those that have not reached MPI_Init on this node
    """
    here = others
    if own.number > 1 or own.has_left:  # all were in MPI_Init: absent ranks are on other nodes
        here = {other: entry for other, entry in others.items() if entry is not None}
    missing = {
        other: entry for other, entry in here.items() if entry is None or not _has_come(entry, own)
    }
    stopped = {
        other: entry
        for other, entry in here.items()
        if entry is not None and is_stopped(entry.process)
    }
    named = missing | stopped
    if is_stopped(own.process):
        return f"rank {rank} itself is stopped"
    if not named and any(
        entry.number > own.number and not entry.has_left for entry in here.values()
    ):
        return f"rank {rank} itself is the one that all wait for; the others are further"
    if not named:
        return (
            "all ranks are there"
            if len(here) == len(others)
            else f"all {len(here) + 1} ranks of this node are there"
        )
    if all(entry is None for entry in here.values()) and len(here) > 1:
        return f"of the {len(others)} other ranks none has come to MPI_Init on this node"
    texts = [
        f"rank {other} is missing, {_whereabouts(entry)}"
        for other, entry in sorted(named.items())[:MAX_NAMED]
    ]
    more = len(named) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _has_come(entry: Entry, own: Entry) -> bool:
    """Return True if that rank has begun the wait that this one is in."""
    if own.has_left:
        return entry.has_left
    return entry.number >= own.number


def _whereabouts(entry):
    if entry is None:
        return "which has not come to MPI_Init, or is on another node"
    state = state_of(entry.process)
    if state is None:
        return f"which has died (process {entry.process})"
    word = "stopped " if is_stopped(entry.process) else ""
    place = (
        "at the end of its program"
        if entry.has_left
        else f"{'in ' if entry.is_waiting else ''}{entry.doing}"
    )
    return f"{word}{place} (process {entry.process})"


def state_of(process: int) -> str | None:
    """Return the kernel's letter for the process ("R", "S", "T" if stopped); None if it is gone."""
    try:
        with open(f"/proc/{process}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None if os.path.exists("/proc/self/stat") else "R"  # a system without /proc
    except (OSError, IndexError):
        return None
    return None if letter in ("Z", "X") else letter


def is_stopped(process: int) -> bool:
    """Return True if a signal ("T") or a debugger ("t") has stopped the process."""
    return state_of(process) in ("T", "t")


def main(text: str) -> None:
    """Run a warden; text: its arguments as JSON."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the rank
    arguments = json.loads(text)
    folder = JobFolder.open(arguments.pop("folder"))
    roll = Roll(folder.path)
    os.close(1)  # tells the rank that it is watched
    try:
        Warden(roll, **arguments).watch()
    finally:
        roll.close()
        folder.close()
        time.sleep(FORWARDING_SECONDS)  # the rank's files are closed one by one
        remove_if_abandoned(folder.path)


if __name__ == "__main__":
    main(sys.argv[1])
