"""Describe what is in a checkpoint, as text for people."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from ...errors import CheckpointError
from ...optim.description import rule_text
from ...plain import counted
from ..candidates import locate, steps_in
from ..choice import best_of, validation_loss
from ..format.values import text_of
from ..load import Checkpoint
from ..pretrained.folder import TransformersFolder, is_transformers_folder
from .tree import tensor_tree


@dataclass(frozen=True)
class Description:
    """Text about one or several checkpoints, of which some may be damaged."""

    text: str
    num_damaged: int

    def __str__(self):
        return self.text


def describe(path, *, verify: bool = False) -> Description:
    """Describe one checkpoint or folder of transformers with its tensors, or list those of a run.

    verify  read every file and compare checksums
    Errors: FileNotFoundError, CheckpointError if `path` is a checkpoint that is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if is_transformers_folder(path):
        found = TransformersFolder(path)
        tensors = {name: {"shape": s, "dtype": "float32"} for name, s in found.shapes.items()}
        files = {file: {"bytes": file.stat().st_size} for file in path.glob("*.safetensors")}
        manifest = {**found.manifest, "tensors": tensors, "files": files}
        notes = [*found.notes, *["transformers writes no checksums"] * verify]
        return Description("\n".join([_page(path, manifest), *notes]), 0)
    folder, name = locate(path)
    if name is not None:
        return Description(_described(path, verify, _page), 0)
    folders, unfinished = steps_in(folder), sorted(folder.glob("step-*.tmp"))
    if not folders and not unfinished:
        raise FileNotFoundError(f"no checkpoints in {path}")
    lines, num_damaged = [], 0
    best = best_of(folders)
    marks = {folders[-1]: ", newest"} if folders else {}
    if best is not None:
        marks[best.folder] = f"{marks.get(best.folder, '')}, best"
    for folder in folders:
        try:
            lines.append(_described(folder, verify, _line) + marks.get(folder, ""))
        except CheckpointError as error:
            lines.append(f"{folder.name}  DAMAGED: {error}")
            num_damaged += 1
    lines += [
        f"{folder.name}  unfinished: being written, or left by a job that died; never read"
        for folder in unfinished
    ]
    return Description("\n".join(lines), num_damaged)


def _described(folder: Path, verify: bool, form) -> str:
    """Return the text of `form` about one checkpoint.

    Errors: CheckpointError if it is damaged, or its manifest leaves out something.
    """
    checkpoint = Checkpoint(folder)
    if verify:
        checkpoint.check_boxes()
        checkpoint.verify()
    try:
        return form(folder, checkpoint.manifest) + (", checksums hold" if verify else "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the manifest of {folder} is damaged: {type(error).__name__} {error}"
        ) from None


def _line(folder: Path, manifest: dict) -> str:
    return (
        f"{folder.name}  {manifest['model']['class']} of {_num_parameters(manifest):,} parameters, "
        f"{_mesh(manifest)}, {_losses(manifest)}, {_files(manifest)}"
    )


def _page(folder: Path, manifest: dict) -> str:
    model, optimizer = manifest["model"], manifest["optimizer"]
    arguments = ", ".join(
        f"{name}={text_of(value)}" for name, value in model["configuration"].items()
    )
    state = "parameters only, no optimizer state"
    if optimizer is not None:
        state = f"optimizer {rule_text(optimizer)}"
    return "\n".join(
        [
            f"{folder}",
            f"step {manifest['step']}, {_losses(manifest)}, seed {manifest['seed']}",
            f"written as {_mesh(manifest)}; opens under any other",
            f"{model['class']}({arguments})",
            f"{_num_parameters(manifest):,} parameters, {state}",
            "",
            tensor_tree(manifest["tensors"]),
            "",
            _files(manifest),
        ]
    )


def _num_parameters(manifest) -> int:
    return sum(
        prod(entry["shape"])
        for tensor, entry in manifest["tensors"].items()
        if tensor.startswith("model/")
    )


def _mesh(manifest) -> str:
    sizes = " x ".join(f"{axis} {size}" for axis, size in manifest["mesh"].items())
    return f"{sizes}, {manifest['strategy']}"


def _losses(manifest) -> str:
    last, held_out = manifest["last_loss"], validation_loss(manifest)
    measured = "" if held_out is None else f", validation loss {held_out:.4f}"
    return ("no loss yet" if last is None else f"loss {last:.4f}") + measured


def _files(manifest) -> str:
    num_bytes = sum(record["bytes"] for record in manifest["files"].values())
    return f"{counted(len(manifest['files']), 'file')}, {num_bytes:,} bytes"
