"""The warden: a small process beside each rank that ends it when it cannot end itself.

    what the warden sees                              what it does
    the rank waits too long in MPI_Init,              names the missing ranks (roll.py) and ends
      initialize(), shutdown() or MPI_Finalize          its rank, so that the launcher ends the job
    a rank that it waits for has left or died         the same, without waiting for the limit
    the rank has been in a verb longer than the       the same
      limit, and its interpreter does not run
    the rank has been stopped for as long as the      ends it, and the others go on
      limit, and they can go on without it
    its rank died before it might end                 reports the death and ends the job; where that
                                                        belongs to another program, it reports what
                                                        a signal has killed, and ends nothing
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
from contextlib import suppress
from dataclasses import dataclass

from .cores import FairClock, children_of
from .folder import JobFolder, remove_if_abandoned
from .processes import is_stopped, state_of
from .pulse import read_pulse
from .roll import EXIT_HOOKS, Entry, Roll
from .witness import Witness

POLL_SECONDS = 0.4
NEXT_TO_WATCHDOG_SECONDS = 3.0  # a warden leaves the report to the watchdog, which knows more
SUSPENDED_SECONDS = 5.0  # more than a busy machine delays a look
SURE_SECONDS = 1.5  # a rank that left must be needed for so long: others may have a better report
GRACE_SECONDS = 2.5  # between the end of the job and the kill of a rank
ABORT_SECONDS = 0.5  # for the rank to abort by itself, if its interpreter runs
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

    def __post_init__(self):
        self._looked_at = self._moved_at = time.monotonic()  # moved: seen not to be stopped
        self._stopped_at = 0.0  # seen to be stopped
        self._woke_at = 0.0  # this warden, stopped with the job
        self._witness = Witness(self.process, self.launcher)

    def watch(self) -> None:
        """Watch until the rank's process is gone."""
        needed_since = None
        clock = FairClock(0.0)
        while not self._is_gone():
            own = self.roll.read(self.rank)
            self._look()
            if own is not None and own.is_free:
                if time.monotonic() > max(self._moved_at, self._woke_at) + own.seconds:
                    return self._report_stopped(own)
                continue
            if self.roll.is_ended():
                return self._end_rank(GRACE_SECONDS)
            if own is not None and own.is_guest:
                self._witness.look_round(self._others())
            if own is not None and self._is_ended_as_stuck(own):
                return
            if own is None or not own.is_waiting:
                needed_since = None
                continue
            since = max(own.since, self._woke_at)
            if clock.began != since:
                clock = FairClock(since)
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

    def _look(self):
        """Note whether the rank, or all of the job, has been stopped: it may be suspended."""
        now = time.monotonic()
        if now > self._looked_at + POLL_SECONDS + SUSPENDED_SECONDS:
            self._woke_at = now
        if is_stopped(self.process):
            self._stopped_at = now
        else:
            self._moved_at = now
        self._looked_at = now

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

    def _is_gone(self) -> bool:
        """Wait a moment, and return True if the rank's process is gone."""
        readable, _, _ = select.select([0], [], [], POLL_SECONDS)
        if readable:  # its files are closed, and its parent has not heard of it yet
            self._witness.note_end()
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
        if own.survives or own.is_guest:
            return False
        others = [entry for entry in self._others().values() if entry is not None]
        return any(_never_comes(entry, own) for entry in others)

    # ---- reports ---------------------------------------------------------------------------------

    def _report(self, own: Entry, now: float):
        seconds = min(now - own.since, own.seconds)
        whose = whom(self.rank, own, self._others())
        self._end_job(
            f"has waited {seconds:.3g} s in {own.doing} on {self._place()}: {whose}; the job is "
            f"ended{self.hints.get(own.doing, '')}"
        )

    def _is_ended_as_stuck(self, own: Entry) -> bool:
        """End the rank if it is in a verb for too long, and return whether it was so."""
        now = time.monotonic()
        found = read_pulse(self.roll.folder, self.rank, now)
        if found is None:
            return False
        pulse, seconds = found
        if own.survives and now > max(self._moved_at, self._woke_at) + pulse.seconds:
            if not self._others_move():
                return False
            self._remove_rank(f"has been stopped for {pulse.seconds:.3g} s")
            return True
        silent = min(pulse.silent_seconds(now), now - max(self._stopped_at, self._woke_at))
        if min(seconds, silent + NEXT_TO_WATCHDOG_SECONDS) < (
            pulse.seconds + NEXT_TO_WATCHDOG_SECONDS
        ):
            return False
        self._end_job(
            f"has been {seconds:.3g} s in a call on {self._place()}, and its interpreter has not "
            f"run for {silent:.3g} s, native code holds its lock; the job is ended"
        )
        return True

    def _others_move(self) -> bool:
        """Return True unless all ranks of this node are stopped: the job is suspended."""
        here = [entry for entry in self._others().values() if entry is not None]
        return not here or any(state_of(entry.process) not in (None, "T", "t") for entry in here)

    def _remove_rank(self, why: str):
        """End the rank alone."""
        self._say(
            f"rank {self.rank} of {self.num_ranks} {why} on {self._place()}; it is ended, and the "
            "others go on"
        )
        self._end_rank(FORWARDING_SECONDS)

    def _report_stopped(self, own: Entry):
        """End a rank after MPI_Finalize: the launcher still waits for it."""
        self._end_job(
            f"has been stopped for {own.seconds:.3g} s at the end of its program on "
            f"{self._place()}; the job is ended"
        )

    def _end_job(self, text: str):
        """Report this about the rank, unless another process has reported, and end the rank."""
        if self.roll.may_report():
            self._say(f"rank {self.rank} of {self.num_ranks} {text}")
        self.roll.end()
        self._end_rank(ABORT_SECONDS)

    def _place(self) -> str:
        return f"{platform.node()} (process {self.process}{self.facts})"

    def _name_death(self):
        """Report the death of the rank, if nobody else on this node can know about it."""
        own = self.roll.read(self.rank)
        if own is None or own.survives or self.roll.is_ended() or self._may_be_an_end(own):
            return
        others = self._others()
        here = [entry for entry in others.values() if entry is not None]
        if self._was_first(own, others) and self.roll.may_report():
            absent = ""
            if len(here) < len(others) and own.number == 1:
                absent = f"; {whom(self.rank, own, others)}"
            self._say(
                f"rank {self.rank} died: its process ended without a word (killed, out of memory, "
                f"a crash in native code, or os._exit); it was {'in ' if own.is_waiting else ''}"
                f"{own.doing}{absent}{'' if own.is_guest else '; the job is ended'}"
            )
        if not own.is_guest:  # else its launcher decides
            self.roll.end()
        self._hold_launcher()

    def _may_be_an_end(self, own: Entry) -> bool:
        """Return True if the end may be a good one, or follow from that of another rank."""
        if own.is_guest:
            is_told = self._witness.knows or not own.may_end
            return own.is_free or not is_told or not self._witness.saw_kill(self._others())
        return own.may_end or own.has_left and not own.is_waiting

    def _was_first(self, own, others) -> bool:
        """Return False if another rank may have ended before, for which the launcher killed this.

        Where all ranks are on this node, and the launcher lives, the first warden that looks speaks
        for the rank that died first: on a busy machine the launcher may be quicker than all.
        """
        here = [entry for entry in others.values() if entry is not None]
        gone = [entry for entry in here if state_of(entry.process) is None]
        if not gone or own.is_guest or len(here) < len(others):
            return not gone
        return state_of(self.launcher) is not None and not any(entry.has_left for entry in gone)

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
    if own.doing == EXIT_HOOKS:
        return f"rank {rank} itself is the one that all wait for"
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
        f"rank {other} is missing, {whereabouts(entry)}"
        for other, entry in sorted(named.items())[:MAX_NAMED]
    ]
    more = len(named) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _has_come(entry: Entry, own: Entry) -> bool:
    """Return True if that rank has begun the wait that this one is in."""
    if own.may_end and own.doing != EXIT_HOOKS:  # it has met the others
        return entry.may_end and entry.doing != EXIT_HOOKS
    if own.has_left:
        return entry.has_left
    return entry.number >= own.number


