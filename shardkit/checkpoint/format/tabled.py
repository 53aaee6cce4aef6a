"""The boxes of a checkpoint of many files: found by the manifest, described in each file's table.

    wanted of a tensor --parts of the manifest--> files --their tables--> boxes

A rank opens the tables of the files that it reads, and keeps a few.
"""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

from ...errors import CheckpointError
from ...layout.box import Box
from .files import checksum
from .manifest import TABLED_VERSION, stored_boxes
from .parts import TensorCut, check_whole, range_of
from .reads import Reader
from .stored import SegmentTable, StoredBox
from .tables import FileTable

_MOST_TABLE_BYTES = 1 << 28  # of tables that are kept: who reads more files reads most of them


def boxes_of(folder: Path, manifest: dict) -> "SegmentTable | TabledBoxes":
    """Return the boxes of a checkpoint, listed in its manifest or in its files."""
    if manifest["version"] == TABLED_VERSION:
        return TabledBoxes(folder, manifest)
    tensors = manifest["tensors"].items()
    return SegmentTable([box for name, entry in tensors for box in stored_boxes(name, entry)])


class TabledBoxes:
    """The StoredBoxes of a checkpoint whose manifest has `parts`."""

    def __init__(self, folder: Path, manifest: dict):
        self._folder = folder
        self._files = manifest["files"]
        self._names = [name for name, record in self._files.items() if "table" in record]
        self._tensors = manifest["tensors"]
        self._parts = [TensorCut(entry, len(self._names)) for entry in manifest["parts"]]
        counts = [self._files[name]["table"][2] for name in self._names]
        self._first = [0, *accumulate(counts)]
        self._number_of = {name: number for number, name in enumerate(self._names)}
        self._tables: dict[str, FileTable] = {}
        self._kept_bytes = 0

    def __len__(self):
        return self._first[-1]

    def of(self, tensor: str, wanted: Box) -> list[StoredBox]:
        """Return boxes of a tensor that together hold what is wanted of it.

        Errors: CheckpointError, PermissionError.
        """
        entry = self._tensors[tensor]
        shape, first = tuple(entry["shape"]), entry["first"]
        if wanted.is_empty:
            return []
        files = self._parts[entry["parts"]].files(*range_of(wanted, shape))
        boxes = [
            box for file in files for box in self._table(self._names[first + file]).boxes_of(tensor)
        ]
        for box in boxes:
            found = f"{box.dtype} {box.global_shape}"
            stated = f"{entry['dtype']} {shape}"
            if found != stated:
                raise CheckpointError(
                    f"{self._folder / box.file} has {tensor} of {found}, but the manifest says "
                    f"{stated}"
                )
        check_whole(tensor, wanted, boxes)
        return boxes

    def boxes_of(self, file: str) -> list[StoredBox]:
        """Return the boxes in one file, from its beginning to its end."""
        return self._table(file).boxes() if file in self._number_of else []

    def number(self, box: StoredBox, start: int) -> int:
        """Return the number of the segment that holds byte `start` of the box."""
        first = self._first[self._number_of[box.file]]
        return first + self._table(box.file).number(box, start)

    def __getitem__(self, number: int) -> tuple[StoredBox, int, int]:
        """Return the box of a segment, and which of its bytes [start, stop) the segment is."""
        file = bisect_right(self._first, number) - 1
        return self._table(self._names[file]).segment(number - self._first[file])

    def _table(self, file: str) -> FileTable:
        table = self._tables.pop(file, None)
        if table is None:
            table = self._opened(file)
            self._kept_bytes += self._files[file]["table"][1]
        self._tables[file] = table
        while self._kept_bytes > _MOST_TABLE_BYTES and len(self._tables) > 1:
            oldest = next(iter(self._tables))  # the one that was not asked for longest
            del self._tables[oldest]
            self._kept_bytes -= self._files[oldest]["table"][1]
        return table

    def _opened(self, file: str) -> FileTable:
        record = self._files[file]
        at, num_bytes, num_segments, wanted = record["table"]
        memory = bytearray(num_bytes)
        with Reader(self._folder) as reader:
            reader.read(file, at, memoryview(memory))
        content = bytes(memory)
        if checksum(content) != wanted:
            raise CheckpointError(
                f"{self._folder / file} is damaged: its table has checksum "
                f"{checksum(content)}, but the manifest says {wanted}"
            )
        table = FileTable(file, record["bytes"], content)
        if len(table) != num_segments:
            raise CheckpointError(
                f"{self._folder / file} is damaged: its table has {len(table)} segments, but the "
                f"manifest says {num_segments}"
            )
        return table
