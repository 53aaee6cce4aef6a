"""Build the models that checkpoints describe.

    manifest.json: "model": {"class": "GPT", "configuration": {"vocabulary_size": 256, ...}}
    config.json of transformers: {"model_type": "llama", "hidden_size": 576, ...}
        --> GPT.from_checkpoint(path): GPT(vocabulary_size=256, ...), without weights

Modules know nothing of files, so this file gives every Module class its from_checkpoint().
"""

from typing import Any

from ..annotations import FilePath
from ..errors import CheckpointError, ConfigurationError
from ..files.paths import usable_path
from ..files.trust import Trust
from ..nn.init import Unread
from ..nn.models.gpt import GPT
from ..nn.module import Module
from .find import find_description
from .load import Checkpoint
from .names import CodeNames
from .pretrained.folder import TransformersFolder, is_transformers_folder
from .values import DataReader


def from_checkpoint(cls: type[Module], path: FilePath, **changes: Any) -> Module:
    """Build the model that a checkpoint describes, without weights.

    load_model of a sharded model around it reads them; load_state_dict sets others. Until then,
    what needs weights is refused with a ShardingError.

    Parameters
    ----------
    path
        A checkpoint's folder, or a folder of checkpoints or of a run: as in load_model, the newest
        valid one is taken; or a folder of transformers.
    changes
        Arguments of the class that replace the stored ones, such as sequence_length.

    Raises
    ------
    CheckpointError
        If there is none, or it describes another class, or sizes that this class refuses.
    """
    checkpoint = _described_at(path, changes)
    described = checkpoint.manifest["model"]
    if not described["configuration"] and "attributes" not in described:
        raise CheckpointError(
            f"{checkpoint.folder} does not say how to build its {described['class']}: it was "
            "written before arguments were recorded, and its class had no configuration()"
        )
    if described["class"] != cls.__name__:
        raise CheckpointError(
            f"the checkpoint in {path} is of a {described['class']}, not of a {cls.__name__}"
        )
    return _built(cls, described["configuration"], path, changes)


def _described_at(path, changes: dict) -> Checkpoint | TransformersFolder:
    path = usable_path(path)
    if not is_transformers_folder(path):
        return find_description(path)
    return TransformersFolder(path, sequence_length=changes.get("sequence_length"))


setattr(Module, "from_checkpoint", classmethod(from_checkpoint))


def _built(cls: type[Module], configuration: dict, path, changes: dict) -> Module:
    """Build the model; asking one of its parameters for values is then an error."""
    reader = DataReader(CodeNames(str(path), Trust.of(cls), cls.__module__.partition(".")[0]))
    try:
        args, named = reader.arguments(configuration, cls)
        model = cls(*args, **{**named, **changes})
    except (TypeError, ConfigurationError) as error:
        raise CheckpointError(
            f"the checkpoint in {path} does not describe a {cls.__name__}: {error}"
        ) from error
    return without_weights(model, path)


def without_weights(model: Module, path, kept=()) -> Module:
    """Return the model, awaiting the values at this path: no initial ones are made for it.

    kept   CodeNames of parameters that are not there, and keep their initial values
    """
    for name, parameter in model.named_parameters().items():
        if name not in kept:
            parameter.init = Unread(type(model).__name__, str(path))
    return model


def gpt_of(checkpoint: Checkpoint | TransformersFolder, what_only_gpt_does: str) -> Module:
    """Build the GPT that a checkpoint describes and whose parameters it holds, without weights.

    Errors: CheckpointError if it is no GPT, or the description does not fit what is stored.
    """
    folder, described = checkpoint.folder, checkpoint.manifest["model"]
    if described["class"] != "GPT":
        raise CheckpointError(
            f"{folder} holds a {described['class']}; only GPT {what_only_gpt_does}"
        )
    num_layers = described["configuration"].get("layers")
    if type(num_layers) is not int or num_layers > len(checkpoint.shapes):  # before they are made
        raise CheckpointError(
            f"{folder} describes a model of layers = {num_layers!r:.40}, but holds "
            f"{len(checkpoint.shapes)} tensors"
        )
    model = _built(GPT, described["configuration"], folder, {})
    for name, parameter in model.named_parameters().items():
        stored = checkpoint.shapes.get(f"model/{name}")
        if stored != parameter.shape:
            raise CheckpointError(
                f"{folder} describes a model whose {name} is {parameter.shape}, but holds {stored}"
            )
    return model
