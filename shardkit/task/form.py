"""What a row of a file is to a model: a vector of columns, or an array with channels.

    Vectors   x [columns]                                   the task `table`
    Arrays    x [channels, *grid], [time, features], ...    tasks of architectures.py

A column is what is scaled by itself. Of an array it is a channel, over all points of the grid or
steps of time.
"""

from dataclasses import dataclass

from ..annotations import Shape
from ..data.tables import TableSamples
from ..errors import ConfigurationError


@dataclass(frozen=True)
class RowForm:
    """What the columns of rows are, and where they lie.

    x_names, y_names   of the columns of x, of the targets
    elements           of a row, x and targets together
    x_axis, y_axis     of arrays of rows, along which the columns lie
    x_shape, y_shape   of a row, where a row is an array; () for a vector
    """

    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    elements: int
    x_axis: int = -1
    y_axis: int = -1
    x_shape: Shape = ()
    y_shape: Shape = ()

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of columns of x, of the targets."""
        return len(self.x_names), len(self.y_names)


class Vectors:
    """Rows of numbers, each with a name."""

    def check_settings(self, settings) -> None:
        """Raise ConfigurationError on settings of data that such rows do not have."""

    def form(self, rows: TableSamples, data) -> RowForm:
        """Return where the columns of these rows lie; data: its settings.

        Errors: ConfigurationError.
        """
        names = rows.feature_names, rows.target_names
        return RowForm(*names, sum(map(len, names)))

    def check(self, x, data) -> None:
        """Raise ConfigurationError if x [n, ...] are no such rows."""
        if x.ndim != 2:
            raise ConfigurationError(
                f"{data.path}: a row of features has shape {x.shape[1:]}; the task `table` takes "
                "vectors, arrays need one like `fno` or a task of your own"
            )


class Arrays(Vectors):
    """Rows that are arrays, of one field of the file.

    dims          of a row of x: the numbers of dims that the model takes
    words         such a row in words: "(channels, height, width)"
    channel_axis  of arrays of rows: 1, or -1 where the channels are last
    kinds         of data.kind that the model predicts
    """

    def __init__(
        self,
        dims: tuple[int, ...],
        words: str,
        channel_axis: int = 1,
        kinds: tuple[str, ...] = ("regression", "binary", "multiclass"),
    ):
        self._dims, self._words = dims, words
        self._axis, self._kinds = channel_axis, kinds

    def check_settings(self, settings):
        data = settings.data
        if data.kind not in self._kinds:
            raise ConfigurationError(
                f"data.kind = {data.kind!r}; the task {settings.run.task!r} predicts "
                f"{', '.join(self._kinds)}"
            )
        for name in ("weights", "quantiles"):
            if getattr(data, name):
                raise ConfigurationError(
                    f"data.{name} is for rows of numbers (the task `table`); rows of arrays have "
                    "none"
                )

    def form(self, rows, data):
        x = rows.features[0].field
        if len(rows.features) > 1 or not rows.features[0].is_whole:
            raise ConfigurationError(
                f"data.features = {list(data.features)} has several columns; wanted one field, "
                f"whose rows are {self._words}"
            )
        self._check_shape(x.shape, data)
        targets = rows.targets
        if len(targets) > 1 and max(len(part.field.shape) for part in targets) > 1:
            raise ConfigurationError(
                f"data.target = {list(data.target)} has several arrays; wanted one"
            )
        y_shape = _shape_of(targets) if targets and data.kind == "regression" else ()
        y_axis = self._axis if len(y_shape) == len(x.shape) else -1
        if len(y_shape) > 1:  # of its points, rows.target_names would be millions
            y_names = _channels(targets[0].field.name, y_shape, y_axis)
        else:
            y_names = rows.target_names
        return RowForm(
            _channels(x.name, x.shape, self._axis),
            y_names,
            rows.features[0].width + sum(part.width for part in targets),
            self._axis,
            y_axis,
            x.shape,
            y_shape,
        )

    def check(self, x, data):
        self._check_shape(x.shape[1:], data)

    def _check_shape(self, shape, data):
        if len(shape) not in self._dims:
            raise ConfigurationError(
                f"{data.path}: a row of x has shape {shape}; wanted {self._words}"
            )


def check_on_grid(x_shape, y_shape, data) -> None:
    """Raise ConfigurationError unless rows of y are fields on the grid of x."""
    if y_shape[1:] != x_shape[1:]:
        raise ConfigurationError(
            f"{data.path}: a row of y has shape {y_shape}; wanted a field on the grid of x, whose "
            f"rows have shape {x_shape}"
        )


def _shape_of(targets) -> Shape:
    """Return the shape of a row of y."""
    field = targets[0].field
    if len(targets) == 1 and targets[0].is_whole and field.shape:
        return field.shape
    return (sum(part.width for part in targets),)


def _channels(name: str, shape: Shape, axis: int) -> tuple[str, ...]:
    """Return the names of the channels of rows of this shape.

    axis   of arrays of rows
    """
    count = shape[axis - 1 if axis > 0 else axis]
    return tuple(f"{name}[{number}]" for number in range(count))
