"""Parquet: a record is a row; a block is some rows of a row group.

A row group is the least that can be read, and is kept while its blocks are asked for one after
another.
"""

from pathlib import Path

from ...errors import CorpusError
from ...files.reading import library
from ..arrow import open_parquet
from .readers import DocumentReader, Documents, RecordError, Span


class ParquetReader(DocumentReader):
    """A Parquet file, read by the library pyarrow."""

    def __init__(self, path: Path, documents: Documents, name: Path | None = None):
        super().__init__(path, documents, name)
        self._file = open_parquet(path)
        self._kept: tuple = (None, None)  # a row group, and its columns

    def spans(self, block_bytes):
        """Return blocks of about so many bytes of all columns, before compression.

        Not of the column alone: where the statistics of a column are damaged, the library ends the
        process when it is asked about it.
        """
        self._columns()
        about = self._file.metadata
        found = []
        for group in range(about.num_row_groups):
            rows = about.row_group(group).num_rows
            size = max(about.row_group(group).total_byte_size, 0)
            per_block = max(1, -(-rows // max(1, -(-size // block_bytes))))
            found += [
                Span(start, min(start + per_block, rows), per_block * size // rows, group)
                for start in range(0, rows, per_block)
            ]
        return found

    def pieces(self, span):
        """Yield the document of each row."""
        rows = self._rows(span.group).slice(span.start, span.stop - span.start)
        for number, record in enumerate(rows.to_pylist(), span.start):
            try:
                yield self.documents.piece(record)
            except RecordError as error:
                row = self._rows_before(span.group) + number + 1
                raise CorpusError(f"{self.path} row {row} {error}") from None

    def _columns(self) -> list[str]:
        with library(self.path, error=CorpusError):
            schema = self._file.schema_arrow
        return self.documents.columns(self.path, schema)

    def _rows(self, group: int):
        if self._kept[0] != group:
            columns = self._columns()
            try:
                with library(self.path, error=CorpusError):
                    table = self._file.read_row_group(group, columns=columns)
                    table.validate(full=True)  # strings are UTF-8
                    self._kept = group, table
            except CorpusError as error:
                raise CorpusError(
                    f"{self.path} cannot be read from row {self._rows_before(group) + 1} on: "
                    f"{error}",
                    self.path,
                    *columns,
                ) from None
        return self._kept[1]

    def _rows_before(self, group: int) -> int:
        return sum(self._file.metadata.row_group(g).num_rows for g in range(group))
