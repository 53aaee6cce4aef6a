"""The door to the library pyarrow: its parts, and its files and columns as what NumPy holds.

    a column of Arrow                              as NumPy has it                     dtype
    numbers, booleans, decimals, durations         float64, NaN where nothing stands   float64
    dates, times with a date                       seconds since 1970, NaN             datetime64
    texts, and dictionaries of them                Text: numbers of the texts, -1      object

Structs are taken apart (`a.b`), and so are lists of a fixed size (`a[0]`); other nested columns
have no dtype and are no columns of a table.
"""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from ..errors import ConfigurationError, CorpusError, InputError
from ..files.reading import library, size_of

_MOST_ROWS = 1 << 26  # of a row group, which is uncompressed whole
_MOST_WIDTH = 1 << 12  # of a list of a fixed size
NUMBER, TIME, TEXT = map(numpy.dtype, ("float64", "datetime64[s]", "object"))


def arrow(path) -> Any:
    """Return the parts of pyarrow that read tables; path: what needs them, for the message.

    Errors: ConfigurationError if it is not installed.
    """
    try:
        import pyarrow
        from pyarrow import compute, csv, ipc, parquet
    except ImportError:
        raise ConfigurationError(
            f"{path} is a table that pyarrow reads: pip install 'shardkit[tables]'"
        ) from None
    return SimpleNamespace(pa=pyarrow, compute=compute, csv=csv, ipc=ipc, parquet=parquet)


def open_parquet(path: Path):
    """Return the file as a pyarrow.parquet.ParquetFile.

    Errors: CorpusError if it cannot be read, ConfigurationError if pyarrow is not installed.
    """
    parquet = arrow(path).parquet
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


# ---- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Text:
    """A column of texts, each of which is kept once.

    codes   [n] int64, the number of the text of each row; -1 where nothing stands
    values  the texts, all different
    """

    codes: numpy.ndarray
    values: tuple[str, ...]

    def __len__(self):
        return len(self.codes)

    def through(self, of_values, missing) -> numpy.ndarray:
        """Return what stands in the place of each row's text, or of nothing.

        of_values   one for each of the values
        """
        return numpy.array([*of_values, missing])[self.codes]


def dtype_of(kind) -> numpy.dtype | None:
    """Return what a column of this type of Arrow is in NumPy; None if it is none of a table."""
    types = arrow("a column").pa.types
    if types.is_dictionary(kind):
        return dtype_of(kind.value_type)
    if types.is_date(kind) or types.is_timestamp(kind):
        return TIME
    numbers = types.is_integer, types.is_floating, types.is_boolean, types.is_decimal
    others = types.is_time, types.is_duration, types.is_null
    if any(is_one(kind) for is_one in (*numbers, *others)):
        return NUMBER
    return TEXT if _is_text(types, kind) else None


def _is_text(types, kind) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"


def dtypes_of(schema) -> dict[str, numpy.dtype | None]:
    """Return {name: dtype} of the columns of a schema, nested ones taken apart.

    Errors: ConfigurationError if two have one name.
    """
    found: dict[str, Any] = {}
    for field in schema:
        flat = _flat_types(field.name, field.type)
        twins = flat.keys() & found.keys()
        if twins:
            raise ConfigurationError(f"two columns are named {min(twins)!r:.100}; rename one")
        found.update(flat)
    return {name: dtype_of(kind) for name, kind in found.items()}


def _flat_types(name: str, kind) -> dict[str, Any]:
    types = arrow(name).pa.types
    if types.is_struct(kind):
        inner: dict[str, Any] = {}
        for field in kind:
            inner.update(_flat_types(f"{name}.{field.name}", field.type))
        return inner
    if types.is_fixed_size_list(kind) and kind.list_size <= _MOST_WIDTH:
        return {f"{name}[{number}]": kind.value_type for number in range(kind.list_size)}
    return {name: kind}


def flat_column(table, name: str):
    """Return the column of this flat name of a table of Arrow; a list of a fixed size in parts."""
    compute = arrow(name).compute
    if name in table.column_names:
        return table.column(name)
    whole, _, index = name.rpartition("[")
    if index.endswith("]") and whole:
        return compute.list_element(flat_column(table, whole), int(index[:-1]))
    above, _, field = name.rpartition(".")
    return compute.struct_field(flat_column(table, above), field)


def column_of(column, dtype: numpy.dtype):
    """Return a column of Arrow as NumPy has it: [n] float64, or Text."""
    parts = arrow("a column")
    pa, kind = parts.pa, column.type
    if pa.types.is_dictionary(kind) and dtype != TEXT:
        column = column.cast(kind.value_type)
    if dtype == TEXT:
        return _text_of(pa, column)
    return _numbers_of(pa, column)


def _text_of(pa, column) -> Text:
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.large_string()).dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks() if column.num_chunks else None
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else None
    if whole is None:
        return Text(numpy.zeros(0, numpy.int64), ())
    codes = whole.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    values = whole.dictionary.to_pylist()
    firsts: dict[Any, int] = {}
    places = [firsts.setdefault(value, len(firsts)) for value in values]
    if None in firsts or len(firsts) < len(values):
        codes, values = _without_twins(codes, places, list(firsts))
    return Text(codes, tuple(values))


def _without_twins(codes, places, values):
    """Return codes and values where each text is once, and None is -1."""
    kept = [value for value in values if value is not None]
    renumbered = [-1 if value is None else kept.index(value) for value in values]
    return numpy.array([*map(renumbered.__getitem__, places), -1])[codes], kept


def _numbers_of(pa, column) -> numpy.ndarray:
    types, kind = pa.types, column.type
    if types.is_boolean(kind):
        column = column.cast(pa.int8())
    in_microseconds = None
    if types.is_date(kind) or types.is_timestamp(kind):
        in_microseconds = pa.timestamp("us")
    elif types.is_time(kind) or types.is_duration(kind):
        in_microseconds = pa.time64("us") if types.is_time(kind) else pa.duration("us")
    if in_microseconds is not None:
        column = column.cast(in_microseconds, safe=False).cast(pa.int64())
    numbers = column.cast(pa.float64(), safe=False).to_numpy()
    return numpy.array(numbers) / (1.0 if in_microseconds is None else 1e6)


def checked_rows(column, rows: int, path, name: str):
    """Return a column if it has so many rows. Errors: InputError."""
    if len(column) != rows:
        raise InputError(
            f"{path}: column {name} has {len(column)} of the {rows} rows of a group", path, name
        )
    return column
