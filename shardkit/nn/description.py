"""What a checkpoint says about its model: class and configuration, read from the manifest, without any weights.

    {"format": "shardkit-checkpoint", ..., "model": {"class": "GPT", "configuration": {"width": 64, ...}}, ...}
"""
import json
from os.path import normpath
from pathlib import Path

from ..errors import CheckpointError


def read_description(path) -> dict:
    """The "model" entry of a checkpoint: {"class": name, "configuration": {argument: value}}.

    path    a checkpoint's folder; or one with a file `newest`, which names a folder beside it or in `checkpoints/`
    Errors: CheckpointError if there is no checkpoint, or its manifest is not of the form above.
    """
    manifest = _find_manifest(Path(path))
    try:
        model = json.loads(manifest.read_text(encoding="utf-8"))["model"]
        is_description = isinstance(model["class"], str) and isinstance(model["configuration"], dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{manifest} does not describe a model: {type(error).__name__}: {error}") from None
    if not is_description or not model["configuration"]:
        raise CheckpointError(f"{manifest} does not say how to build its {model['class']}: its class has no configuration()")
    return model


def _find_manifest(path: Path) -> Path:
    """The manifest of the checkpoint at `path`, or of the newest one below."""
    folders = [path]
    for pointer in (path / "newest", path / "checkpoints" / "newest"):
        if pointer.is_file():
            name = Path(pointer.read_text(encoding="utf-8").strip()).name
            folders += [pointer.parent / name, path / "checkpoints" / name]
    for folder in folders:
        if (folder / "manifest.json").is_file():
            return folder / "manifest.json"
    raise CheckpointError(f"there is no checkpoint in {path}: neither manifest.json nor a file `newest` that names a folder "
                          "with one; pass the folder that save_model() was given, or one of its step folders")


def folder_to_load(path) -> str:
    """What load_model takes where read_description takes this path: the folder of checkpoints."""
    path = Path(path)
    if (path / "manifest.json").is_file():
        return normpath(path / "..")
    return str(path / "checkpoints" if (path / "checkpoints").is_dir() else path)
