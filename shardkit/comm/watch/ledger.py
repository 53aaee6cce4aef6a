"""The ledger: the last calls of a rank in a file of its node, always on, readable after a kill.

    ledger/node-00008.ledger   | slot 0, of rank 8 | slot 1, of rank 9 | ...
    a slot                     | header, pulse | names, appended | record | ... | code | made |

A file has the ledgers of the ranks of one node, each in a slot of fixed size that begins a page: of
two nodes that write one page of a file on a shared file system, one would lose what it wrote. Its
name is that of the first rank of the node, which no other node can have. A rank makes the file if
it is missing, and the blocks of its own slot: so ranks may begin in any order. Slots of ranks that
have died, or of an earlier job in this folder, stay: a slot says of which job it is, and when it
was begun, and readers take the newest job.

The records are a ring, and the newest overwrites the oldest. A record has: number, number on the
group, verb, group, dtype, call site, count, began, ended. It is written into mapped memory, which
takes no system call and stays in the file when the process is killed. Names (of verbs, groups, call
sites) are appended once and referred to by number. Times are seconds since the epoch. A place of
its own says what code the rank loads or compiles: meanwhile it waits for nobody. The last one says
how many calls it had made on each group a moment ago, as the ring may have none of one any more.
places.py says which slot is whose, recorded.py reads one, ledgers.py those of all ranks.
"""

import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from sys import _getframe

import numpy

from ...array.machine_code import MACHINE_CODE
from ...files.mapping import MappedPart, map_part
from ...files.notes import tell
from ...files.removing import remove_file
from ...files.writing import open_new
from ..ranks import ranges_text
from .frames import first_frame
from .places import LedgerPlace
from .pulse import NAMES_BYTES as _NAMES_BYTES
from .pulse import NAMES_START as _NAMES_START
from .pulse import NUM_RECORDS, PULSE, PULSE_START, RECORD_FIELDS
from .pulse import RECORD as _RECORD
from .pulse import RING_START as _RING_START

MAGIC = b"sklgr\x00\x00\x04"  # the last byte is the version
NO_ROOM_NAME = "rank-{:05d}.ledger"  # an empty file: there was no room for the ledger of this rank
HEADER = struct.Struct("<8sIIIId64s")  # magic, rank, world size, pid, bytes of names, clock, host
OF_RANKS, WITH_RANK = " of ranks ", " with rank "  # in the name of a group, of a message
UNKNOWN_RANKS = "?"  # of a group whose ranks take more room than a name may
_MOST_NAME_BYTES = _NAMES_BYTES // 8
PLACE_RING, PLACE_NUMBER, PLACE_IS_FREE = range(3)  # of Names.place
RECORD = numpy.dtype(list(RECORD_FIELDS))  # as readers and loops (node/record.py) see it
RECORD_BYTES = RECORD.itemsize
WORKED, WORKED_OFFSET = struct.Struct("<d"), 120  # in the header: see Ledger.work()
CODE = struct.Struct("<ddI")  # what is loaded or compiled: since; until, the last; its name
CODE_START = _RING_START + NUM_RECORDS * RECORD_BYTES
# How many calls a rank has made on its groups: number of the first record that is not counted, and
# of groups, and these; readers copy what lies behind later, so it is as new as the number or newer.
MADE = numpy.dtype([("group", "<u8"), ("calls", "<u8")])
MOST_MADE, MADE_START = 256, CODE_START + CODE.size
MADE_COUNT = struct.Struct("<QQ")
OPENED_START = MADE_START + MADE_COUNT.size + MOST_MADE * MADE.itemsize
OPENED = struct.Struct("<dQ")  # when this was begun, in seconds since the epoch; number of the job
LEDGER_BYTES = OPENED_START + OPENED.size
LEDGER_SLOT_BYTES = 1 << 17  # of a file: a multiple of the pages of every machine
assert LEDGER_BYTES <= LEDGER_SLOT_BYTES


