"""`model.initial`: a run that begins with the weights of a checkpoint, with a fresh optimizer, at
step 0.

given settings + description of the checkpoint -> settings with its sizes -> sharded model -> its
weights, box by box
"""

from typing import Any

from ..errors import ConfigurationError
from ..nn.models import GPT
from ..parallel.model.sharded_model import ShardedModel
from .data import VOCABULARY_SIZE
from .settings import RunConfiguration


def with_initial_sizes(given: dict[str, Any]) -> RunConfiguration:
    """Return the defaults with these settings, and with the sizes of the model in model.initial.

    Errors: ConfigurationError on a setting that contradicts the checkpoint, with both values, or a
    model whose tokens are not bytes; CheckpointError if there is no checkpoint of a GPT.
    """
    settings = RunConfiguration().replace(given)
    path = settings.model.initial
    if not path:
        return settings
    stored = GPT.from_checkpoint(path).settings
    if stored.vocabulary_size != VOCABULARY_SIZE:
        raise ConfigurationError(
            f"model.initial = {path!r} holds a model of {stored.vocabulary_size:,} tokens; "
            "`shardkit train` "
            f"reads bytes, {VOCABULARY_SIZE} of them. In Python: "
            "sk.FSDPModel(sk.models.GPT.from_checkpoint("
            f"{path!r}), config), load_model({path!r}), and batches of its own tokens"
        )
    names = [f"model.{name}" for name in settings.to_dict()["model"] if name != "initial"]
    sizes = {name: getattr(stored, name.removeprefix("model.")) for name in names}
    for name in given.keys() & sizes.keys():
        is_fixed = "fixed" in RunConfiguration.key(name).metadata
        if is_fixed and settings.value(name) != sizes[name]:
            raise ConfigurationError(
                f"{name} = {settings.value(name)!r}, but the model in {path} has {sizes[name]!r}; "
                "leave it "
                "out, since model.initial says the sizes"
            )
    return RunConfiguration().replace({**sizes, **given})


def load_weights(model: ShardedModel, path) -> str:
    """Load the parameters of the newest valid checkpoint at this path; return a line about it.

    Collective.

    Errors, on all ranks: FileNotFoundError, PermissionError, CheckpointError.
    """
    stored = model.load_model(path, only="model")
    return f"begins with the weights of {path} at step {stored['step']}; optimizer state is fresh"
