"""The roll of a job on one node: what each rank does outside of the verbs, where no ledger is kept.

    rank 0   number 2   waits in initialize() since 17.2, for at most 600 s
    rank 1   number 1   in its own code after MPI_Init        so rank 0 waits for rank 1
    rank 2   (empty)                                          it has not reached MPI_Init

Every rank writes its own entry into one file, with one system call when it begins or ends such a
wait. All ranks make the same waits in the same order, so the numbers show who is missing.
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_ENTRY = struct.Struct("<IIBBBBB3xdd96s")
ENTRY_BYTES = _ENTRY.size
ROLL_NAME = "roll"
REPORTED_NAME = "reported"
ENDED_NAME = "ended"
EXIT_HOOKS = "its exit hooks"  # what a rank does between its end and MPI_Finalize


@dataclass(frozen=True)
class Entry:
    """The activity of one rank.

    number      of waits that it has begun, without those that an exception ended
    is_waiting  it is in the last of them
    has_left    it is at the end of its program
    may_end     the process may end at any time: nobody needs it, or MPI is finalized
    survives    deaths of ranks do not end the job
    is_guest    the job belongs to another program, which shardkit does not guard
    since       time.monotonic() at the beginning of the activity
    seconds     that the wait may take
    doing       the activity in words, up to 96 bytes
    """

    process: int
    number: int = 0
    is_waiting: bool = False
    has_left: bool = False
    may_end: bool = False
    survives: bool = False
    is_guest: bool = False
    since: float = 0.0
    seconds: float = float("inf")
    doing: str = ""

    @property
    def is_free(self) -> bool:
        """True if what the process does, and for how long, is its own business."""
        return self.may_end and not self.is_waiting


class Roll:
    """The file of entries, and the flags "reported" and "ended" of the job on this node."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self._file = os.open(self.folder / ROLL_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def make_room(self, num_ranks: int) -> None:
        """Take the blocks for the entries of so many ranks. Errors: OSError on a full disk."""
        os.posix_fallocate(self._file, 0, num_ranks * ENTRY_BYTES)

    def write(self, rank: int, entry: Entry) -> None:
        """Replace the entry of this rank."""
        self.writer(rank, entry)()

    def writer(self, rank: int, entry: Entry) -> Callable[[], int]:
        """Return a function that does so, even when Python has cleared all modules."""
        record = _ENTRY.pack(
            entry.process,
            entry.number,
            entry.is_waiting,
            entry.has_left,
            entry.may_end,
            entry.survives,
            entry.is_guest,
            entry.since,
            entry.seconds,
            entry.doing.encode("utf-8", "replace")[:96],
        )
        return partial(os.pwrite, self._file, record, rank * ENTRY_BYTES)

    def read(self, rank: int) -> Entry | None:
        """Return the last entry of the rank; None if it wrote none, or runs on another node."""
        record = os.pread(self._file, _ENTRY.size, rank * ENTRY_BYTES)
        if len(record) < _ENTRY.size or not any(record):
            return None
        process, number, *flags, since, seconds, doing = _ENTRY.unpack(record)
        return Entry(
            process,
            number,
            *map(bool, flags),
            since,
            seconds,
            doing.rstrip(b"\0").decode("utf-8", "replace"),
        )

    def may_report(self) -> bool:
        """Return True for the first process of the node that asks: a failing job reports once."""
        return self._makes(REPORTED_NAME)

    def end(self) -> None:
        """Mark the job as ending: wardens kill ranks that still run in some seconds."""
        self._makes(ENDED_NAME)

    def is_ended(self) -> bool:
        """Return True if the job is ending."""
        return (self.folder / ENDED_NAME).exists()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _makes(self, name) -> bool:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(self.folder / name, flags, 0o600))
        except OSError:  # it exists; or the disk is full: then everybody may report
            return not (self.folder / name).exists()
        return True
