"""The file into which a rank writes its boxes, alone or together with others of its node.

    lay_out      the first of them makes the file, with room for the values of all
    share        each learns where its own belong                                  collective
    write        each writes its own, on disk, read back and compared
    collect      the first learns their checksums                                  collective
    add_table    the first: which boxes the file holds, for those of many files

Collective over those that write it. A rank that writes alone communicates with nobody.
"""

import threading
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy

from ..comm.alone_at_work import native_work
from ..comm.backend import CommunicationBackend
from .format.files import checksum, file_bytes, write_arrays
from .format.hdf5 import lay_out, rank_file_name
from .format.reads import Reader
from .format.stored import ITEM_BYTES, StoredBox, TablePlace, ranges_outside
from .format.tables import encoded, table_bytes

SLOWEST_DISK = 10e6  # bytes per second, at which a rank that writes still counts as one at work


class RankFile:
    """One file on its way to disk. Making it is collective over those that write it.

    store     whose `team` writes it; None: this rank alone
    forms     (tensor path, Piece, dtype) of each box of this rank
    boxes     of all of them, on the first; None on others
    records   {name of the file: what the manifest says of it}, on the first
    """

    def __init__(
        self, folder: Path, store, backend: CommunicationBackend, forms: list, has_table: bool
    ):
        self._backend = backend
        self._team = store.team
        self._copies = store.copies
        self._has_table = has_table
        first = self._told(backend.rank)
        self._path = folder / rank_file_name(first)
        sizes = [prod(piece.box.shape) * ITEM_BYTES[dtype] for _, piece, dtype in forms]
        self._num_bytes = sum(sizes)
        self._forms = self._heard(forms)
        self._places: list[int] = []  # of the own boxes
        self._checksums: list = []
        self._table_at = 0
        self.boxes: list[StoredBox] | None = None
        self.records: dict[str, dict] = {}

    @property
    def is_shared(self) -> bool:
        """True if others write into it too."""
        return self._team is not None

    def _told(self, value):
        """Return what the first has. Collective."""
        return value if self._team is None else self._team.broadcast_object(value)

    def _heard(self, value) -> list | None:
        """Return what each has, on the first; None on others. Collective."""
        return [value] if self._team is None else self._team.gather_object(value)

    def lay_out(self) -> None:
        """Make the file, on the first. No communication."""
        if self._forms is None:
            return
        forms = [form for own in self._forms for form in own]
        room = table_bytes if self._has_table else None
        self.boxes, self._table_at = lay_out(self._path, forms, room)
        inside: list = [*self.boxes]
        if self._has_table:
            inside.append(TablePlace(self._table_at, table_bytes(self.boxes)))
        self.records = {self._path.name: file_record(self._path, inside)}

    def share(self) -> None:
        """Learn where the boxes of this rank belong. Collective."""
        places = None
        if self._forms is not None:
            assert self.boxes is not None
            at = iter(box.at for box in self.boxes)
            places = [[next(at) for _ in own] for own in self._forms]
        own = 0 if self._team is None else self._team.rank
        self._places = self._told(places)[own]

    def write(self, owned, cancelled: threading.Event | None = None) -> None:
        """Write the values of this rank to disk, durably. No communication."""
        arrays = (array for _, _, array in owned)
        parts = zip(self._places, arrays)
        seconds = self._backend.timeout + self._num_bytes / SLOWEST_DISK
        with native_work(self._backend, seconds):
            self._checksums = write_arrays(self._path, parts, cancelled, self._copies)

    def collect(self) -> None:
        """Learn the checksums of all boxes, on the first. Collective."""
        heard = self._heard(self._checksums)
        if heard is not None:
            assert self.boxes is not None
            checksums = [each for own in heard for each in own]
            self.boxes = [
                replace(box, checksums=own) for box, own in zip(self.boxes, checksums, strict=True)
            ]

    def add_table(self) -> None:
        """Write which boxes the file holds into it, durably, on the first. No communication."""
        if self.boxes is None or not self._has_table:
            return
        content = encoded(self.boxes)
        write_arrays(self._path, [(self._table_at, numpy.frombuffer(content, numpy.uint8))])
        segments = sum(len(box.checksums) for box in self.boxes)
        place = [self._table_at, len(content), segments, checksum(content)]
        self.records[self._path.name]["table"] = place


def file_record(path: Path, boxes: list) -> dict:
    """Return a file's entry in the manifest: size, and checksum of what is in none of its boxes."""
    num_bytes = file_bytes(path)
    outside = ranges_outside(boxes, num_bytes)
    with Reader(path.parent) as reader:
        return {"bytes": num_bytes, "crc32": reader.crc32(path.name, outside)}
