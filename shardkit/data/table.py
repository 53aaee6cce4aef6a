"""Tables: files of rows.

    NumberTable    file --Field by Field--> read(row numbers, parts) --> one array for each part
    GroupedTable   file --group by group--> columns of numbers, texts and times (raw/groups.py)

A table knows which fields its file has and how to read any rows of them. It does not know which
columns are features and which are targets (tables.py).
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from ..errors import InputError
from .columns import Columns, Field, RowBand
from .contents import Contents, Stamp, stamp_of
from .raw.csv_head import is_index
from .raw.groups import RowGroups


class Table(ABC):
    """The rows of one file.

    path        of the file
    fields      {name: Field}, in the order of the file
    reads_bands it reads a RowBand of rows in place of Columns, and no more of the file
    """

    reads_bands = False

    def __init__(self, path: Path, fields: dict[str, Field]):
        self.path, self.fields = path, fields
        self._contents = Contents()
        self._stamp: Stamp | None = None
        self._one_reader = threading.Lock()

    def row_text(self, number: int) -> str:
        """Return where a row stands, for messages."""
        return f"row {number}"

    def files(self) -> tuple[Path, ...]:
        """Return the file, and others in which its rows lie."""
        return (self.path,)

    def known(self, contents: Contents, stamp: Stamp) -> None:
        """Take what its files held before, and the stamp that the file had when it was opened.

        Errors: InputError if one of them holds something else now.
        """
        self._contents, self._stamp = contents, stamp
        for path in self.files():
            contents.check(path)

    def note_contents(self, contents: Contents) -> None:
        """Add what its files hold. Errors: InputError if that is not what was opened."""
        for path in self.files():
            contents.of(path)
        if self._stamp is not None and stamp_of(self.path)[:2] != self._stamp[:2]:
            raise InputError(
                f"{self.path} was changed while the ranks looked at its rows; start again",
                self.path,
            )

    def fingerprint(self) -> str:
        """Return a hash of all that the files hold; it has no path in it."""
        return " ".join(self._contents.of(path) for path in self.files())


class NumberTable(Table):
    """A table whose rows can be read one by one, as numbers."""

    def read(self, numbers, parts: tuple[Columns | RowBand, ...]) -> list[numpy.ndarray]:
        """Return these rows, in this order, of each part. Threads take turns.

        Training and validation rows may be of one table, and be read by two threads.

        numbers  [n] int64 row numbers, each in range; some may be equal
        returns  fresh arrays [n, *shape of the field or band], or [n, width] of other columns,
                 in the dtype of the file and the byte order of this machine
        Errors: ConfigurationError with line and column on what is no number; OSError.
        """
        with self._one_reader:
            return self._values(numbers, parts)

    @abstractmethod
    def _values(self, numbers, parts: tuple[Columns | RowBand, ...]) -> list[numpy.ndarray]:
        """Do what read() says, for one thread at a time: what was read last may be kept."""

    def run_length(self, parts: tuple[Columns, ...]) -> int:
        """Return how many neighbors of these parts lie together in the file."""
        return 1


class GroupedTable(Table):
    """A table whose rows are read in groups, as what stands in the file.

    groups  see raw/groups.py
    begins  [groups + 1] int64: the number of the first row of each, and of all rows
    """

    def __init__(self, path: Path, groups: RowGroups):
        self.groups = groups
        self.begins = numpy.concatenate([[0], numpy.cumsum(groups.sizes, dtype=numpy.int64)])
        rows = int(self.begins[-1])
        found = {
            name: Field(name, rows, (), dtype, is_index=is_index(name))
            for name, dtype in groups.types.items()
        }
        super().__init__(path, found)

    def group(self, number: int, names) -> dict:
        """Return {name: column} of a group. Threads take turns. Errors: as RowGroups.read."""
        with self._one_reader:
            return self.groups.read(number, tuple(dict.fromkeys(names)))

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return len(self.begins) - 1

    def column(self, name: str) -> Iterator[Any]:
        """Yield the part of a column in each group."""
        for number in range(self.num_groups):
            yield self.group(number, (name,))[name]

    def row_text(self, number):
        return self.groups.place(number)

    def files(self):
        return self.groups.files

    def fingerprint(self):
        return self.groups.content or super().fingerprint()

    def run_length(self, parts: tuple[Columns, ...]) -> int:
        """Return the rows of the longest group; 1 where all are at hand."""
        return 1 if self.groups.is_in_memory else max(self.groups.sizes, default=1)
