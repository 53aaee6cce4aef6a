"""The ledgers of all ranks as arrays: time and memory are linear in the ranks.

    rows    one for each rank: who it is, and its last call
    come    one for each (group, rank): how many calls on the group the rank has begun
    texts   the names to which both refer by number, each once

Of the ledgers in a folder, those count that the newest job there has begun: an earlier one, with
another number of ranks perhaps, left its own; and so did ranks that have died, when the others went
on with new numbers. Of two ledgers of one rank, the newer one counts.

A rank whose ring has forgotten a group, and that did not note since how many calls it has made on
it, may have come to any call: it is not taken for missing.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy

from ...errors import CheckpointError
from ...files.reading import understood
from .ledger import RECORD
from .many import read_each
from .places import LedgerPlace, LedgerPlaces
from .progress import WAIT_FOR, Call
from .pulse import RECORD_FIELDS, Pulse
from .recorded import (
    UNKNOWN_NAME,
    GroupName,
    LedgerContent,
    RecordedRank,
    names_in,
    read_contents,
    recorded_call,
)

_ROW = numpy.dtype(
    [
        ("rank", "<i8"),
        ("world_size", "<i8"),
        ("pid", "<i8"),
        ("host", "<i4"),
        ("code", "<i4"),
        ("pulse", "<f8", 3),
        ("worked", "<f8"),
        ("since", "<f8"),
        ("sees_all", "?"),  # groups that it does not name have had no call
        ("opened", "<f8"),
        ("job", "<u8"),
        ("last", RECORD),
    ]
)
_COME = numpy.dtype([("group", "<i4"), ("row", "<i4"), ("calls", "<u8")])
_OF_NODE = "node-*.ledger"
_OF_RANK = "rank-*.ledger"  # of version 3, or empty: see NO_ROOM_NAME
_NO_CALL = (0,) * len(RECORD_FIELDS)
ANY = numpy.uint64(numpy.iinfo(numpy.uint64).max)  # calls of a rank that may have come to each


@dataclass(frozen=True)
class Ledgers:
    """What many ranks say.

    rows, come   see above; rows in rank order, come in the order of (group, row)
    texts        {text: number}, in the order of the numbers
    places       {text: what it says}, of groups and messages
    """

    rows: numpy.ndarray
    come: numpy.ndarray
    texts: dict[str, int]
    places: dict[str, GroupName]

    @cached_property
    def names(self) -> list[str]:
        """The texts by their numbers."""
        return list(self.texts)

    @property
    def ranks(self) -> numpy.ndarray:
        """The ranks that have a ledger, in order."""
        return self.rows["rank"]

    @property
    def is_in_call(self) -> numpy.ndarray:
        """For each row, if the rank is in a call, or was in one when it ended, bool."""
        last = self.rows["last"]
        return (last["number"] > 0) & (last["ended"] == 0)

    @property
    def last_times(self) -> numpy.ndarray:
        """When each rank began or ended its last call, in seconds since the epoch; 0.0: none."""
        last = self.rows["last"]
        return numpy.where(last["ended"] == 0, last["began"], numpy.abs(last["ended"]))

    def place(self, name: int) -> GroupName:
        """Return the group, or message, of this number."""
        return self.places[self.names[name]]

    def rows_of(self, ranks) -> numpy.ndarray:
        """Return the rows of these ranks, -1 for those that have no ledger."""
        ranks = numpy.asarray(ranks, numpy.int64)
        rows = numpy.minimum(numpy.searchsorted(self.ranks, ranks), self.rows.size - 1)
        return numpy.where(self.ranks[rows] == ranks, rows, -1)

    def processes_on(self, host: str) -> dict[int, int]:
        """Return the {rank: id of its process} of the ranks there."""
        there = self.rows[self.rows["host"] == self.texts.get(host, -1)]
        return dict(zip(there["rank"].tolist(), there["pid"].tolist()))

    def rank(self, row: int) -> RecordedRank:
        """Return what the rank of a row says, with its last call."""
        found = self.rows[row]
        last = found["last"].item()
        calls = (recorded_call(last, self.names, self.places, 0.0),) if last[0] else ()
        return RecordedRank(
            int(found["rank"]),
            int(found["world_size"]),
            int(found["pid"]),
            self.names[found["host"]],
            Pulse(*found["pulse"].tolist()),
            float(found["worked"]) or None,
            calls,
            self.names[found["code"]] if found["code"] else "",
            float(found["since"]),
        )

    def begun(self, group: str, ranks) -> numpy.ndarray:
        """Return how many collectives on the group each of these ranks has begun.

        returns   uint64; 0 for those without a ledger, ANY for those of which it is not known
        """
        rows = self.rows_of(ranks)
        is_known = self.rows["sees_all"][rows] | (rows < 0)
        begun = numpy.where(is_known, numpy.uint64(0), ANY)
        name = self.texts.get(group, -1)
        first, last = numpy.searchsorted(self.come["group"], [name, name + 1])
        come = self.come[first:last]
        if not come.size:
            return begun
        at = numpy.minimum(numpy.searchsorted(come["row"], rows), come.size - 1)
        return numpy.where(come["row"][at] == rows, come["calls"][at], begun)

    def late(self, call: Call) -> numpy.ndarray:
        """Return which ranks of a collective are known not to have begun it; of a message, all."""
        ranks = numpy.asarray(call.ranks, numpy.int64)
        if call.number is None:
            return ranks
        return ranks[self.begun(call.group, ranks) < call.number]


def read_ledgers(folder, ranks=None, places: LedgerPlaces | None = None) -> Ledgers:
    """Read the ledgers of the newest job in a folder, or of these ranks only.

    places   of the ranks: their files alone are opened. None: all files are
    Errors: FileNotFoundError if there are none.
    """
    folder = Path(folder)
    parts = _parts(folder, ranks, places)
    found, fault = _Collected(ranks), None
    for part, contents in zip(parts, read_each(_contents, parts)):
        if isinstance(contents, CheckpointError):
            fault = fault or contents
            continue
        for content in contents:
            with suppress(CheckpointError):
                found.add(content, part.path)
    ledgers = found.ledgers(None if places is None else places.job)
    if not ledgers.rows.size:
        why = "" if fault is None else f" that can be read: {fault}"
        raise FileNotFoundError(
            f"no ledgers in {folder}{why}; runs keep them in the folder ledger of the run folder"
        )
    return ledgers


def without_room(folder) -> set[int]:
    """Return the ranks for whose ledgers there was no room in the folder."""
    names = {path.name for path in Path(folder).glob(_OF_RANK) if _is_empty(path)}
    numbers = (name.removeprefix("rank-").removesuffix(".ledger") for name in names)
    return {int(number) for number in numbers if number.isdecimal()}


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


@dataclass(frozen=True)
class _Part:
    """Slots of a file; None: all that it has."""

    path: Path
    slots: tuple[int, ...] | None = None


def _parts(folder: Path, ranks, places: LedgerPlaces | None) -> list[_Part]:
    if ranks is not None and places is not None:
        slots = places.slots(ranks)
        return [_Part(LedgerPlace(node).path(folder), tuple(slots[node])) for node in slots]
    paths = sorted(folder.glob(_OF_NODE))
    if not paths:
        paths = [path for path in sorted(folder.glob(_OF_RANK)) if not _is_empty(path)]
    return [_Part(path) for path in paths]


def _contents(part: _Part) -> list[LedgerContent] | CheckpointError:
    """Return what stands in the slots; the error if nothing does."""
    try:
        return list(read_contents(part.path, part.slots))
    except CheckpointError as error:
        return error
    except FileNotFoundError:  # it is just being made or removed
        return []


@dataclass(frozen=True)
class _Names:
    """The names of a ledger: their numbers among the texts of all, and if they begin a wait."""

    numbers: numpy.ndarray
    is_wait: numpy.ndarray

    def number(self, own: int) -> int:
        return int(self.numbers[own if own < self.numbers.size else 0])

    def known(self, own: numpy.ndarray) -> numpy.ndarray:
        """Return these numbers, 0 instead of those that the ledger does not have."""
        return numpy.where(own < self.numbers.size, own, 0).astype(numpy.int64)


class _Collected:
    """Ledgers that are read one after the other; ranks: others are left out; None: none are."""

    def __init__(self, ranks=None):
        self._ranks = None if ranks is None else frozenset(ranks)
        self.texts: dict[str, int] = {UNKNOWN_NAME: 0}
        self._by_number = [UNKNOWN_NAME]
        self.places: dict[str, GroupName] = {}
        self.rows: list[tuple] = []
        self.come: list[tuple[int, int, int]] = []
        self._names: dict[bytes, _Names] = {}

    def ledgers(self, job: int | None) -> Ledgers:
        """Return all that was added, of a job; None: of the newest."""
        rows = numpy.array(self.rows, _ROW)
        order = _newest(rows, job)
        row_in_order = numpy.full(rows.size, -1)
        row_in_order[order] = numpy.arange(order.size)
        come = numpy.array(self.come, _COME)
        come["row"] = row_in_order[come["row"]]
        come = come[come["row"] >= 0]
        come = come[numpy.lexsort((come["row"], come["group"]))]
        return Ledgers(rows[order], come, self.texts, self.places)

    def add(self, found: LedgerContent, path) -> None:
        """Add the ledger of a rank, if it is wanted. Errors: CheckpointError if it is damaged."""
        if self._ranks is not None and found.rank not in self._ranks:
            return
        with understood(path, "records", error=CheckpointError):
            names = self._names_of(found.names)
            calls, sees_all = _calls(found, names)
            come = [
                (self._number(self._place(names.number(own)).group), len(self.rows), number)
                for own, number in calls.items()
            ]
            row = self._row(found, names, sees_all)
        self.rows.append(row)
        self.come += come

    def _row(self, found: LedgerContent, names: _Names, sees_all: bool) -> tuple:
        since, until, code = found.code
        return (
            found.rank,
            found.world_size,
            found.pid,
            self._number(found.host),
            names.number(code) if since else 0,
            found.pulse,
            found.worked + found.clock if found.worked else 0.0,
            (since or until) + found.clock,
            sees_all,
            found.opened,
            found.job,
            self._last(found, names),
        )

    def _last(self, found: LedgerContent, names: _Names) -> tuple:
        """Return the record of the last call, in numbers and seconds of all."""
        if not found.records.size:
            return _NO_CALL
        record = found.records[found.records["number"].argmax()].item()
        number, on_group, verb, group, dtype, site, count, began, ended = record
        self._place(names.number(group))
        if not math.isfinite(began) or not math.isfinite(ended):
            raise ValueError(f"call {number} has no time")
        end = ended and math.copysign(abs(ended) + found.clock, ended)
        own = [names.number(each) for each in (verb, group, dtype, site)]
        return (number, on_group, *own, count, began + found.clock, end)

    def _names_of(self, content: bytes) -> _Names:
        names = self._names.get(content)
        if names is None:
            texts = names_in(content)
            names = self._names[content] = _Names(
                numpy.array([self._number(text) for text in texts]),
                numpy.array([text.startswith(WAIT_FOR) for text in texts]),
            )
        return names

    def _number(self, text: str) -> int:
        number = self.texts.setdefault(text, len(self.texts))
        if number == len(self._by_number):
            self._by_number.append(text)
        return number

    def _place(self, name: int) -> GroupName:
        text = self._by_number[name]
        if text not in self.places:
            self.places[text] = GroupName.of(text)
        return self.places[text]


def _newest(rows: numpy.ndarray, job: int | None) -> numpy.ndarray:
    """Return which rows count, in the order of their ranks: see above."""
    order = numpy.lexsort((rows["opened"], rows["rank"]))
    if job is not None:
        order = order[rows["job"][order] == job]
    if not order.size:
        return order
    newest = rows[order[rows["opened"][order].argmax()]]
    for same in ("job", "world_size"):
        order = order[rows[same][order] == newest[same]]
    ranks = rows["rank"][order]
    return order[numpy.append(ranks[1:] != ranks[:-1], True)]


def _calls(found: LedgerContent, names: _Names) -> tuple[dict[int, int], bool]:
    """Return {own number of a group: calls that the rank has begun}; True if it names all groups.

    A call that an exception ended is not counted: others may wait in it for this rank.
    """
    records = found.records[found.records["number_on_group"] > 0]
    group = names.known(records["group"])
    is_wait = names.is_wait[names.known(records["verb"])]
    made_group = names.known(found.made["group"])
    calls = numpy.zeros(names.numbers.size, numpy.uint64)
    numpy.maximum.at(calls, group, records["number_on_group"] - (records["ended"] < 0))
    numpy.maximum.at(calls, made_group, found.made["calls"])
    sees_all = not found.records.size or found.records["number"].min() <= found.since_made
    sees_all = bool(sees_all) and bool(group.all()) and bool(made_group.all())
    known = {*group.tolist(), *made_group.tolist()}
    if not sees_all:  # a wait that stands there may be for an earlier call than the last
        known = set(group[~is_wait].tolist())
    return {own: int(calls[own]) for own in known - {0}}, sees_all
