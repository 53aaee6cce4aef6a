"""Parquet: a document is a row of one column; a block is some rows of a row group.

A row group is the least that can be read, and is kept while its blocks are asked for one after
another.
"""

from pathlib import Path

from ...errors import CorpusError
from ...files.reading import library
from ..arrow import open_parquet
from .readers import DocumentReader, Span, hint_of


class ParquetReader(DocumentReader):
    """A Parquet file, read by the library pyarrow."""

    def __init__(self, path: Path, field: str, name: Path | None = None):
        super().__init__(path, field, name)
        self._file = open_parquet(path)
        self._kept: tuple = (None, None)  # a row group, and its column

    def spans(self, block_bytes):
        """Return blocks of about so many bytes of all columns, before compression.

        Not of the column alone: where the statistics of a column are damaged, the library ends the
        process when it is asked about it.
        """
        self._check_column()
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
        """Yield the text of each row."""
        rows = self._rows(span.group).slice(span.start, span.stop - span.start)
        for number, text in enumerate(rows.to_pylist(), span.start):
            if text is None:
                row = self._rows_before(span.group) + number + 1
                raise CorpusError(f"{self.path} row {row} has no value in {self.field!r}")
            yield text, True

    def _check_column(self) -> None:
        """Raise CorpusError if there is no column of text."""
        with library(self.path, error=CorpusError):
            schema = self._file.schema_arrow
        if self.field not in schema.names:
            raise CorpusError(
                f"{self.path} has no column {self.field!r}{hint_of(self.field, schema.names)}"
            )
        kind = schema.field(self.field).type
        if str(kind) not in ("string", "large_string", "string_view"):
            raise CorpusError(f"{self.path}: column {self.field!r} is {kind}; wanted strings")

    def _rows(self, group: int):
        if self._kept[0] != group:
            try:
                with library(self.path, error=CorpusError):
                    table = self._file.read_row_group(group, columns=[self.field])
                    table.validate(full=True)  # strings are UTF-8
                    self._kept = group, table.column(0)
            except CorpusError as error:
                raise CorpusError(
                    f"{self.path} cannot be read from row {self._rows_before(group) + 1} on: "
                    f"{error}",
                    self.path,
                    self.field,
                ) from None
        return self._kept[1]

    def _rows_before(self, group: int) -> int:
        return sum(self._file.metadata.row_group(g).num_rows for g in range(group))
