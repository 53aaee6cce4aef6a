"""Models of sequences, graphs and functions as tasks: `shardkit train --task=fno ...`.

    task               a row of x               y                         sk.models
    fno                (channels, *grid)        a field                   FNO
    lstm               (time, features)         numbers, or of each step  LSTM
    message_passing    (nodes, features)        of each node, or a sum    MessagePassing

Each is a section [model], a form of rows, and a call of the model's class; the rest is TableTask.
Those of images are in images.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from math import prod
from typing import Any

import numpy

from ..data.columns import Columns
from ..data.tables import open_table
from ..errors import ConfigurationError
from ..nn.models.fno import FNO
from ..nn.models.lstm import LSTMModel as LSTM
from ..nn.models.message_passing import MessagePassing
from ..nn.module import Module
from ..settings import fixed
from .form import Arrays, check_on_grid
from .table import TableTask
from .table_files import TableData

SIZES = "its checkpoints have these sizes"
_IN_TIME = Arrays((2,), "(time, features)", channel_axis=-1)
_OF_NODES = Arrays((2,), "(nodes, features)", channel_axis=-1)
_ON_GRIDS = Arrays(
    (2, 3, 4), "(channels, x), (channels, x, y) or (channels, x, y, z)", kinds=("regression",)
)


def flops(model, places) -> float:
    """Return the operations of a row: 6 for a parameter at each of the places where it is applied.

    places  name of a parameter -> how many
    """
    parameters = model.named_parameters().items()
    return 6.0 * sum(places(name) * parameter.size for name, parameter in parameters)


def defaults_of(name: str, **batch: int) -> dict[str, Any]:
    """Return the defaults of a task of this name, and with these of its section [batch]."""
    batch = {f"batch.{key}": size for key, size in batch.items()}
    return {**TableTask.defaults, "run.folder": f"runs/{name}", **batch}


def built(task: TableTask, kind: Callable[..., Module], *arguments: Any, **more: Any) -> Module:
    """Return the model of a task, whose sizes are its section [model].

    arguments, more   of the model beside the numbers of features and outputs, and these sizes
    A derived task may add settings to [model]: what `kind` does not take by name is not passed.
    """
    given = (task.num_features, task.num_outputs, *arguments)
    by_name = list(signature(kind).parameters)[len(given) :]
    sizes = {name: size for name, size in vars(task.settings.model).items() if name in by_name}
    return kind(*given, **{**sizes, **more, "seed": task.settings.run.seed})


@dataclass(frozen=True, kw_only=True)
class FNOSizes:
    """The FNO of a run."""

    modes: tuple[int, ...] = fixed(
        SIZES, (12,), "frequencies kept of each dimension, or one number for all", minimum=1
    )
    width: int = fixed(SIZES, 32, "channels of the layers", minimum=1)
    layers: int = fixed(SIZES, 4, "spectral layers", minimum=1)


class FNOTask(TableTask):
    """`fno`: fields on a grid of one, two or three dimensions, through a Fourier operator."""

    rows = _ON_GRIDS
    sections = {"model": FNOSizes, "data": TableData}
    defaults = defaults_of("fno", sequences=32, micro_batch=8)

    def make_model(self):
        x, y = self.described.x_shape, self.described.y_shape
        check_on_grid(x, y, self.settings.data)
        model, grid = self.settings.model, x[1:]
        modes = model.modes * len(grid) if len(model.modes) == 1 else model.modes
        is_beyond = any(2 * kept > size for kept, size in zip(modes, grid))
        if len(modes) != len(grid) or is_beyond:
            raise ConfigurationError(
                f"model.modes = {list(model.modes)} on a grid of {grid}; wanted one number, or one "
                "for each dimension, each at most half of its points"
            )
        return built(self, FNO, modes=modes)

    def num_flops_per_sample(self, model):
        points = prod(self.described.x_shape[1:])
        return flops(model, lambda name: 1 if "spectral" in name else points)


@dataclass(frozen=True, kw_only=True)
class LSTMSizes:
    """The LSTM of a run."""

    width: int = fixed(SIZES, 64, "units of a layer", minimum=1)
    layers: int = fixed(SIZES, 2, "recurrent layers", minimum=1)
    dropout: float = fixed(
        "its weights were trained with it", 0.0, "between the layers", minimum=0.0, below=1.0
    )


class LSTMTask(TableTask):
    """`lstm`: sequences, and an answer at the end or at each step."""

    rows = _IN_TIME
    sections = {"model": LSTMSizes, "data": TableData}
    defaults = defaults_of("lstm")

    def make_model(self):
        return built(self, LSTM, readout="steps" if len(self.described.y_shape) == 2 else "last")

    def num_flops_per_sample(self, model):
        return flops(model, lambda name: self.described.x_shape[0])


@dataclass(frozen=True, kw_only=True)
class GraphData(TableData):
    """The rows of a run, and the edges of their graph."""

    edges: str = fixed(
        "the messages of its model go along them",
        "edges",
        "dataset [2, edges] in the file of rows: the nodes where each edge begins and ends",
    )


@dataclass(frozen=True, kw_only=True)
class GraphSizes:
    """The message-passing network of a run."""

    width: int = fixed(SIZES, 32, "units of a node", minimum=1)
    steps: int = fixed(SIZES, 3, "rounds of messages", minimum=1)


class MessagePassingTask(TableTask):
    """`message_passing`: one graph, and values of its nodes in each row."""

    rows = _OF_NODES
    sections = {"model": GraphSizes, "data": GraphData}
    defaults = defaults_of("message_passing")

    def make_model(self):
        edges = _edges(self.settings.data, self.described.x_shape[0])
        readout = "nodes" if len(self.described.y_shape) == 2 else "sum"
        return built(self, MessagePassing, *edges, readout=readout)

    def num_flops_per_sample(self, model):
        return flops(model, lambda name: self.described.x_shape[0])


def _edges(data: GraphData, num_nodes: int) -> numpy.ndarray:
    """Return [2, edges]: numbers of nodes. Errors: ConfigurationError."""
    table: Any = open_table(data.path)
    field = table.fields.get(data.edges)
    if field is None or field.dtype is None or field.dtype.kind not in "iu" or field.rows != 2:
        has = (
            "it has none" if field is None else f"it is {(field.rows, *field.shape)} {field.dtype}"
        )
        raise ConfigurationError(
            f"data.edges = {data.edges!r}: {has} in {data.path}; wanted a dataset [2, edges] of "
            "integers"
        )
    (edges,) = table.read(numpy.arange(2), (Columns.whole(field),))
    if edges.size and not 0 <= edges.min() <= edges.max() < num_nodes:
        raise ConfigurationError(
            f"data.edges = {data.edges!r} of {data.path} has nodes {edges.min()} to {edges.max()}; "
            f"wanted 0 to {num_nodes - 1}, the nodes of a row"
        )
    return edges
