"""What is in a checkpoint, as text for people."""
from math import prod
from pathlib import Path

from ..errors import CheckpointError
from .load import Checkpoint
from .manifest import MANIFEST_NAME
from .store import CheckpointStore


def checkpoint_store(path) -> CheckpointStore:
    """The store at this path: the folder itself, or `checkpoints` inside a run folder."""
    inside = Path(path) / "checkpoints"
    return CheckpointStore(inside if inside.is_dir() else path)


def describe(path, *, verify: bool = False) -> str:
    """One checkpoint with all its tensors, or a list of the checkpoints in a store or run folder.

    verify  read every file and compare checksums
    Errors: FileNotFoundError, CheckpointError if `path` is a checkpoint that is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if (path / MANIFEST_NAME).exists():
        return _describe_one(path, verify)
    folders = checkpoint_store(path).steps()
    if not folders:
        raise FileNotFoundError(f"no checkpoints in {path}")
    return "\n".join(_line(folder, verify) for folder in folders)


def _describe_one(folder: Path, verify: bool) -> str:
    checkpoint = _opened(folder, verify)
    manifest, shapes = checkpoint.manifest, checkpoint.shapes
    width = max(map(len, shapes))
    lines = [f"{folder}", f"step {manifest['step']}, written as {_mesh(manifest)}, {manifest['strategy']}",
             f"model {manifest['model']['class']} {manifest['model']['configuration']}",
             f"optimizer {manifest['optimizer']['rule']}", f"files {_files(manifest)}{_verified(verify)}", ""]
    for tensor, entry in sorted(manifest["tensors"].items()):
        lines.append(f"{tensor:<{width}}  {entry['dtype']}  {'x'.join(map(str, entry['shape'])) or 'scalar':>12}  "
                     f"{len(entry['boxes'])} boxes")
    return "\n".join(lines)


def _line(folder: Path, verify: bool) -> str:
    try:
        manifest = _opened(folder, verify).manifest
    except CheckpointError as error:
        return f"{folder.name}  DAMAGED: {error}"
    parameters = sum(prod(entry["shape"]) for tensor, entry in manifest["tensors"].items() if tensor.startswith("model/"))
    loss = "no loss yet" if manifest["last_loss"] is None else f"loss {manifest['last_loss']:.4f}"
    return (f"{folder.name}  {manifest['model']['class']} of {parameters:,} parameters, {_mesh(manifest)}, "
            f"{manifest['strategy']}, {loss}, {_files(manifest)}{_verified(verify)}")


def _opened(folder: Path, verify: bool) -> Checkpoint:
    checkpoint = Checkpoint(folder)
    if verify:
        checkpoint.verify()
    return checkpoint


def _mesh(manifest) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in manifest["mesh"].items())


def _files(manifest) -> str:
    return f"{len(manifest['files'])} files, {sum(f['bytes'] for f in manifest['files'].values()):,} bytes"


def _verified(verify: bool) -> str:
    return ", checksums hold" if verify else ""
