"""The door to the library pyarrow: Parquet files, opened."""

from pathlib import Path

from ..errors import ConfigurationError, CorpusError


def open_parquet(path: Path):
    """Return the file as a pyarrow.parquet.ParquetFile.

    Errors: CorpusError if it cannot be read, ConfigurationError if pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(
            f"{path} is a Parquet file, which needs pyarrow: pip install 'shardkit[parquet]'"
        ) from None
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise CorpusError(
            f"{path} is no Parquet file: it cannot be read as Parquet ({first_line(error)})"
        ) from None


def first_line(error: Exception) -> str:
    """Return what is wrong, without the details that the library adds."""
    return str(error).partition("\n")[0]
