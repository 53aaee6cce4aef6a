"""What stands in the ledger of a rank (ledger.py): who wrote it, and its last calls.

Ledgers of version 3, each a file of its own, are read as a file of one slot that lacks its end.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy

from ...errors import CheckpointError
from ...files.reading import bytes_of, opened, understood
from ..ranks import ranks_in
from .ledger import (
    CODE,
    CODE_START,
    HEADER,
    LEDGER_BYTES,
    LEDGER_SLOT_BYTES,
    MADE,
    MADE_COUNT,
    MADE_START,
    MAGIC,
    MOST_MADE,
    OF_RANKS,
    OPENED,
    OPENED_START,
    RECORD,
    UNKNOWN_RANKS,
    WITH_RANK,
    WORKED,
    WORKED_OFFSET,
)
from .pulse import NAMES_BYTES, NAMES_START, NUM_RECORDS, PULSE, PULSE_START, RING_START, Pulse

MOST_RANKS = 2**20  # more than any training job has
UNKNOWN_NAME = "?"  # of what had no room among the names
VERSION_3 = MAGIC[:-1] + b"\x03"
_HEAD_BYTES = 1 << 12  # of a slot, with the names of most ranks


@dataclass(frozen=True)
class RecordedCall:
    """One call of a rank.

    number           among all calls of the rank
    number_on_group  among the collectives on that group; None for a message
    ranks            that must take part, in order; for a message, the other end; () if not known
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
    """The content of a ledger file: who wrote it, and its last calls, oldest first.

    pulse    of its interpreter (pulse.py)
    worked   when it last got on with work of its own, seconds since the epoch; None: it never said
    code     what code it loads or compiles, "": none
    since    when it began with that, or was done with it last; seconds since the epoch
    """

    rank: int
    world_size: int
    pid: int
    host: str
    pulse: Pulse
    worked: float | None
    calls: tuple[RecordedCall, ...]
    code: str = ""
    since: float = 0.0

    @property
    def under_way(self) -> RecordedCall | None:
        """The call that the rank is in, or was in when it ended."""
        return self.calls[-1] if self.calls and self.calls[-1].ended is None else None


@dataclass(frozen=True)
class GroupName:
    """The name of a group with its ranks, or of a message with its other end.

    ranks   int64, None if they are not known
    """

    group: str
    ranks: numpy.ndarray | None

    @classmethod
    def of(cls, text: str) -> "GroupName":
        """Return the group, or message, of this name in a ledger. Errors: ValueError."""
        group, is_group, ranks = text.partition(OF_RANKS)
        if not is_group:
            group, is_group, ranks = text.partition(WITH_RANK)
        if not is_group or ranks == UNKNOWN_RANKS:
            return cls(group, None)
        return cls(group, ranks_in(ranks, MOST_RANKS))

    @cached_property
    def as_tuple(self) -> tuple[int, ...]:
        """The ranks; () if they are not known."""
        return () if self.ranks is None else tuple(self.ranks.tolist())


@dataclass(frozen=True)
class LedgerContent:
    """What a ledger file has, as it stands there: calls by the numbers of their names.

    clock     seconds since the epoch when that of the writer's times was 0
    names     the texts; the first one stands for those that had no room
    records   RECORD [n], those in use, in any order
    code      what code the rank loads or compiles, and when it began or ended with that
    made      MADE, calls on groups, which may lack those of the records from number `since_made` on
    opened    when it was begun, in seconds since the epoch
    job       number of the job; 0 for all of version 3
    """

    rank: int
    world_size: int
    pid: int
    host: str
    clock: float
    names: bytes
    pulse: tuple[float, float, float]
    worked: float
    records: numpy.ndarray
    code: tuple[float, float, int]
    since_made: int
    made: numpy.ndarray
    opened: float
    job: int


def read_content(path, slot: int = 0) -> LedgerContent:
    """Read the ledger of a rank, which may still be writing.

    slot   of the file
    Errors: OSError; CheckpointError if there is no ledger.
    """
    with opened(path, error=CheckpointError) as file:
        return _content(file.fileno(), path, slot)


