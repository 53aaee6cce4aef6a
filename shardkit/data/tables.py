"""Rows of a table as samples: x from the columns of features, y from those of targets.

    .npy .npz .h5                --NumberTable---> TableSamples   x [n, features], y [n, targets]
    .csv .parquet .arrow, folder --GroupedTable--> RawSamples     the same, encoded

Nothing is copied: each rank reads the rows that it is asked for, where they lie.
"""

import copy
import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy

from ..array import kernels
from ..errors import ConfigurationError, InputError
from ..files.paths import suffix_of
from ..files.reading import first_twin, size_of
from ..layout.part import Rows, SamplePart
from .array_table import ArrayTable
from .columns import Columns, RowBand, chosen
from .contents import Contents, stamp_of
from .hdf5_table import HDF5Table
from .raw.csv import CSVGroups
from .raw.encodings import ColumnEncoder
from .raw.frames import frame_of
from .raw.groups import ArrowGroups, FrameGroups, JoinedGroups, RowGroups, keys_of, rows_below
from .raw.samples import EncodedRows
from .samples import Samples
from .scaling import LARGEST_NUMBER
from .table import GroupedTable, Table

MOST_CLASSES = 1 << 20  # as many logits as a row may have
Asked: TypeAlias = tuple[Columns | RowBand, ...]
KINDS: dict[str, Any] = {".npy": ArrayTable, ".npz": ArrayTable}
KINDS |= dict.fromkeys((".h5", ".hdf5", ".hdf", ".nc", ".nc4"), HDF5Table)  # netCDF 4 is HDF5
_COMPRESSED = ("", ".gz", ".bz2", ".xz")
_CSV = tuple(f"{kind}{how}" for kind in (".csv", ".tsv", ".txt") for how in _COMPRESSED)
_ARROW = (".parquet", ".pq", ".arrow", ".feather")


def open_table(path, contents: Contents | None = None, **dialect) -> Table:
    """Open a file of rows, a folder of such files, or a frame in memory.

    contents  what its files held before; None: not known
    dialect   of CSV, as CSVGroups takes it
    Errors: ConfigurationError if it is missing, empty, damaged or of another kind.
    """
    if not isinstance(path, (str, Path)):
        return GroupedTable(Path(type(path).__name__), FrameGroups(path))
    path = Path(path)
    try:
        stamp = stamp_of(path)
        table = _opened(path, dialect)
        table.known(contents or Contents(), stamp)
        return table
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", path) from None


def _opened(path: Path, dialect: dict) -> Table:
    if path.is_dir():
        return GroupedTable(path, _joined(path, dialect))
    if not size_of(path):
        raise InputError(f"{path} is empty; wanted rows of numbers", path)
    kind: Any = KINDS.get(suffix_of(path))
    frame = frame_of(path) if kind is HDF5Table else None
    if frame is not None:
        return GroupedTable(path, FrameGroups(frame, (path,)))
    return kind(path) if kind else GroupedTable(path, _groups(path, dialect))


def _groups(path: Path, dialect: dict) -> RowGroups:
    name = path.name.lower()
    if name.endswith(_CSV):
        return CSVGroups(path, **dialect)
    if name.endswith(_ARROW):
        return ArrowGroups(path)
    known = ", ".join((*KINDS, *_ARROW, *_CSV[: len(_COMPRESSED)], ".tsv", ".txt"))
    raise ConfigurationError(
        f"{path} is of no kind that is known; wanted a file that ends in {known}"
    )


def files_of(path) -> list[Path]:
    """Return the files of a table: itself, or those of a folder. Errors: InputError."""
    path = Path(path)
    return rows_below(path, (*_ARROW, *_CSV)) if path.is_dir() else [path]


def _joined(folder: Path, dialect: dict) -> RowGroups:
    files = files_of(folder)
    keys = [keys_of(file, folder) for file in files]
    return JoinedGroups(folder, [_groups(file, dialect) for file in files], keys)


