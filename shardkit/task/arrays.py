"""Rows that are arrays: fields on a grid, images, sequences, nodes of a graph.

    x of a row [channels, *grid]   FNO, UNet, ResNet, ViT; y likewise, or numbers, or a class
    x of a row [time, features]    LSTM
    x of a row [nodes, features]   MessagePassing

    file --TableSamples--> arrays --split--> training, validation --Scaled--> channels of mean 0

Everything is as in the task `table` (table.py), but that a column is a channel: scaled as a whole,
over all points of the grid or steps of time. Models that come with shardkit are tasks of this kind
(architectures.py); one of your own is a class like those, with make_model().
"""

from ..data.tables import TableSamples
from ..errors import ConfigurationError
from ..nn.metrics import MAE, R2, RMSE
from .described import InUnits
from .survey import RowForm
from .table import TableTask


class ArrayTask(TableTask):
    """Rows of arrays, and a model of one's own.

    A class derived from it has make_model(), and says what it takes:

    x_dims        of a row of x: the numbers of dims that the model takes
    x_words       such a row in words: "(channels, height, width)"
    channel_axis  of arrays of rows: 1, or -1 where the channels are last
    kinds         of data.kind that it predicts

    Known when make_model() is called, beside what a TableTask knows:

    x_shape, y_shape  of a row; y_shape () where y is a class
    """

    x_dims: tuple[int, ...] = (2, 3, 4)
    x_words: str = "(channels, ...)"
    channel_axis: int = 1
    kinds: tuple[str, ...] = ("regression", "binary", "multiclass")

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of a row of x."""
        return self.described.x_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of a row of y; () if it is a class."""
        return self.described.y_shape

    def places(self, name: str) -> int:
        """Return at how many places of a row the parameter of this name is applied."""
        return 1

    def num_flops_per_sample(self, model):
        parameters = model.named_parameters().items()
        return 6.0 * sum(self.places(name) * parameter.size for name, parameter in parameters)

    def _check(self):
        super()._check()
        data = self.settings.data
        if data.kind not in self.kinds:
            raise ConfigurationError(
                f"data.kind = {data.kind!r}; the task {self.settings.run.task!r} predicts "
                f"{', '.join(self.kinds)}"
            )
        if self.settings.data.weights is not None:
            raise ConfigurationError(
                "data.weights is for rows of numbers (the task `table`); rows of arrays have none"
            )

    def _form(self, rows: TableSamples) -> RowForm:
        x = rows.features[0].field
        if len(rows.features) > 1 or not rows.features[0].is_whole:
            raise ConfigurationError(
                f"data.features = {list(self.settings.data.features)} has several columns; wanted "
                f"one field, whose rows are {self.x_words}"
            )
        self._check_shape(x.shape)
        targets = rows.targets
        has_classes = self.settings.data.kind != "regression"
        if len(targets) > 1 and max(len(part.field.shape) for part in targets) > 1:
            raise ConfigurationError(
                f"data.target = {list(self.settings.data.target)} has several arrays; wanted one"
            )
        y_shape = _shape_of(targets) if targets and not has_classes else ()
        y_axis = self.channel_axis if len(y_shape) == len(x.shape) else -1
        y_names = rows.target_names
        if len(y_shape) > 1:
            y_names = _channels(targets[0].field.name, y_shape, y_axis)
        return RowForm(
            _channels(x.name, x.shape, self.channel_axis),
            y_names,
            rows.features[0].width + sum(part.width for part in targets),
            self.channel_axis,
            y_axis,
            x.shape,
            y_shape,
        )

    def _check_shape(self, shape):
        if len(shape) not in self.x_dims:
            raise ConfigurationError(
                f"{self.settings.data.path}: a row of x has shape {shape}; wanted {self.x_words}"
            )

    def _check_row(self, x):
        self._check_shape(x.shape[1:])

    def _loss(self):
        return None if self.settings.data.kind == "regression" else super()._loss()

    def _metrics(self):
        if self.settings.data.kind != "regression":
            return super()._metrics()
        metrics = {"rmse": RMSE(), "mae": MAE()}
        if len(self.y_shape) == 1:  # column by column
            metrics["r2"] = R2()
        return {name: InUnits(metric, self.described.y) for name, metric in metrics.items()}


def _shape_of(targets) -> tuple[int, ...]:
    """Return the shape of a row of y."""
    field = targets[0].field
    if len(targets) == 1 and targets[0].is_whole and field.shape:
        return field.shape
    return (sum(part.width for part in targets),)


def _channels(name: str, shape: tuple[int, ...], axis: int) -> tuple[str, ...]:
    """Return the names of the channels of rows of this shape.

    axis   of arrays of rows
    """
    count = shape[axis - 1 if axis > 0 else axis]
    return tuple(f"{name}[{number}]" for number in range(count))
