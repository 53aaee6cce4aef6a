"""The roll of a job on one node: what each rank is doing outside of the verbs, where no ledger is
kept and MPI may stand still.

    rank 0   number 2   waits in initialize() since 17.2, for at most 600 s
    rank 1   number 1   in its own code after MPI_Init             so rank 0 waits for rank 1
    rank 2   (empty)                                               rank 2 has not even come to MPI_Init

Every rank writes its own entry into one file, with one system call each time that it begins or ends
such a wait. All ranks make the same waits in the same order, so numbers tell who is missing.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_ENTRY = struct.Struct("<IIBBBBdd96s")  # 124 bytes
ENTRY_BYTES = 128
ROLL_NAME, SPOKEN_NAME, ENDED_NAME = "roll", "spoken", "ended"


@dataclass(frozen=True)
class Entry:
    """What a rank is doing.

    number      of waits that it has begun; one that an exception ended does not count
    is_waiting  it is in the last of them
    has_left    it is at the end of its program
    has_ended   MPI is finalized: the process may go at any time
    survives    deaths of ranks do not end the job
    since       time.monotonic() when this began
    seconds     that the wait may take
    doing       in words, up to 96 bytes
    """

    process: int
    number: int = 0
    is_waiting: bool = False
    has_left: bool = False
    has_ended: bool = False
    survives: bool = False
    since: float = 0.0
    seconds: float = float("inf")
    doing: str = ""


class Roll:
    """The file, and who may speak for the node."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._file = os.open(self._folder / ROLL_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, rank: int, entry: Entry) -> None:
        """Replace the entry of this rank."""
        record = _ENTRY.pack(
            entry.process,
            entry.number,
            entry.is_waiting,
            entry.has_left,
            entry.has_ended,
            entry.survives,
            entry.since,
            entry.seconds,
            entry.doing.encode("utf-8", "replace")[:96],
        )
        os.pwrite(self._file, record, rank * ENTRY_BYTES)

    def read(self, rank: int) -> Entry | None:
        """What the rank wrote last; None if it has not come yet, or is on another node."""
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

    def take_word(self) -> bool:
        """True for the first process of the node that asks: a job that fails says one thing."""
        return self._makes(SPOKEN_NAME)

    def is_spoken(self) -> bool:
        """True if somebody has taken the word."""
        return (self._folder / SPOKEN_NAME).exists()

    def end(self) -> None:
        """The job is being ended: wardens end ranks that are still there in some seconds."""
        self._makes(ENDED_NAME)

    def is_ended(self) -> bool:
        """True if the job is being ended."""
        return (self._folder / ENDED_NAME).exists()

    def close(self) -> None:
        """No more entries."""
        os.close(self._file)

    def _makes(self, name) -> bool:
        try:
            os.close(
                os.open(
                    self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
            )
        except OSError:  # it is there, or the folder is full: then nobody is to be silent
            return not (self._folder / name).exists()
        return True
