"""The pulse of a rank: when its interpreter last ran, as a thread of it writes into its ledger.

    ledger/node-00000.ledger   ... | magic ... host | pulse | names | records | ...
    job folder/ledger-00000    where that ledger begins in which file, for the rank's warden

It stops when native code keeps the interpreter's lock, or when the process is stopped. Then no
thread of the rank can report anything; the others read its pulse, and its warden does.
Only the standard library, since a warden reads it (warden.py).
"""

import os
import struct
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from ...files.writing import write_whole

# A record of the ledger: its fields in order, with their types as struct and NumPy write them.
RECORD_FIELDS = (
    ("number", "<Q"),
    ("number_on_group", "<Q"),
    ("verb", "<I"),
    ("group", "<I"),
    ("dtype", "<I"),
    ("site", "<I"),
    ("count", "<q"),
    ("began", "<d"),
    ("ended", "<d"),
)
RECORD = struct.Struct("<" + "".join(code[1:] for _, code in RECORD_FIELDS))
NUM_RECORDS = 256
NAMES_START, NAMES_BYTES = 128, 1 << 16
RING_START = NAMES_START + NAMES_BYTES
PULSE, PULSE_START = struct.Struct("<ddd"), 96
POLL_SECONDS = 1.0  # the longest time between two beats
PATH_NAME = "ledger-{:05d}"  # in the job's folder
_BEATS_MISSED = 5


@dataclass(frozen=True)
class Pulse:
    """The last beat of a rank.

    ran      time.monotonic() when its interpreter last ran; 0 if nothing writes the pulse
    seconds  that a call may take
    away     since when other code runs inside of the call, a signal handler for example; 0 if none
    """

    ran: float
    seconds: float
    away: float = 0.0

    def silent_seconds(self, now: float, seconds: float = inf) -> float:
        """Return for how long the interpreter has not run; 0.0 if that may be a busy machine.

        seconds   that a call may take since a moment ago
        """
        return self._long_since(self.ran, now, seconds)

    def away_seconds(self, now: float, seconds: float = inf) -> float:
        """Return for how long other code runs inside of the call; 0.0 if that is nothing yet."""
        return self._long_since(self.away, now, seconds)

    def _long_since(self, then, now, seconds) -> float:
        seconds = min(self.seconds, seconds)
        usual = _BEATS_MISSED * beat_seconds(seconds) + POLL_SECONDS
        is_long = then > 0 and now - then > min(usual, seconds / 2)
        return now - then if is_long else 0.0


def beat_seconds(seconds: float) -> float:
    """Return the time between two beats, if a call may take these seconds."""
    return min(POLL_SECONDS, seconds / 8)


def note_path(folder, rank: int, ledger, start: int = 0) -> None:
    """Note in the job's folder where a rank keeps its ledger; None: nowhere any more.

    start   of the ledger in that file, in bytes
    """
    where = b""
    if ledger is not None:
        where = b"%d %s" % (start, os.fsencode(os.path.abspath(ledger)))
    write_whole(Path(folder) / PATH_NAME.format(rank), where)


def read_pulse(folder, rank: int, now: float) -> tuple[Pulse, float] | None:
    """Return the pulse of a rank, and for how many seconds it has been in a call; 0.0 if in none.

    None: it keeps no ledger, or its calls have no time limit.
    """
    try:
        start, _, path = (Path(folder) / PATH_NAME.format(rank)).read_bytes().partition(b" ")
        if not path:
            return None
        with open(path, "rb") as file:
            file.seek(int(start))
            content = file.read(RING_START + NUM_RECORDS * RECORD.size)
        pulse = Pulse(*PULSE.unpack_from(content, PULSE_START))
        *_, began, ended = max(RECORD.iter_unpack(content[RING_START:]))
    except (OSError, ValueError, struct.error):  # there is none, or it is just being made
        return None
    if not isfinite(pulse.seconds):
        return None
    return pulse, now - began if began and not ended else 0.0