class TableSamples(Samples):
    """Chosen columns of a table: sample k is row k.

    features   x, by names (columns.py); (): all columns of numbers that are not named elsewhere
    targets    y, likewise; classes: y is [n] int64 class numbers from the only target
    weights    of the rows, the last column of y; None: rows have none
    apart      names of columns that are features only if they are named
    dtype      of x, and of y but for classes; None: that of the file

    x is [n, features], or [n, *shape] if the only feature is a field whose rows have several
    dimensions; y likewise.
    Errors: ConfigurationError on columns that are not there, are no numbers, stand on both sides,
    or have different lengths.
    """

    table: Any  # NumberTable

    def __init__(
        self,
        table: Table,
        features=(),
        targets=(),
        *,
        weights=None,
        classes=False,
        dtype="float32",
        apart=(),
    ):
        self.table = table
        where = str(table.path)
        self.targets = chosen(table.fields, targets, where, "target")
        self.weights = chosen(table.fields, (weights,) if weights else (), where, "weights")
        self.features = chosen(table.fields, features, where, "features") or self._others(apart)
        self._parts = (*self.features, *self.targets, *self.weights)
        self._classes, self._dtype = classes, dtype
        self._check()
        self._rows = self._parts[0].field.rows
        self.run_length = self.table.run_length(self._parts)

    def _others(self, apart) -> tuple[Columns, ...]:
        """Return all columns that are neither target nor weight.

        Errors: ConfigurationError where one of them seems to be the index of pandas.
        """
        taken = {part.field.name for part in (*self.targets, *self.weights)} | {*apart}
        rows = {part.field.rows for part in self.targets}
        others = [
            field
            for field in self.table.fields.values()
            if field.dtype is not None
            and field.name not in taken
            and (not rows or field.rows in rows)
        ]
        for field in others:
            if field.is_index:
                raise ConfigurationError(
                    f"{self.table.path}: column {field.name!r} seems to be the index that pandas "
                    "writes; write the file without it (index=False), or name data.features"
                )
        return tuple(map(Columns.whole, others))

    def _check(self):
        path = self.table.path
        if not self.features:
            raise ConfigurationError(f"{path} has no column of numbers left for features")
        for feature in self.features:
            for other in (*self.targets, *self.weights):
                if feature.overlaps(other):
                    raise ConfigurationError(
                        f"{path}: column {other.names[0]} is a feature and a target or weight; "
                        "take it out of features"
                    )
        first = self._parts[0].field
        for part in self._parts:
            if part.field.rows != first.rows:
                raise ConfigurationError(
                    f"{path}: {first.name} has {first.rows} rows, but {part.field.name} has "
                    f"{part.field.rows}; wanted as many of each"
                )
        several = len(self.targets) > 1  # one field may be millions of columns
        twice = first_twin(self.target_names) if several else None
        if twice is not None:
            raise ConfigurationError(f"{path}: {twice} is a target twice; take one out")
        widths = sum(part.width for part in self.targets), sum(p.width for p in self.weights)
        if self._classes and widths[0] != 1:
            raise ConfigurationError(
                f"{path}: classes in {widths[0]} columns; wanted one target, the class number"
            )
        if self.weights and widths[1] != 1:
            raise ConfigurationError(f"{path}: weights in {widths[1]} columns; wanted one")

    def __len__(self):
        return self._rows

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each column of x."""
        return tuple(name for part in self.features for name in part.names)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The name of each target."""
        return tuple(name for part in self.targets for name in part.names)

    @property
    def reads_parts(self):
        return self.table.reads_bands

    def read(self, numbers, part=None):
        numbers = numpy.asarray(numbers, numpy.int64)
        if part is None:
            return self._read(numbers, self._parts)
        x_asked, y_asked = self.features, self._parts[len(self.features) :]
        if self.reads_parts:
            x_asked = _band(x_asked, part, part.x_dim)
            y_asked = _band(y_asked, part, part.y_dim)
        x, y = self._read(numbers, x_asked + y_asked)
        return part.cut(_in_its_place(x, x_asked), _in_its_place(y, y_asked))

    def _read(self, numbers, asked):
        values = self.table.read(numbers, asked)
        num_features = len(self.features)
        y_parts = values[num_features:]
        x = self._joined(values[:num_features], asked[:num_features], numbers)
        if self._classes:
            y = self._class_numbers(y_parts[0], numbers)
            if self.weights:
                y = numpy.stack([y, y_parts[-1].reshape(-1)], 1)
            return x, y
        return x, self._joined(y_parts, asked[num_features:], numbers)

    def _joined(self, values, parts, numbers):
        """Return the parts side by side, checked for NaN. Errors: ConfigurationError."""
        for part_values, part in zip(values, parts):
            _check_finite(part_values, part, self.table, numbers)
        if len(values) == 1 and (values[0].ndim > 1 or not parts):
            return values[0].astype(self._dtype or values[0].dtype, copy=False)
        dtype = self._dtype or numpy.result_type(*(v.dtype for v in values), numpy.float32)
        width = sum(part.width for part in parts)
        joined = numpy.empty((len(numbers), width), dtype)
        at = 0
        for part_values, part in zip(values, parts):
            joined[:, at : at + part.width] = part_values.reshape(len(numbers), part.width)
            at += part.width
        return joined

    def _class_numbers(self, values, numbers):
        flat = values.reshape(-1)
        part = self.targets[0]
        _check_finite(flat, part, self.table, numbers)
        with numpy.errstate(invalid="ignore"):  # of floats beyond the integers
            classes = flat.astype(numpy.int64)
        wrong = numpy.flatnonzero((classes != flat) | (classes < 0) | (classes >= MOST_CLASSES))
        if wrong.size:
            raise ConfigurationError(
                f"{self._where(part, numbers[wrong[0]])}: {flat[wrong[0]]}; wanted a class number, "
                f"0, 1, 2, ... below {MOST_CLASSES:,}; others, such as ids, must be numbered first"
            )
        return classes

    def _where(self, part, number) -> str:
        return _where(self.table, part, number)

    def fingerprint(self):
        names = ";".join(
            f"{part.field.name}[{part.start}:{part.stop}]{part.field.dtype}" for part in self._parts
        )
        text = f"{self.table.fingerprint()} {self._rows} {names}"
        return hashlib.sha256(text.encode()).hexdigest()


