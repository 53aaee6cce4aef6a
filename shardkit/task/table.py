"""`table`: rows of numbers in, numbers or classes out, through an MLP.

    file --TableSamples--> rows --split--> training, validation --Scaled--> x, y of mean 0
                                              |
    before that one pass over all rows, shared by the ranks (survey.py), which checks them, counts
    classes and fits the scaling; it is stored in the run folder and in every checkpoint as
    table.json

Predictions and metrics are in the units of the file. TableTask has all of this but the model.
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy

from ..annotations import FilePath, Shape
from ..data.samples import TRAINING, VALIDATION, Samples, Selected
from ..data.scaling import Moments, Scaling
from ..data.tables import RawSamples
from ..errors import ConfigurationError
from ..files.reading import MOST_TABLE_BYTES, read_bytes
from ..files.writing import write_whole
from ..nn.loss import Weighted
from ..nn.models.mlp import ACTIVATIONS, MLP
from ..nn.on_parts import partwise
from ..settings import fixed
from .class_checks import check_exact, num_classes
from .described import DESCRIPTION, Described, Scaled
from .form import RowForm, Vectors
from .heads import Heads, LossOfHeads, heads_of, metrics_of, num_outputs, outputs_of
from .raw_survey import RawSurvey
from .survey import TableSurvey
from .table_files import TableData, TableFiles, rows_of
from .task import Task


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """The MLP of a run."""

    hidden: tuple[int, ...] = fixed(
        "its checkpoints have these sizes", (128, 128), "units of each hidden layer", minimum=1
    )
    activation: str = fixed(
        "its weights were trained with it", "gelu", "between the layers", among=tuple(ACTIVATIONS)
    )


@dataclass(frozen=True)
class Sizes:
    """What a file says of a run: columns of x, columns of the prediction, rows to train on.

    classes   how many; 0 of regression
    form      of a row: columns, shapes
    """

    num_features: int
    num_outputs: int
    training_rows: int
    classes: int
    form: RowForm


def _opened(files: TableFiles, folder: Path, described: Described) -> dict[str, Samples]:
    """Return the samples of a run whose files are prepared, as its model takes them."""
    parts = zip((TRAINING, VALIDATION), files.parts(folder))
    return {name: _as_model_takes(rows, described) for name, rows in parts}


def _as_model_takes(rows: Any, described: Described) -> Samples:
    """Return rows scaled or encoded."""
    if isinstance(rows, Selected):
        if isinstance(rows.source, RawSamples):
            return Selected(rows.source.encoded(described.columns), rows.ranges)
    elif isinstance(rows, RawSamples):
        return rows.encoded(described.columns)
    return Scaled(rows, described)


class TableTask(Task):
    """Rows of numbers or classes, and a model of one's own.

    A class derived from it has make_model() and, if the model has settings, Settings. Known then:

    Parameters
    ----------
    settings
        The whole configuration: settings.data.path, ...; frozen.
    described
        What is known of rows that no file holds, on which the model is made; None: open() reads it.

    Attributes
    ----------
    num_features, num_outputs
        Sizes of x and of the prediction, one row each.
    described
        Names of the columns, scaling, classes.
    loss, metrics
        Those of data.kind; the model's own loss where y is a field.
    rows
        What a row is (form.py): a vector, or an array.
    """

    rows = Vectors()

    sections = {"data": TableData}
    defaults = {"batch.sequences": 256, "batch.micro_batch": 64, "run.validation_batches": None}
    sample = "rows"

    def __init__(self, settings: Any, described: Described | None = None) -> None:
        super().__init__(settings)
        self._new: Any = None  # (Samples, Samples): the parts of a run that starts
        if described is not None:
            self.described, self.loss = described, loss_of(settings.data, described)

    @property
    def _files(self) -> TableFiles:
        return TableFiles(self.settings.data)

    # ---- before a run ----------------------------------------------------------------------------

    def look(self) -> "Sizes":
        """Return what the file says of the model, without a run; nothing is written.

        Opens the file, and reads all its rows where they have several classes, or columns that are
        fitted.

        Raises
        ------
        ConfigurationError, OSError
        """
        self._check()
        self._new = self._files.parts(None)
        rows = rows_of(self._new[0])
        data = self.settings.data
        form = self.rows.form(rows, data)
        features, outputs = form.widths
        outputs *= max(len(data.quantiles), 1)
        classes = 2 * data.has_classes
        if data.kind == "multiclass" or isinstance(rows, RawSamples):
            survey = self._survey()
            seen = self._describe([survey.look(number) for number in range(len(survey))])
            features, classes = seen.looked_up_width, seen.classes
            outputs = num_outputs(heads_of(data, seen))
        return Sizes(features, outputs, len(self._new[0]), classes, form)

    # ---- before the model ------------------------------------------------------------------------

    def num_surveys(self, folder: Path, resume: bool) -> int:
        if resume and (folder / "data" / DESCRIPTION).exists():
            return 0
        self._check()
        self._new = self._files.parts(None)
        return len(self._survey())

    def survey(self, number: int) -> Any:
        return self._survey().look(number)

    def _survey(self) -> "TableSurvey | RawSurvey":
        if isinstance(rows_of(self._new[0]), RawSamples):
            return RawSurvey(self._new[0], self._new[1], self.settings.data)
        data = self.settings.data
        form = self.rows.form(rows_of(self._new[0]), data)
        check = partial(self.rows.check, data=data)
        rows, held_out = self._new
        return TableSurvey(rows, held_out, form, has_classes=data.has_classes, check=check)

    def prepare(self, folder: Path, resume: bool) -> None:
        if self._new is None:
            self._files.check(folder / "data")
            return
        described = self._describe(self.surveyed)
        self._files.store(self._new, folder)
        write_whole(folder / "data" / DESCRIPTION, described.to_json())

    def _check(self):
        data = self.settings.data
        self._files.check_source()
        data.check_split()
        data.check_kind()
        self.rows.check_settings(self.settings)

    def _describe(self, findings: list) -> Described:
        """Return what the pass over all rows has found. Errors: ConfigurationError."""
        survey = self._survey()
        if isinstance(survey, RawSurvey):
            return survey.described(findings)
        training, validation = survey.merged(findings)
        rows = rows_of(self._new[0])
        form = self.rows.form(rows, self.settings.data)
        counts, data = training.class_counts, self.settings.data
        has_classes, is_scaled = data.has_classes, data.standardize
        most, num_rows = max(len(validation.class_counts) - 1, 0), len(self._new[0])
        classes = 0
        if has_classes:
            classes = num_classes(data, len(counts), most, num_rows, rows.target_names[0])
        x_scaling = _scaling(training.x, form.x_axis, is_scaled)
        y_scaling = _scaling(training.y, form.y_axis, is_scaled and not has_classes)
        return Described(
            tuple(part.spec for part in rows.features),
            form.x_names,
            form.y_names,
            x_scaling,
            y_scaling,
            classes,
            tuple(counts.tolist()),
            form.x_shape,
            form.y_shape,
        )

    def open(self, folder: Path) -> None:
        path = folder / "data" / DESCRIPTION
        try:
            content = read_bytes(path, MOST_TABLE_BYTES)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{path}, which says how rows become numbers, is not there; each checkpoint has a "
                f"copy: bring {DESCRIPTION} of one of them back to {path.parent}"
            ) from None
        self.described = Described.from_json(content, path)
        self.loss = loss_of(self.settings.data, self.described)
        # when they are asked for: evaluation on other rows needs none of them
        self._samples = cache(partial(_opened, self._files, folder, self.described))
        self.metrics = metrics_of(self._heads)

    # ---- the model -------------------------------------------------------------------------------

    @property
    def _heads(self) -> Heads:
        return heads_of(self.settings.data, self.described)

    @property
    def num_features(self) -> int:
        """The number of columns of x."""
        return len(self.described.feature_names)

    @property
    def num_outputs(self) -> int:
        """The number of targets, of their quantiles, of logits; two classes have one logit."""
        return num_outputs(self._heads)

    def companions(self) -> dict[str, bytes]:
        return {DESCRIPTION: self.described.to_json()}

    # ---- data ------------------------------------------------------------------------------------

    def samples(self, part: str) -> Any:
        return self._samples()[part]

    def samples_of(self, path: FilePath, *, has_targets: bool = True) -> Samples:
        described = self.described
        texts = described.columns.texts
        rows = self._files.rows(path, described.features, texts=texts, has_targets=has_targets)
        if isinstance(rows, RawSamples):
            return _as_model_takes(rows, described)
        if described.encoder is not None:
            raise ConfigurationError(
                f"{path} holds arrays, and this run was trained on columns of a table, as they are "
                "in .csv and .parquet; write these rows so"
            )
        names = described.feature_names
        found = self.rows.form(rows, self.settings.data).x_names
        if found != names:
            raise ConfigurationError(
                f"{path} has {len(found)} features, {_ends(found)}, but this run was trained on "
                f"{len(names)}, {_ends(names)}"
            )
        return _as_model_takes(rows, described)

    @partwise
    def outputs(self, prediction: Any) -> dict[str, numpy.ndarray]:
        return outputs_of(self._heads, prediction)


def on_frame(task: type[Task], frame: Any) -> type[Task]:
    """Return a task on the rows of a frame that a script has in memory, in place of data.path.

    Errors: ConfigurationError if this task is not one of tables.
    """
    if not issubclass(task, TableTask):
        raise ConfigurationError(
            f"{task.__name__} takes no frame as data; pass a model and Samples or arrays, or a "
            "task derived from TableTask"
        )
    files = property(lambda self: TableFiles(self.settings.data, frame))
    return type(task.__name__, (task,), {"_files": files})


class TableMLP(TableTask):
    """`table`, the task that is built in: rows, and an MLP."""

    sections = {"model": TableModel, "data": TableData}
    defaults = {"run.folder": "runs/table", **TableTask.defaults}

    def make_model(self):
        model, embeddings = self.settings.model, self.described.columns.embeddings
        check_exact(self.settings.parallel.compute_dtype, embeddings)
        return MLP(
            [self.num_features, *model.hidden, self.num_outputs],
            activation=model.activation,
            task="classification" if self.settings.data.kind == "multiclass" else "regression",
            seed=self.settings.run.seed,
            feature_names=self.described.feature_names,
            embeddings=embeddings,
        )


def described_on(grid: Shape, found: Sizes) -> Described:
    """Return what is known of rows like those of a file, on another grid; nothing is scaled."""
    form, classes = found.form, found.classes
    x, y = map(Scaling.none, form.widths)
    x_shape, y_shape = (*form.x_shape[:1], *grid), form.y_shape
    if len(y_shape) > 1:
        y_shape = (*y_shape[:1], *grid)
    known = (), form.x_names, form.y_names
    return Described(*known, x, y, classes, (1,) * classes, x_shape, y_shape)


def loss_of(data: TableData, described: Described) -> Any:
    """Return the loss of these rows; None: the model's own, where y is a field."""
    if len(described.y_shape) > 1:
        return None
    has_weights = data.weights is not None
    heads = heads_of(data, described)
    if len(heads) > 1:
        return LossOfHeads(heads, has_weights=has_weights)
    (head,) = heads.values()
    weights = data.class_weights
    if weights == "balanced":
        counts = numpy.maximum(described.class_counts, 1)
        weights = (sum(counts) / len(counts) / counts).tolist()
    if weights is None and not has_weights:
        return head.loss
    return Weighted(head.loss, class_weights=weights, has_row_weights=has_weights)


def _scaling(moments: Moments, axis: int, is_scaled: bool) -> Scaling:
    """Return the scaling of these columns; is_scaled False: one that changes nothing."""
    return moments.scaling(axis) if is_scaled else Scaling.none(len(moments.mean), axis)


def _ends(names) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
