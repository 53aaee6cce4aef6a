"""The ledger: a file with the last calls of a rank, always on, readable after a kill.

    ledger/rank-00000.ledger   | header | names, appended | record | record | ...

The records are a ring, and the newest overwrites the oldest. A record has: number, number on the
group, verb, group, dtype, call site, count, began, ended. It is written into mapped memory, which
takes no system call and stays in the file when the process is killed. Names (of verbs, groups, call
sites) are appended once and referred to by number. Times are seconds since the epoch.
"""

import mmap
import os
import socket
import struct
import time
from dataclasses import dataclass
from inspect import currentframe
from pathlib import Path

from ...errors import CheckpointError

MAGIC = b"sklgr\x00\x00\x01"  # the last byte is the version
NUM_RECORDS = 256
LEDGER_NAME = "rank-{:05d}.ledger"
_HEADER = struct.Struct("<8sIIIId64s")  # magic, rank, world size, pid, bytes of names, clock, host
_RECORD = struct.Struct("<QQIIIIqdd")
_NAMES_BYTES = 1 << 16
_NAMES_START = 128
_RING_START = _NAMES_START + _NAMES_BYTES
_ENDED, _ENDED_OFFSET = struct.Struct("<d"), _RECORD.size - 8
_DTYPE, _DTYPE_OFFSET = struct.Struct("<I"), 24
_COUNT, _COUNT_OFFSET = struct.Struct("<q"), 32
_HERE = os.path.dirname(os.path.dirname(__file__))


class _OwnFiles(dict):
    """Whether a file is in this room, by its name; asked once for each."""

    def __missing__(self, name: str) -> bool:
        is_own = self[name] = name.startswith(_HERE)
        return is_own


