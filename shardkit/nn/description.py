"""What a checkpoint says about its model, without any weights.

    {"class": "GPT", "configuration": {"vocabulary_size": 256, "width": 64, ...}}

The room that finds and reads checkpoints stands right of this one, so it tells us how:
reads_descriptions is its registry.
"""

from collections.abc import Callable

from ..errors import CheckpointError

_readers: dict[str, Callable] = {}


def reads_descriptions(reader: Callable) -> Callable:
    """Let this function (path) -> (the "model" entry, the folder that it is from) read descriptions
    from now on. A decorator.
    """
    _readers["model"] = reader
    return reader


def read_description(path) -> dict:
    """The "model" entry of the checkpoint that a load from this path takes: {"class": name,
    "configuration": {argument: value}}.

    path    a checkpoint's folder, a folder of checkpoints or a run folder
    Errors: CheckpointError if there is no checkpoint, or it does not say how to build its model.
    """
    model, folder = _readers["model"](path)
    if not model["configuration"]:
        raise CheckpointError(
            f"{folder} does not say how to build its {model['class']}: its class has no configuration()"
        )
    return model