def _never_comes(entry: Entry, own: Entry) -> bool:
    """Return True if that rank will never begin the wait that this one is in."""
    if own.has_left:
        return not entry.may_end and state_of(entry.process) is None
    return not _has_come(entry, own) and (entry.has_left or state_of(entry.process) is None)


def whereabouts(entry: Entry | None) -> str:
    """Return where the rank of this entry is, as a clause about it."""
    if entry is None:
        return "which has not come to MPI_Init, or is on another node"
    state = state_of(entry.process)
    if state is None:
        return f"which has died (process {entry.process})"
    word = "stopped " if is_stopped(entry.process) else ""
    place = (
        "at the end of its program"
        if entry.has_left and entry.doing != EXIT_HOOKS
        else f"{'in ' if entry.is_waiting else ''}{entry.doing}"
    )
    return f"{word}{place} (process {entry.process})"


def main(text: str) -> None:
    """Run a warden; text: its arguments as JSON."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the rank
    arguments = json.loads(text)
    folder = JobFolder.open(arguments.pop("folder"))
    roll = Roll(folder.path)
    with suppress(OSError):  # the rank has died already
        os.write(1, b"watching\n")  # it is watched, as long as this stays open
    try:
        Warden(roll, **arguments).watch()
    finally:
        roll.close()
        folder.close()
        time.sleep(FORWARDING_SECONDS)  # the rank's files are closed one by one
        remove_if_abandoned(folder.path)


if __name__ == "__main__":
    main(sys.argv[1])
