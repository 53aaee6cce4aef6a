"""The files of a table run: which rows they have, and that these are still the same.

data.path ------------> rows --split--> training, validation
data.validation_path -> rows ---------------------> validation, where it is given

run folder/data/  contents of both                 so that a run goes on with no others
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.columns import chosen
from ..data.contents import Contents
from ..data.raw.findings import SCALINGS
from ..data.raw.samples import split_by
from ..data.samples import Samples, Selected
from ..data.split import split_rows
from ..data.table import GroupedTable
from ..data.tables import RawSamples, TableSamples, files_of, open_table
from ..errors import ConfigurationError
from ..settings import fixed, setting

KINDS = "regression", "binary", "multiclass", "mixed"
_OF_COLUMNS = (
    *("split_by", "split_in_time", "categories", "rare", "scaling", "target_scaling"),
    *("missing", "decimal", "dates"),
)
_FRAME = "the frame"
_KEPT = "its scaling and the order of its rows follow from it"


@dataclass(frozen=True, kw_only=True)
class TableData:
    """The rows of a run: which file, which columns."""

    path: str | None = setting(
        None,
        "file of rows: .csv .tsv .parquet .arrow .h5 .nc .npy .npz, or a folder of such files",
        is_path=True,
        is_common=True,
    )
    kind: str = fixed(
        _KEPT,
        "regression",
        "what is predicted; mixed: numbers, and classes where a target is text or in categories",
        among=KINDS,
    )
    features: tuple[str, ...] = fixed(
        _KEPT, (), "columns of x: name, first:last, name[2:10]; none: all that are left"
    )
    target: tuple[str, ...] = fixed(_KEPT, (), "columns to predict; of classes alone, one")
    quantiles: tuple[float, ...] = fixed(
        "its last layer has a column for each",
        (),
        "of targets that are numbers, 0.5 among them: 0.05, 0.5, 0.95 say; none: the mean",
        above=0.0,
        below=1.0,
    )
    weights: str | None = fixed(_KEPT, None, "column with the weight of each row; none: 1")
    validation_path: str | None = fixed(
        _KEPT, None, "file of rows held out; none: part of the rows of path", is_path=True
    )
    validation_percent: float = fixed(
        _KEPT, 10.0, "part of the rows held out", "percent", above=0.0, below=100.0
    )
    standardize: bool = fixed(
        _KEPT, True, "scale features and targets to mean 0 and deviation 1 on the training rows"
    )
    split_by: str | None = fixed(
        _KEPT, None, "column that says the group of a row: groups are held out whole; none: rows"
    )
    split_in_time: str | None = fixed(
        _KEPT, None, "column of times or numbers, of which the last are held out; none: rows"
    )
    categories: tuple[str, ...] = fixed(
        _KEPT, (), "columns of numbers that are names, such as codes; texts are anyway"
    )
    rare: int = fixed(_KEPT, 10, "categories of fewer training rows share one", "rows", minimum=1)
    scaling: str = fixed(
        _KEPT,
        "auto",
        "of numbers; auto: skewed ones by logarithms or ranks, all within 3 deviations",
        among=SCALINGS,
    )
    target_scaling: str = fixed(
        _KEPT,
        "auto",
        "of targets; auto: by logarithms where that makes them less skewed",
        among=SCALINGS,
    )
    missing: tuple[str, ...] = fixed(
        _KEPT, (), "texts of a CSV that stand for nothing, beside NA, NaN, null and such"
    )
    decimal: str | None = fixed(
        _KEPT, None, "decimal sign of a CSV; none: as its first rows have it", among=(".", ",")
    )
    dates: str | None = fixed(
        _KEPT, None, "form of dates in a CSV, %d/%m/%Y say, beside ISO 8601 and 31.12.2026"
    )
    class_weights: tuple[float, ...] | str | None = fixed(
        _KEPT,
        None,
        "weights of the classes in the loss: a list; balanced, by their counts; or none",
        among=("balanced",),
        above=0.0,
    )

    def check_split(self) -> None:
        """Raise ConfigurationError if more than one setting says which rows are held out."""
        names = "validation_path", "split_by", "split_in_time"
        given = [f"data.{name}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(
                f"{' and '.join(given)} both say which rows are held out; give one of them"
            )

    def check_kind(self) -> None:
        """Raise ConfigurationError on settings that mean nothing for this kind of target."""
        if not self.target:
            raise ConfigurationError("data.target is not given; wanted the column to predict")
        if self.class_weights is not None and not self.has_classes:
            raise ConfigurationError(
                f"data.class_weights is for classes, but data.kind = {self.kind!r}; take it out"
            )
        if not self.quantiles:
            return
        if self.has_classes:
            raise ConfigurationError(
                f"data.quantiles is for numbers, but data.kind = {self.kind!r}; take it out"
            )
        if 0.5 not in self.quantiles or [*self.quantiles] != sorted({*self.quantiles}):
            raise ConfigurationError(
                f"data.quantiles = {list(self.quantiles)}; wanted them in their order, each once, "
                "and 0.5 among them, which is the prediction"
            )

    @property
    def has_classes(self) -> bool:
        """True if the only target is a class."""
        return self.kind in ("binary", "multiclass")

    @property
    def place(self) -> str:
        """Where the rows are, for messages."""
        return self.path or _FRAME


@dataclass(frozen=True)
class TableFiles:
    """The files of one run.

    data   which they are
    frame  rows in memory, in place of data.path
    """

    data: TableData
    frame: Any = None

    def rows(
        self, path, features=None, *, texts=(), contents=None, has_targets=True
    ) -> TableSamples:
        """Return the rows of a file, not scaled.

        features   columns of x; None: data.features
        texts      columns that are texts, whatever a CSV file holds
        contents   that the file must have; None: any
        """
        data = self.data
        table = open_table(
            path,
            contents,
            texts=(*data.categories, *texts),
            missing=data.missing,
            decimal=data.decimal,
            dates=data.dates,
        )
        self._check_columns(table)
        if has_targets:  # among which there may be categories
            chosen(table.fields, data.categories, str(table.path), "data.categories")
        return (RawSamples if isinstance(table, GroupedTable) else TableSamples)(
            table,
            data.features if features is None else features,
            data.target if has_targets else (),
            weights=data.weights if has_targets else None,
            classes=data.has_classes and has_targets,
            dtype=None,
            apart=() if data.split_by is None else (data.split_by,),
        )

    @property
    def _source(self):
        return self.data.path if self.frame is None else self.frame

    def check_source(self) -> None:
        """Raise ConfigurationError unless there is either a file or a frame."""
        if self.frame is not None and self.data.path is not None:
            raise ConfigurationError(f"data.path = {self.data.path!r} beside a frame; give one")
        if self._source is None:
            raise ConfigurationError("data.path is not given; wanted a file of rows")

    def _check_columns(self, table):
        """Raise ConfigurationError on settings that this kind of file does not have."""
        if isinstance(table, GroupedTable):
            return
        for name in _OF_COLUMNS:
            if getattr(self.data, name) != getattr(TableData(), name):
                raise ConfigurationError(
                    f"data.{name} is for tables of columns, .csv and .parquet say; {table.path} "
                    "holds arrays"
                )
        if self.data.kind == "mixed":
            raise ConfigurationError(
                f"data.kind = 'mixed' is for tables of columns; {table.path} holds arrays"
            )

    def parts(self, folder: Path | None) -> tuple[Samples, Samples]:
        """Return the training and the validation rows, not scaled.

        folder   of the run, with what store() wrote; None: it has written nothing yet
        """
        data = self.data
        contents = None if folder is None else Contents.stored(folder / "data")
        rows = self.rows(self._source, contents=contents)
        if data.validation_path is not None:
            features = tuple(part.spec for part in rows.features)
            texts = [name for name, field in rows.table.fields.items() if field.is_text]
            held = self.rows(data.validation_path, features, texts=texts, contents=contents)
            if type(held) is not type(rows):
                raise ConfigurationError(
                    f"{data.validation_path} and {data.place} are of two kinds, arrays and columns "
                    "of a table; write both as one, .csv or .h5 say"
                )
            return rows, held
        training, validation = (Selected(rows, part) for part in self._ranges(rows))
        return training, validation

    def _ranges(self, rows):
        data = self.data
        name = data.split_by or data.split_in_time
        if name is None:
            return split_rows(len(rows), data.validation_percent, rows.run_length)
        in_time = data.split_by is None
        setting_name = "data.split_in_time" if in_time else "data.split_by"
        (part,) = chosen(rows.table.fields, (name,), str(rows.table.path), setting_name)
        return split_by(rows.table, part.field.name, data.validation_percent, in_time=in_time)

    def store(self, parts: tuple[Samples, Samples], folder: Path) -> None:
        """Write what the files of these parts contain.

        Errors: ConfigurationError if the rows that are held out are also trained on.
        """
        (folder / "data").mkdir(parents=True, exist_ok=True)
        held = self.data.validation_path
        contents, tables = Contents(), [rows_of(samples).table for samples in parts]
        for table in tables:
            table.note_contents(contents)
        if self.frame is not None:
            contents.check_given(_FRAME, tables[0].fingerprint())
        if held is not None and tables[0].fingerprint() == tables[1].fingerprint():
            raise ConfigurationError(
                f"{held} of data.validation_path holds what {self.data.path} does; a model knows "
                "what it was trained on: give other rows, or data.validation_percent"
            )
        contents.store(folder / "data")

    def check(self, folder: Path) -> None:
        """Refuse to go on with files that were changed. Errors: InputError, OSError."""
        contents = Contents.stored(folder)
        for path in (self.data.path, self.data.validation_path):
            for file in () if path is None else files_of(path):
                contents.check(file)
        if self.frame is not None:
            contents.check_given(_FRAME, open_table(self.frame).fingerprint())
        contents.store(folder)


def rows_of(samples: Any) -> Any:
    """Return the rows of a table that these samples are all or part of."""
    return samples.source if isinstance(samples, Selected) else samples