class Ledger:
    """The writer of one rank's file.

    begin() and end() belong to the thread that communicates.
    Errors: OSError if the file cannot be made.
    """

    def __init__(self, path, rank: int, world_size: int):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "wb+") as file:
            file.truncate(_RING_START + NUM_RECORDS * _RECORD.size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._clock = time.time() - time.monotonic()
        self._header = (rank, world_size, os.getpid())
        self._names: dict[str, int] = {}
        self._groups: dict = {}  # key of a group, or (key, peer) -> number of its name
        self._dtypes: dict = {}
        self._sites: dict[tuple, int] = {}  # (id of code, instruction) -> number of its name
        self._codes: list = []  # of _sites: an id means the same as long as they live
        self._is_own = _OwnFiles()
        self._names_end = 0
        self._number = 0
        self._at = _RING_START
        self._write_header()

    def begin(
        self,
        verb: str,
        group: str,
        ranks: tuple[int, ...],
        number_on_group: int | None,
        dtype=None,
        count: int = -1,
    ) -> None:
        """Record the beginning of a call, and its site: the nearest caller outside of this room.

        ranks            world ranks that must take part
        number_on_group  None for a message
        dtype, count     what it carries, in elements; None and -1 if describe() follows
        The site is written now, since a killed rank cannot tell afterwards. Known ones are found by
        the id of their code: a code object is hashed anew every time, whole.
        """
        number = self._number = self._number + 1
        self._at = _RING_START + number % NUM_RECORDS * _RECORD.size
        place = self._groups.get(group if number_on_group else (group, ranks)) or self._group(
            group, ranks, number_on_group
        )
        frame = currentframe()
        while frame is not None and self._is_own[frame.f_code.co_filename]:
            frame = frame.f_back
        site = 0
        if frame is not None:
            key = id(frame.f_code), frame.f_lasti
            site = self._sites.get(key) or self._site(key, frame)
        _RECORD.pack_into(
            self._map,
            self._at,
            number,
            number_on_group or 0,
            self._names.get(verb) or self._name(verb),
            place,
            self._dtypes.get(dtype) or self._dtype(dtype),
            site,
            count,
            time.monotonic(),
            0.0,
        )

    def describe(self, dtype, count: int) -> None:
        """Record what the current call carries, in elements."""
        number = self._dtypes.get(dtype) or self._dtype(dtype)
        _DTYPE.pack_into(self._map, self._at + _DTYPE_OFFSET, number)
        _COUNT.pack_into(self._map, self._at + _COUNT_OFFSET, count)

    def end(self) -> None:
        """Record the end of the call that began last."""
        _ENDED.pack_into(self._map, self._at + _ENDED_OFFSET, time.monotonic())

    def fail(self) -> None:
        """Record that an exception ended the last call: its time is negative."""
        _ENDED.pack_into(self._map, self._at + _ENDED_OFFSET, -time.monotonic())

    def close(self) -> None:
        """Close the file, which stays."""
        self._map.close()

    def _site(self, key: tuple, frame) -> int:
        """Name the place in the program where this frame is."""
        code = frame.f_code
        self._codes.append(code)
        number = self._sites[key] = self._name(
            f"{_short(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        )
        return number

    def _dtype(self, dtype) -> int:
        """Name a dtype; 0 for None."""
        number = self._dtypes[dtype] = 0 if dtype is None else self._name(str(dtype))
        return number

    def _group(self, group, ranks, number_on_group) -> int:
        """Name a group ("world/2.0 of ranks 0,1") or a message ("world with rank 2")."""
        if number_on_group:
            number = self._groups[group] = self._name(
                f"{group} of ranks {','.join(map(str, ranks))}"
            )
        else:
            number = self._groups[group, ranks] = self._name(f"{group} with rank {ranks[0]}")
        return number

    def _name(self, text: str) -> int:
        """Append a name and return its number, 0 if there is no room for it."""
        if text in self._names:
            return self._names[text]
        encoded = text.encode("utf-8", "replace")
        if self._names_end + len(encoded) + 1 > _NAMES_BYTES:
            return 0
        start = _NAMES_START + self._names_end
        self._map[start : start + len(encoded) + 1] = encoded + b"\n"
        self._names_end += len(encoded) + 1
        self._names[text] = len(self._names) + 1
        self._write_header()
        return self._names[text]

    def _write_header(self):
        rank, world_size, pid = self._header
        _HEADER.pack_into(
            self._map,
            0,
            MAGIC,
            rank,
            world_size,
            pid,
            self._names_end,
            self._clock,
            socket.gethostname().encode()[:64],
        )


def _short(path: str) -> str:
    """Return the last three parts of a path."""
    return os.sep.join(path.split(os.sep)[-3:])


@dataclass(frozen=True)
class RecordedCall:
    """One call of a rank.

    number           among all calls of the rank
    number_on_group  among the collectives on that group; None for a message
    ranks            that must take part; for a message, the other end
    count            in elements; None if it carries none
    began, ended     seconds since the epoch; ended is None during the call
    has_failed       an exception ended it, so others may still wait in it for this rank
    """

    number: int
    number_on_group: int | None
    verb: str
    group: str
    ranks: tuple[int, ...]
    dtype: str
    count: int | None
    site: str
    began: float
    ended: float | None
    has_failed: bool = False

    @property
    def carries(self) -> str:
        """The verb and what it carries: "all_reduce of 10 float32"."""
        return self.verb if self.count is None else f"{self.verb} of {self.count:,} {self.dtype}"


@dataclass(frozen=True)
class RecordedRank:
    """The content of a ledger file: who wrote it, and its last calls, oldest first."""

    rank: int
    world_size: int
    pid: int
    host: str
    calls: tuple[RecordedCall, ...]

    @property
    def under_way(self) -> RecordedCall | None:
        """The call that the rank is in, or was in when it ended."""
        return self.calls[-1] if self.calls and self.calls[-1].ended is None else None


def read_ledger(path) -> RecordedRank:
    """Read the ledger of a rank, which may still be writing.

    Errors: OSError; CheckpointError if the file is no ledger.
    """
    data = Path(path).read_bytes()
    if len(data) != _RING_START + NUM_RECORDS * _RECORD.size or data[:8] != MAGIC:
        raise CheckpointError(f"{path} is not a ledger of this version of shardkit")
    _, rank, world_size, pid, names_bytes, clock, host = _HEADER.unpack_from(data)
    names = ["?"] + data[_NAMES_START : _NAMES_START + min(names_bytes, _NAMES_BYTES)].decode(
        "utf-8", "replace"
    ).split("\n")
    records = sorted(record for record in _RECORD.iter_unpack(data[_RING_START:]) if record[0])
    return RecordedRank(
        rank,
        world_size,
        pid,
        host.rstrip(b"\0").decode(),
        tuple(_call(r, names, clock) for r in records),
    )


def _call(record, names, clock) -> RecordedCall:
    number, on_group, verb, group, dtype, site, count, began, ended = record
    verb, group, dtype, site = [
        names[i] if i < len(names) else "?" for i in (verb, group, dtype, site)
    ]
    group, _, ranks = group.partition(" of ranks " if on_group else " with rank ")
    return RecordedCall(
        number,
        on_group or None,
        verb,
        group,
        tuple(map(int, ranks.split(","))) if ranks else (),
        dtype,
        None if count < 0 else count,
        site,
        began + clock,
        abs(ended) + clock if ended else None,
        ended < 0,
    )
