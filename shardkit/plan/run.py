"""The model and the settings of a run that is planned, from a settings file of `shardkit train`."""

from ..errors import ConfigurationError
from ..settings import read_toml
from ..task.language import Language
from ..train.settings import RunConfiguration, configuration_of
from .model import ModelShape

NOT_COUNTED = ("head_dim", "attention_bias", "qk_norm")
BYTES_VOCABULARY = 256  # of `shardkit train`, whose tokens are bytes


def read_model(path, overrides: dict | None = None) -> tuple[ModelShape, RunConfiguration]:
    """Return the model of a settings file of `shardkit train`, and its other settings.

    overrides   {"section.key": value} on top of the file
    Without model.vocabulary_size the tokens are bytes, 256 of them.
    Errors: ConfigurationError, with the nearest name for an unknown key; also on model.start,
    which is not opened here.
    """
    settings = configuration_of(Language)().replace({**read_toml(path), **(overrides or {})})
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
