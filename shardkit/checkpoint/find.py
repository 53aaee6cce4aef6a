"""From a path that a user typed to the checkpoint that is meant."""
import re
from pathlib import Path

from ..comm import run_ranks
from ..errors import CheckpointError
from ..nn.gpt import GPT
from .load import Checkpoint
from .manifest import MANIFEST_NAME
from .store import CheckpointStore


def is_checkpoint(path) -> bool:
    """True if the folder is one checkpoint, whole or damaged, and not a folder of them."""
    path = Path(path)
    return path.is_dir() and (bool(re.fullmatch(r"step-\d+", path.name)) or (path / MANIFEST_NAME).exists())


def checkpoint_store(path) -> CheckpointStore:
    """The store at this path: the folder itself, or `checkpoints` inside a run folder."""
    inside = Path(path) / "checkpoints"
    return CheckpointStore(inside if inside.is_dir() else path)


def find_checkpoint(path) -> tuple[Checkpoint, list[str]]:
    """The checkpoint in this folder, or the newest valid one of a store or run folder; and why newer ones were passed over.

    Its checksums hold. On this process alone, without communication.
    Errors: FileNotFoundError, PermissionError, CheckpointError.
    """
    if is_checkpoint(path):
        checkpoint = Checkpoint(path)
        checkpoint.verify()
        return checkpoint, []
    store = checkpoint_store(path)
    return run_ranks(1, store.newest_valid)[0], store.skipped


def gpt_of(checkpoint: Checkpoint, what_only_gpt_does: str) -> GPT:
    """The model that a checkpoint describes and holds all parameters of, with its initial values.

    Errors: CheckpointError if it is no GPT, or the description does not fit what is stored.
    """
    described, configuration = checkpoint.manifest["model"]["class"], checkpoint.manifest["model"]["configuration"]
    if described != "GPT":
        raise CheckpointError(f"{checkpoint.folder} holds a {described}; only GPT {what_only_gpt_does}")
    layers = configuration.get("layers")
    if type(layers) is not int or layers > len(checkpoint.shapes):      # before so many are made
        raise CheckpointError(f"{checkpoint.folder} describes a model of layers = {layers!r:.40}, but holds "
                              f"{len(checkpoint.shapes)} tensors")
    model = GPT.from_checkpoint(checkpoint.folder)
    for name, parameter in model.named_parameters().items():
        stored = checkpoint.shapes.get(f"model/{name}")
        if stored != parameter.shape:
            raise CheckpointError(f"{checkpoint.folder} describes a model whose {name} is {parameter.shape}, but holds {stored}")
    return model
