"""The files of a table run: which rows they have, and that these are still the same.

data.path ------------> rows --split--> training, validation
data.validation_path -> rows ---------------------> validation, where it is given

run folder/data/  training.rows, validation.rows   where the rows of a text file begin
                  contents of both                 so that a run goes on with no others
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.contents import Contents
from ..data.samples import TRAINING, VALIDATION, Samples
from ..data.split import Selected, split_rows
from ..data.tables import TableSamples, open_table, write_index
from ..errors import ConfigurationError
from ..nn.loss import BinaryCrossEntropy, CrossEntropy, MeanSquaredError
from ..settings import fixed, setting

LOSSES = {
    "regression": MeanSquaredError,
    "binary": BinaryCrossEntropy,
    "multiclass": CrossEntropy,
}
KINDS = tuple(LOSSES)
_KEPT = "its scaling and the order of its rows follow from it"


@dataclass(frozen=True, kw_only=True)
class TableData:
    """The rows of a run: which file, which columns."""

    path: str | None = setting(
        None, "file of rows: .npy .npz .h5 .csv .tsv .parquet", is_path=True, is_common=True
    )
    kind: str = fixed(_KEPT, "regression", "what is predicted", among=KINDS)
    features: tuple[str, ...] = fixed(
        _KEPT, (), "columns of x: name, first:last, name[2:10]; none: all that are left"
    )
    target: tuple[str, ...] = fixed(_KEPT, (), "columns to predict; of classes, one with numbers")
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
    class_weights: tuple[float, ...] | str | None = fixed(
        _KEPT,
        None,
        "weights of the classes in the loss: a list; balanced, by their counts; or none",
        among=("balanced",),
        above=0.0,
    )


@dataclass(frozen=True)
class TableFiles:
    """The files of one run.

    data   which they are
    """

    data: TableData

    def rows(
        self, path, index=None, features=None, *, contents=None, has_targets=True
    ) -> TableSamples:
        """Return the rows of a file, not scaled.

        index      file with where its rows begin, written by store(); None: there is none
        features   columns of x; None: data.features
        contents   that the file must have; None: any
        """
        data = self.data
        return TableSamples(
            open_table(path, index, contents),
            data.features if features is None else features,
            data.target if has_targets else (),
            weights=data.weights if has_targets else None,
            classes=data.kind != "regression" and has_targets,
            dtype=None,
        )

    def parts(self, folder: Path | None) -> tuple[Samples, Samples]:
        """Return the training and the validation rows, not scaled.

        folder   of the run, with what store() wrote; None: it has written nothing yet
        """
        data = self.data
        contents = None if folder is None else Contents.stored(folder / "data")
        rows = self.rows(data.path, _index(folder, TRAINING), contents=contents)
        if data.validation_path is not None:
            how = {"features": tuple(part.spec for part in rows.features), "contents": contents}
            return rows, self.rows(data.validation_path, _index(folder, VALIDATION), **how)
        ranges = split_rows(len(rows), data.validation_percent, rows.run_length)
        training, validation = (Selected(rows, part) for part in ranges)
        return training, validation

    def store(self, parts: tuple[Samples, Samples], folder: Path) -> None:
        """Write where the rows of these parts begin, and what the files contain.

        Errors: ConfigurationError if the rows that are held out are also trained on.
        """
        (folder / "data").mkdir(parents=True, exist_ok=True)
        write_index(rows_of(parts[0]).table, _index(folder, TRAINING))
        held = self.data.validation_path
        if held is not None:
            write_index(rows_of(parts[1]).table, _index(folder, VALIDATION))
        contents = Contents()
        for samples in parts:
            rows_of(samples).table.note_contents(contents)
        if held is not None and contents.of(held) == contents.of(self.data.path):
            raise ConfigurationError(
                f"{held} of data.validation_path holds what {self.data.path} does; a model knows "
                "what it was trained on: give other rows, or data.validation_percent"
            )
        contents.store(folder / "data")

    def check(self, folder: Path) -> None:
        """Refuse to go on with files that were changed. Errors: InputError, OSError."""
        contents = Contents.stored(folder)
        for path in (self.data.path, self.data.validation_path):
            if path is not None:
                contents.check(path)
        contents.store(folder)


def rows_of(samples: Any) -> Any:
    """Return the rows of a table that these samples are all or part of."""
    return samples.whole if isinstance(samples, Selected) else samples


def _index(folder: Path | None, part: str) -> Any:
    return folder and folder / "data" / f"{part}.rows"