def offset_of(field: str) -> int:
    """Return where a field of a record begins, in bytes."""
    return RECORD.fields[field][1]


def _packed(field: str) -> tuple[struct.Struct, int]:
    """Return how a field of a record is written, and where."""
    return struct.Struct(dict(RECORD_FIELDS)[field]), offset_of(field)


_DTYPE, _DTYPE_OFFSET = _packed("dtype")
_COUNT, _COUNT_OFFSET = _packed("count")
_ENDED, _ENDED_OFFSET = _packed("ended")


class Names:
    """The texts that records refer to by number, and where the next record goes.

    It outlives the ledgers of a process, so a number means the same in all of them.

    place   int64 [3], for compiled verbs: address of the ring of the open ledger, or 0; number of
            the last record; 1 if compiled verbs may write there, 0 if something listens in Python
    """

    def __init__(self):
        self.place = numpy.zeros(3, numpy.int64)
        self.words = memoryview(self.place)
        self.texts: dict[str, int] = {}
        self._append = None  # function (text) of the open ledger
        self._num_bytes = 0
        self._groups: dict = {}  # key of a group, or (key, peer) -> number of its name
        self._dtypes: dict = {}
        # of places that called a verb: (id of code, instruction) -> number of the name
        self._sites: dict[tuple, int] = {}
        self._codes: list = []  # of sites: an id means the same as long as they live

    def open(self, append, ring: int) -> None:
        """Write all texts, and new ones, by append(text), and records to the ring."""
        for text in self.texts:
            append(text)
        self._append = append
        self.words[PLACE_RING] = ring

    def close(self, ring: int) -> None:
        """Write nothing to this ring any more."""
        if self.words[PLACE_RING] == ring:
            self.words[PLACE_RING] = 0
            self._append = None

    def number(self, text: str) -> int:
        """Return the number of a text, 0 if there is no room for it."""
        known = self.texts.get(text)
        if known is not None:
            return known
        num_bytes = len(_line(text))
        if self._num_bytes + num_bytes > _NAMES_BYTES:
            return 0
        self._num_bytes += num_bytes
        self.texts[text] = len(self.texts) + 1
        if self._append is not None:
            self._append(text)
        return self.texts[text]

    def site(self, depth: int = 1) -> int:
        """Return the number of the nearest caller's place outside of this room.

        Known ones are found by the id of their code: a code object is hashed anew every time.
        depth   of the nearest caller that may be outside; 1: whoever calls this
        """
        try:
            frame = _getframe(depth)
        except ValueError:  # native code calls: there is no such frame
            return 0
        known = self._sites.get((id(frame.f_code), frame.f_lasti))
        return self._site(first_frame(frame, of_room=False)) if known is None else known

    def _site(self, frame) -> int:
        if frame is None:
            return 0
        code = frame.f_code
        key = id(code), frame.f_lasti
        number = self._sites.get(key)
        if number is None:
            self._codes.append(code)
            number = self._sites[key] = self.number(
                f"{_short(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
            )
        return number

    def dtype(self, dtype) -> int:
        """Return the number of a dtype; 0 for None."""
        number = self._dtypes.get(dtype)
        if number is None:
            number = self._dtypes[dtype] = 0 if dtype is None else self.number(str(dtype))
        return number

    def group(self, group: str, ranks: Sequence[int]) -> int:
        """Return the number of a group: "world/2.0 of ranks 0-1"."""
        number = self._groups.get(group)
        if number is None:
            number = self._groups[group] = self._place(group, OF_RANKS, ranks)
        return number

    def _place(self, group: str, relation: str, ranks: Sequence[int]) -> int:
        text = f"{group}{relation}{ranges_text(ranks)}"
        if len(text) > _MOST_NAME_BYTES:
            text = f"{group}{relation}{UNKNOWN_RANKS}"
        return self.number(text)

    def numbers_of(self, groups) -> list[int]:
        """Return the numbers of the groups of these keys, 0 for those without one."""
        return [self._groups.get(group, 0) for group in groups]

    def message(self, group: str, ranks: Sequence[int]) -> int:
        """Return the number of a message, or of a collective under way: "world with rank 0-3"."""
        number = self._groups.get((group, ranks))
        if number is None:
            number = self._groups[group, ranks] = self._place(group, WITH_RANK, ranks)
        return number


