"""From a path that a user typed to the checkpoint that is meant."""

import re
import warnings
from pathlib import Path

from ..comm import run_ranks
from ..errors import CheckpointError
from ..nn.description import reads_descriptions
from ..nn.gpt import GPT
from .format.manifest import MANIFEST_NAME, parsed
from .load import Checkpoint
from .store import CheckpointStore


def is_checkpoint(path) -> bool:
    """True if the folder is one checkpoint, whole or damaged, and not a folder of them."""
    path = Path(path)
    return path.is_dir() and (
        bool(re.fullmatch(r"step-\d+", path.name)) or (path / MANIFEST_NAME).exists()
    )


def found_place(path) -> tuple[Path, str | None]:
    """(folder of checkpoints, name of the one in it that is meant) for a path: a checkpoint, a
    folder of them, a run folder.

    The name is None if the newest valid one is meant. A folder that holds checkpoints itself is not
    looked at as a run folder.
    """
    path = Path(path)
    if CheckpointStore(path).steps():
        return path, None
    if is_checkpoint(path):
        return path.parent, path.name
    inside = path / "checkpoints"
    return (inside if inside.is_dir() else path), None


def checkpoint_store(path) -> CheckpointStore:
    """The store that a path means; of one checkpoint, if the path is that."""
    folder, name = found_place(path)
    return CheckpointStore(folder, name=name)


def find_checkpoint(path) -> tuple[Checkpoint, list[str]]:
    """The checkpoint in this folder, or the newest valid one of a store or run folder; and why
    newer ones were passed over.

    Its checksums hold. On this process alone, without communication.
    Errors: FileNotFoundError, PermissionError, CheckpointError.
    """
    store = checkpoint_store(path)
    return run_ranks(1, store.newest_valid)[0], store.skipped


def warn_of_skipped(checkpoint: Checkpoint, skipped: list[str]) -> None:
    """Say why newer checkpoints were passed over, if some were, for the caller of the caller."""
    if skipped:
        warnings.warn(
            f"{checkpoint.folder} is taken; passed over: {'; '.join(skipped)}", stacklevel=3
        )


@reads_descriptions
def described_model(path) -> tuple[dict, Path]:
    """The "model" entry of the checkpoint that a load from this path takes, and its folder. On this
    process alone.

    Checksums of values are compared only if the checkpoints are of several models: else it does not
    matter which one it is.
    Errors: CheckpointError, PermissionError.
    """
    try:
        store = checkpoint_store(path)
        names, skipped = store.candidates()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error}; pass the folder that save_model() was given, or one of its step folders"
        ) from None
    models = [
        model
        for model in (_stored_model(store.folder / name) for name in names)
        if model is not None
    ]
    is_one_model = all(model == models[0] for model in models)
    checkpoint = (
        _first_complete(store, names, skipped) if is_one_model else find_checkpoint(path)[0]
    )
    return checkpoint.manifest["model"], checkpoint.folder


def _stored_model(folder: Path):
    """The "model" entry, if the manifest is readable at all."""
    try:
        return parsed((folder / MANIFEST_NAME).read_bytes()).get("model")
    except (CheckpointError, OSError):
        return None


def _first_complete(store: CheckpointStore, names: list[str], skipped: list[str]) -> Checkpoint:
    for name in names:
        try:
            return Checkpoint(store.folder / name)
        except CheckpointError as error:
            skipped = [*skipped, str(error)]
    raise store.no_valid_one(skipped)


def gpt_of(checkpoint: Checkpoint, what_only_gpt_does: str) -> GPT:
    """The model that a checkpoint describes and holds all parameters of, with its initial values.

    Errors: CheckpointError if it is no GPT, or the description does not fit what is stored.
    """
    described, configuration = (
        checkpoint.manifest["model"]["class"],
        checkpoint.manifest["model"]["configuration"],
    )
    if described != "GPT":
        raise CheckpointError(
            f"{checkpoint.folder} holds a {described}; only GPT {what_only_gpt_does}"
        )
    layers = configuration.get("layers")
    if type(layers) is not int or layers > len(checkpoint.shapes):  # before so many are made
        raise CheckpointError(
            f"{checkpoint.folder} describes a model of layers = {layers!r:.40}, but holds "
            f"{len(checkpoint.shapes)} tensors"
        )
    model = GPT.from_checkpoint(checkpoint.folder)
    for name, parameter in model.named_parameters().items():
        stored = checkpoint.shapes.get(f"model/{name}")
        if stored != parameter.shape:
            raise CheckpointError(
                f"{checkpoint.folder} describes a model whose {name} is {parameter.shape}, but holds {stored}"
            )
    return model