class RawSamples(TableSamples):
    """Chosen columns of a GroupedTable: sample k is row k, as a ColumnEncoder has it.

    encoder  known once a survey has fitted it, or from the run; before that no row can be read
    """

    table: GroupedTable
    _encoded: EncodedRows

    def encoded(self, encoder: ColumnEncoder) -> "RawSamples":
        """Return these rows with an encoder."""
        made = copy.copy(self)
        made._encoded = EncodedRows(
            self.table, encoder, self.target_names, tuple(part.names[0] for part in self.weights)
        )
        return made

    def read(self, numbers):
        return self._encoded.read(numpy.asarray(numbers, numpy.int64))


def _band(columns: tuple[Columns, ...], part: SamplePart, dim: int | None) -> Asked:
    """Return the band of one whole field that this part is; the columns where it is none."""
    if len(columns) != 1 or not columns[0].is_whole:
        return columns
    field = columns[0].field
    inside = part.inside((field.rows, *field.shape), dim)
    if inside is None or dim is None or not field.shape[1:]:
        return columns
    spans = tuple([(own.start, own.stop) for own in inside[dim:]])
    return (RowBand(field, dim - 1, spans),)


def _in_its_place(array, asked: Asked):
    """Return what was read, a slab if it is a band."""
    for band in asked:
        if isinstance(band, RowBand):
            index, field = (slice(None), *band.index), band.field
            return Rows.at(array, band.dim + 1, index, (field.rows, *field.shape))
    return array


def _where(table: Table, part: Columns | RowBand, number, column: int = 0) -> str:
    name = part.name_of(int(column))
    return f"{table.path}, {table.row_text(int(number))}, column {name}"


def _check_finite(values, part: Columns | RowBand, table: Table, numbers) -> None:
    """Raise ConfigurationError on NaN and numbers beyond all scaling, with the first's place."""
    if values.dtype.kind != "f" or _is_finite(values):
        return
    flat = values.reshape(len(numbers), -1)
    row, column = numpy.argwhere(~(numpy.abs(flat) <= LARGEST_NUMBER))[0]
    where = _where(table, part, numbers[row], column)
    raise ConfigurationError(
        f"{where}: {flat[row, column]}; wanted a finite number, at most {LARGEST_NUMBER:.0e}"
    )


def _is_finite(values) -> bool:
    """Return True if no value is NaN, infinite or beyond all scaling."""
    if values.dtype.char in "fd":
        return kernels.largest_magnitude(values.reshape(-1)) <= LARGEST_NUMBER
    return bool((numpy.abs(values) <= LARGEST_NUMBER).all())
