"""The door to the library pyarrow: Parquet files, opened."""

from pathlib import Path

from ..errors import ConfigurationError, CorpusError
from ..files.reading import library, size_of

_MOST_ROWS = 1 << 26  # of a row group, which is uncompressed whole


def open_parquet(path: Path):
    """Return the file as a pyarrow.parquet.ParquetFile.

    Errors: CorpusError if it cannot be read, ConfigurationError if pyarrow is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(
            f"{path} is a Parquet file, which needs pyarrow: pip install 'shardkit[parquet]'"
        ) from None
    size_of(path, error=CorpusError)
    try:
        with library(path, error=CorpusError):
            file = parquet.ParquetFile(path)
            _check_groups(file.metadata)
            return file
    except CorpusError as error:
        raise CorpusError(
            f"{path} is no Parquet file: it cannot be read as Parquet ({error})", path
        ) from None


def _check_groups(about) -> None:
    """Raise ValueError unless the row groups have all rows, and each fits into memory.

    A column of one value takes a few bytes in the file, however many rows it has.
    """
    rows = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    if sum(rows) != about.num_rows or any(not 0 <= number <= _MOST_ROWS for number in rows):
        raise ValueError(
            f"row groups of {str(rows)[:100]} rows make {about.num_rows}; wanted groups of "
            f"{_MOST_ROWS:,} at most"
        )
