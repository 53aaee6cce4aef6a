"""The model and the settings of a run that is planned, from a settings file of `shardkit train`.

language   model.width, model.layers, ...        -> ModelShape; chat likewise
table      the columns of the file, model.hidden -> MLPShape
unet, ...  the grid of the file, a trace of it   -> GridShape
"""

from dataclasses import dataclass

from ..errors import ConfigurationError
from ..files.reading import named
from ..nn.module import blocks_of
from ..parallel.data.partition import plan_units
from ..settings import read_toml
from ..task.load import DEFAULT_TASK, load_task
from ..task.table import described_on
from ..train.settings import RunConfiguration, configuration_of, first_settings
from .grid import GridShape
from .mlp import MLPShape
from .model import ModelShape
from .shape import Shape
from .trace import Traceable, traced

TOKENS_PER_PARAMETER = 20  # of a compute-optimal model (arXiv 2203.15556)
NOT_COUNTED = ("head_dim", "attention_bias", "qk_norm")
BYTES_VOCABULARY = 256  # where nothing else is said, tokens are bytes


@dataclass(frozen=True)
class PlannedRun:
    """What is planned.

    lacks   what the data of the run must still be, for its command line; "" if it has all it needs
    rows    of a table that the run trains on; None for text
    """

    shape: Shape
    settings: RunConfiguration
    lacks: str = ""
    rows: int | None = None

    def items(self, batch: int) -> float:
        """Return the tokens or rows of the whole run, in steps of this many samples.

        Text: 20 tokens for each parameter. Rows: what run.epochs or run.steps say.
        """
        if self.rows is None:
            return TOKENS_PER_PARAMETER * self.shape.parameter_count
        run = self.settings.run
        samples = run.steps * batch if run.epochs is None else run.epochs * self.rows
        return samples * self.shape.sequence_length


def configuration_of_plan(task: str | None) -> type[RunConfiguration]:
    """Return the settings of the task of this name; None: the default task.

    Errors: ConfigurationError on a task whose layers have no known sizes.
    """
    name = task or DEFAULT_TASK
    if not isinstance(name, str) or name not in _PLANNED:
        raise ConfigurationError(
            f"run.task = {name!r}: layouts are planned for {', '.join(_PLANNED)} alone, whose "
            "layers have known sizes; `shardkit bench` measures a step of any task on the ranks "
            "that there are"
        )
    return configuration_of(load_task(name))


def read_run(path, overrides: dict | None = None) -> PlannedRun:
    """Return the run of a settings file of `shardkit train`; None: of the overrides alone.

    overrides   {"section.key": value} on top of the file
    Without model.vocabulary_size the tokens are bytes, 256 of them. The file of a table is opened.
    Errors: ConfigurationError, with the nearest name for an unknown key, and on a task of one's
    own; CheckpointError on a model that is unknown here; OSError on a table that is not there.
    """
    given = {**(read_toml(path) if path else {}), **(overrides or {})}
    with named(path or given.get("model.start")):
        settings = first_settings(configuration_of_plan(given.get("run.task")), given)
    return _PLANNED[settings.run.task](settings)


def _text(settings: RunConfiguration) -> PlannedRun:
    model = settings.model
    for name in NOT_COUNTED:
        if getattr(model, name) is not None:
            raise ConfigurationError(
                f"model.{name} = {getattr(model, name)!r} is not counted in predictions; plan for "
                "a model of these sizes without it"
            )
    shape = ModelShape(
        model.layers,
        model.width,
        model.heads,
        model.vocabulary_size or BYTES_VOCABULARY,
        model.sequence_length,
        model.kv_heads,
        model.hidden,
        model.style,
        model.tied,
        model.dropout,
        model.window,
        model.full_layers,
    )
    has_data = shape.vocabulary == BYTES_VOCABULARY or settings.data.path
    return PlannedRun(shape, settings, "" if has_data else "files of its tokens")


def _rows(settings: RunConfiguration) -> PlannedRun:
    found = settings.task_class(settings).look()
    sizes = (found.num_features, *settings.model.hidden, found.num_outputs)
    is_of_classes = settings.data.kind == "multiclass"
    shape = MLPShape(sizes, settings.model.activation, is_of_classes)
    return PlannedRun(shape, settings, rows=found.training_rows)


def _grids(settings: RunConfiguration) -> PlannedRun:
    found = settings.task_class(settings).look()
    grid = found.form.x_shape[1:]

    def made(small):
        described = described_on(small, found)
        task = settings.task_class(settings, described)
        y_shape = () if described.classes else described.y_shape
        return Traceable.of(task.make_model(), task.loss, described.x_shape, y_shape)

    module = made(grid).module
    blocks = [block for _, block in blocks_of(module)]
    units = plan_units(module, settings.parallel.minimum_parameter_group_size)
    parts = [unit.num_elements for unit in units[0].parts] if len(blocks) == 1 else []
    shape = GridShape(
        type(module).__name__,
        traced(made, len(grid)),
        tuple(block.parameter_count for block in blocks),
        (module.parameter_count - sum(parts), *parts) if parts else (),
        grid,
    )
    return PlannedRun(shape, settings, rows=found.training_rows)


_PLANNED = {
    **dict.fromkeys(("language", "chat"), _text),
    "table": _rows,
    **dict.fromkeys(("fno", "resnet", "unet"), _grids),
}
