"""The model and the settings of a run that is planned, from a settings file of `shardkit train`."""

from ..errors import ConfigurationError
from ..settings import read_toml
from ..task.language import Language
from ..task.load import DEFAULT_TASK
from ..train.settings import RunConfiguration, configuration_of
from .model import ModelShape

NOT_COUNTED = ("head_dim", "attention_bias", "qk_norm")
BYTES_VOCABULARY = 256  # where nothing else is said, tokens are bytes


def has_data(shape: ModelShape, settings: RunConfiguration) -> bool:
    """Return True if the settings name data of the model's vocabulary, or it is that of bytes."""
    return shape.vocabulary == BYTES_VOCABULARY or bool(settings.data.path)


def read_model(path, overrides: dict | None = None) -> tuple[ModelShape, RunConfiguration]:
    """Return the model of a settings file of `shardkit train`, and its other settings.

    overrides   {"section.key": value} on top of the file
    Without model.vocabulary_size the tokens are bytes, 256 of them.
    Errors: ConfigurationError, with the nearest name for an unknown key; also on model.start,
    which is not opened here, and on another task than language.
    """
    given = {**read_toml(path), **(overrides or {})}
    task = given.get("run.task", DEFAULT_TASK)
    if task != DEFAULT_TASK:
        raise ConfigurationError(
            f"run.task = {task!r}: layouts are planned for {DEFAULT_TASK} alone, whose layers have "
            "known sizes; `shardkit bench` measures a step of any task on the ranks that there are"
        )
    settings = configuration_of(Language)().replace(given)
    model = settings.model
    if model.start:
        raise ConfigurationError(
            f"model.start = {model.start!r} does not say here how large the model is; give its "
            "model.width, model.layers and so on instead (`shardkit inspect` shows them)"
        )
    for name in NOT_COUNTED:
        if getattr(model, name) is not None:
            raise ConfigurationError(
                f"model.{name} = {getattr(model, name)!r} is not counted in predictions; leave it "
                "out to plan for a model without it"
            )
    return ModelShape(
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
    ), settings