class Ledger:
    """The writer of one rank's ledger.

    begin() and end() belong to the thread that communicates.
    folder   None: the calls are noted in memory only; so are those of which no file can be made
    names    of the process; None: of this ledger alone
    place    in the folder; None: that of ranks which all run on one node
    path     of the file that it is in; None: it is in memory only
    Where there cannot be one, on a full disk say, a warning names it, and a report of a hang lacks
    the calls of this rank.
    """

    is_written_by_loops = True  # by node/noted.py, straight into the ring

    def __init__(
        self,
        folder,
        rank: int,
        world_size: int,
        names: Names | None = None,
        place: LedgerPlace | None = None,
    ):
        self.place = LedgerPlace(slot=rank) if place is None else place
        part = None if folder is None else _mapped(Path(folder), rank, self.place)
        self.path = None if part is None else self.place.path(folder)
        self._part = part
        self._map = mmap.mmap(-1, LEDGER_BYTES) if part is None else part.memory
        self._opened = (time.time(), self.place.job)
        self._clock = time.time() - time.monotonic()
        self._header = (rank, world_size, os.getpid())
        self._names_end = 0
        self.names = Names() if names is None else names
        self._words = self.names.words
        self._ring = numpy.frombuffer(self._map, numpy.uint8, 1).ctypes.data + _RING_START
        self.names.open(self._append, self._ring)
        self._write_header()
        OPENED.pack_into(self._map, OPENED_START, *self._opened)
        MADE_COUNT.pack_into(self._map, MADE_START, self._words[PLACE_NUMBER] + 1, 0)
        MACHINE_CODE.listeners.add(self)
        if MACHINE_CODE.doing:
            self.note_code(MACHINE_CODE.doing)

    def note_code(self, doing: str) -> None:
        """Record what code is loaded or compiled from now on; "": that it is there."""
        now = time.monotonic()
        since, until = (now, 0.0) if doing else (0.0, now)
        number = self.names.number(doing) if doing else 0
        CODE.pack_into(self._map, CODE_START, since, until, number)

    def begin(
        self,
        verb: str,
        group: str,
        ranks: Sequence[int],
        number_on_group: int | None,
        dtype=None,
        count: int = -1,
        site: int | None = None,
    ) -> None:
        """Record the beginning of a call, and its site.

        ranks            world ranks that must take part
        number_on_group  None for a message
        dtype, count     what it carries, in elements; None and -1 if describe() follows
        site             number of its name; None: the nearest caller outside of this room
        The site is written now, since a killed rank cannot tell afterwards.
        """
        names = self.names
        number = self._words[PLACE_NUMBER] = self._words[PLACE_NUMBER] + 1
        _RECORD.pack_into(
            self._map,
            _RING_START + number % NUM_RECORDS * RECORD_BYTES,
            number,
            number_on_group or 0,
            names.number(verb),
            names.group(group, ranks) if number_on_group else names.message(group, ranks),
            names.dtype(dtype),
            names.site() if site is None else site,
            count,
            time.monotonic(),
            0.0,
        )

    def describe(self, dtype, count: int) -> None:
        """Record what the current call carries, in elements."""
        at = self._at()
        _DTYPE.pack_into(self._map, at + _DTYPE_OFFSET, self.names.dtype(dtype))
        _COUNT.pack_into(self._map, at + _COUNT_OFFSET, count)

    def end(self) -> None:
        """Record the end of the call that began last."""
        _ENDED.pack_into(self._map, self._at() + _ENDED_OFFSET, time.monotonic())

    def fail(self) -> None:
        """Record that an exception ended the last call: its time is negative."""
        _ENDED.pack_into(self._map, self._at() + _ENDED_OFFSET, -time.monotonic())

    def work(self) -> None:
        """Record that this rank, for which others wait, gets on with work of its own."""
        WORKED.pack_into(self._map, WORKED_OFFSET, time.monotonic())

    def _at(self) -> int:
        """Return where the last record is."""
        return _RING_START + self._words[PLACE_NUMBER] % NUM_RECORDS * RECORD_BYTES

    def beat(self, seconds: float, away: float) -> None:
        """Record that the interpreter runs. In a thread of its own; arguments: see Pulse."""
        PULSE.pack_into(self._map, PULSE_START, time.monotonic(), seconds, away)

    def note_made(self, calls_made) -> None:
        """Record how many calls have been made on each group. In the thread of beat().

        calls_made   function () -> {key of a group: calls}
        With them goes the number of the first record that they may lack, as readers must see it.
        """
        first = self._words[PLACE_NUMBER] + (not self._is_in_call())
        made = calls_made()
        if len(made) > MOST_MADE:
            return
        entries = numpy.empty(len(made), MADE)
        entries["group"] = self.names.numbers_of(made)
        entries["calls"] = list(made.values())
        start = MADE_START + MADE_COUNT.size
        self._map[start : start + entries.nbytes] = entries.tobytes()
        MADE_COUNT.pack_into(self._map, MADE_START, first, len(made))

    def _is_in_call(self) -> bool:
        """Return True if the last call that stands here has not ended."""
        number, *_, ended = _RECORD.unpack_from(self._map, self._at())
        return number == self._words[PLACE_NUMBER] and not ended

    @property
    def start(self) -> int:
        """Where it begins in its file, in bytes."""
        return self.place.slot * LEDGER_SLOT_BYTES

    @property
    def is_lost(self) -> bool:
        """True if its file is gone from the folder, which was emptied."""
        return self._part is not None and not self._part.is_at(self.path)

    def close(self) -> None:
        """Close the file, which stays."""
        MACHINE_CODE.listeners.discard(self)
        self.names.close(self._ring)
        self._map.close()

    def _append(self, text: str) -> None:
        """Append a text that is known to fit."""
        start = _NAMES_START + self._names_end
        line = _line(text)
        self._map[start : start + len(line)] = line
        self._names_end += len(line)
        self._write_header()

    def _write_header(self):
        rank, world_size, pid = self._header
        HEADER.pack_into(
            self._map,
            0,
            MAGIC,
            rank,
            world_size,
            pid,
            self._names_end,
            self._clock,
            os.uname().nodename.encode()[:64],
        )


def _mapped(folder: Path, rank: int, place: LedgerPlace) -> MappedPart | None:
    """Return the memory, all zeros, of a place; None, after a warning, where there is no room."""
    path, without = place.path(folder), folder / NO_ROOM_NAME.format(rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = map_part(path, place.slot * LEDGER_SLOT_BYTES, LEDGER_BYTES)
        part.memory[: len(MAGIC)] = bytes(len(MAGIC))  # first: nobody reads half of what was there
        part.memory[:] = bytes(LEDGER_BYTES)
        remove_file(without)
    except OSError as error:
        tell(
            f"warning: {path} cannot be made: {error.strerror or error}; the calls of rank {rank} "
            "are noted in memory only, and a report of a hang will lack them"
        )
        with suppress(OSError):
            open_new(without).close()
        return None
    return part


def _line(text: str) -> bytes:
    """Return a name as the file has it."""
    return text.encode("utf-8", "replace") + b"\n"


def _short(path: str) -> str:
    """Return the last three parts of a path."""
    return os.sep.join(path.split(os.sep)[-3:])