def read_contents(path, slots=None) -> Iterator[LedgerContent]:
    """Yield the ledgers of these slots of a file, or of all; what is no ledger is left out.

    Errors: OSError; CheckpointError if none of the file is one.
    """
    with opened(path, error=CheckpointError) as file:
        fault, num_found = None, 0
        most = min(-(-bytes_of(file) // LEDGER_SLOT_BYTES), MOST_RANKS)
        for slot in range(max(most, 1)) if slots is None else slots:
            try:
                content = _content(file.fileno(), path, slot)
            except CheckpointError as error:
                fault = fault or error
            else:
                num_found += 1
                yield content
        if fault is not None and not num_found:
            raise fault


def _content(file: int, path, slot: int) -> LedgerContent:
    """Return the ledger of a slot of an open file. Errors: OSError, CheckpointError."""
    start = slot * LEDGER_SLOT_BYTES
    head = os.pread(file, _HEAD_BYTES, start)
    if len(head) < NAMES_START or head[:8] not in (MAGIC, VERSION_3):
        raise CheckpointError(f"{path} is not a ledger of this version of shardkit", path)
    magic, rank, world_size, pid, names_bytes, clock, host = HEADER.unpack_from(head)
    names_end = NAMES_START + min(names_bytes, NAMES_BYTES)
    if names_end > len(head):
        head += os.pread(file, names_end - len(head), start + len(head))
    tail = os.pread(file, LEDGER_BYTES - RING_START, start + RING_START)
    ends = OPENED_START if magic == VERSION_3 else LEDGER_BYTES
    if len(tail) < ends - RING_START:
        raise CheckpointError(f"{path} is not a ledger that is whole", path)
    if not rank < world_size <= MOST_RANKS:
        raise CheckpointError(f"{path}: rank {rank} of {world_size:,}", path, "rank")
    if not math.isfinite(clock):
        raise CheckpointError(f"{path}: its clock began at {clock}", path, "clock")
    begun = (0.0, 0) if magic == VERSION_3 else OPENED.unpack_from(tail, OPENED_START - RING_START)
    if not math.isfinite(begun[0]):
        raise CheckpointError(f"{path}: it was begun at {begun[0]}", path, "opened")
    ring = numpy.frombuffer(tail, RECORD, NUM_RECORDS)
    since_made, num_made = MADE_COUNT.unpack_from(tail, MADE_START - RING_START)
    made_at = MADE_START - RING_START + MADE_COUNT.size
    return LedgerContent(
        rank,
        world_size,
        pid,
        host.rstrip(b"\0").decode("utf-8", "replace"),
        clock,
        head[NAMES_START:names_end],
        PULSE.unpack_from(head, PULSE_START),
        WORKED.unpack_from(head, WORKED_OFFSET)[0],
        ring[ring["number"] > 0],
        CODE.unpack_from(tail, CODE_START - RING_START),
        since_made,
        numpy.frombuffer(tail, MADE, min(num_made, MOST_MADE), made_at).copy(),
        *begun,
    )


def names_in(content: bytes) -> list[str]:
    """Return the texts that a ledger has, so that a record finds its own by number."""
    return [UNKNOWN_NAME, *content.decode("utf-8", "replace").split("\n")]


def read_ledger(path, slot: int = 0) -> RecordedRank:
    """Read the ledger of a rank with all calls that it has. Errors: as read_content()."""
    found = read_content(path, slot)
    names = names_in(found.names)
    places: dict[str, GroupName] = {}
    since, until, code = found.code
    with understood(path, "records", error=CheckpointError):
        calls = tuple(
            recorded_call(record, names, places, found.clock)
            for record in numpy.sort(found.records, order="number").tolist()
        )
    return RecordedRank(
        found.rank,
        found.world_size,
        found.pid,
        found.host,
        Pulse(*found.pulse),
        found.worked + found.clock if found.worked else None,
        calls,
        name_of(names, code) if since else "",
        (since or until) + found.clock,
    )


def name_of(names: list[str], number: int) -> str:
    """Return the text of this number."""
    return names[number] if number < len(names) else UNKNOWN_NAME


def recorded_call(record, names: list[str], places: dict[str, GroupName], clock) -> RecordedCall:
    """Return the call of a record. Errors: ValueError if it is damaged.

    places   {name of a group: what it says}, filled
    clock    seconds since the epoch when that of the record's times was 0
    """
    number, on_group, verb, group, dtype, site, count, began, ended = record
    name = name_of(names, group)
    place = places.get(name)
    if place is None:
        place = places[name] = GroupName.of(name)
    if not math.isfinite(began) or not math.isfinite(ended):
        raise ValueError(f"call {number} has no time")
    return RecordedCall(
        number,
        on_group or None,
        name_of(names, verb),
        place.group,
        place.as_tuple,
        name_of(names, dtype),
        None if count < 0 else count,
        name_of(names, site),
        began + clock,
        abs(ended) + clock if ended else None,
        ended < 0,
    )
