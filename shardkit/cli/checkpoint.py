"""`shardkit diff` and `shardkit convert`."""

import sys
from functools import partial

from ..checkpoint.find import find_checkpoint
from ..checkpoint.pretrained.families import FAMILIES
from ..checkpoint.tools.convert import from_safetensors, to_adapter, to_safetensors
from ..checkpoint.tools.diff import compare, comparison_text
from ..errors import ConfigurationError, ShardkitError
from ..files.shown import shown
from .arguments import add_averaged, add_checkpoint, local_path, option, tolerance

_CONVERSIONS = {"safetensors": to_safetensors, "shardkit": from_safetensors, "adapter": to_adapter}
_DIFF = """compare two checkpoints number by number

Exit codes: 0 the two are equal, or within the tolerance; 1 they differ; 2 wrong usage, or one
of the two cannot be read."""
_CONVERT = f"""convert to and from model folders of Hugging Face's transformers

Convert models of the families {", ".join(FAMILIES)}. The optimizer state of a checkpoint is
not converted. `shardkit train --model.start=FOLDER` takes such a folder as it is."""


def add_commands(add_command) -> None:
    """Add the parsers of both commands."""
    _add_diff(add_command)
    _add_convert(add_command)


def _add_diff(add_command) -> None:
    diff = add_command("diff", _diff, _DIFF)
    add = partial(option, diff)
    for name in ("first", "second"):
        add(
            name,
            "one checkpoint; or a run folder or folder of checkpoints, which stands for its "
            "newest valid checkpoint",
            type=local_path,
        )
    add(
        "--tolerance X",
        "differences up to X times the largest magnitude in a tensor count as equal; default: "
        "%(default)s",
        type=tolerance,
        default=0.0,
    )
    add("--model-only", "compare parameters only: no optimizer state, step or seeds")


def _add_convert(add_command) -> None:
    convert = add_command("convert", _convert, _CONVERT)
    add = partial(option, convert)
    add(
        "--to",
        "safetensors: write config.json and model.safetensors from a checkpoint; shardkit: "
        "write a folder of checkpoints with step 0 from such files; adapter: write the updates "
        "of a model with LoRA (model.lora_rank) as the library PEFT reads them",
        choices=_CONVERSIONS,
        required=True,
    )
    add(
        "source",
        "one checkpoint, or a run folder or folder of checkpoints; or the folder that holds "
        "config.json and safetensors files",
        type=local_path,
    )
    add("target", "folder to write; it must not hold a model yet", type=local_path)
    add(
        "--dtype",
        "dtype of the numbers written; default: float32 to shardkit, that of the checkpoint "
        "to safetensors",
        choices=("float32", "float64"),
    )
    add(
        "--sequence-length N",
        "longest sequences of the model, to shardkit; default: those that config.json says",
        type=int,
    )
    add(
        "--renew",
        "to safetensors: replace a model that was written there of another checkpoint, and "
        "leave one of the same checkpoint as it is",
    )
    add_checkpoint(convert)
    add_averaged(convert)


def _diff(known, overrides) -> int:
    try:
        chosen = [find_checkpoint(path) for path in (known.first, known.second)]
        found = compare(
            *(checkpoint for checkpoint, _ in chosen),
            tolerance=known.tolerance,
            model_only=known.model_only,
        )
    except (ShardkitError, OSError) as error:
        print(f"shardkit: {shown(str(error))}", file=sys.stderr)
        return 2  # 1 means that they differ, as for other programs that compare
    for checkpoint, skipped in chosen:
        lines = [str(checkpoint.folder), *(f"  skipped: {reason}" for reason in skipped)]
        print(shown("\n".join(lines)))
    print(shown(comparison_text(found)))
    return 0 if found.is_equal else 1


def _convert(known, overrides) -> int:
    for name in ("averaged", "checkpoint"):
        if known.to == "shardkit" and getattr(known, name) not in (None, False):
            raise ConfigurationError(f"--{name} is not for --to shardkit; leave it out")
    options = {
        "checkpoint": known.checkpoint,
        "dtype": known.dtype,
        "sequence_length": known.sequence_length,
        "averaged": known.averaged or None,
        "renews": known.renew or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if known.to != "shardkit" and "sequence_length" in given:
        raise ConfigurationError("--sequence-length is for --to shardkit; leave it out")
    if known.to != "safetensors" and known.renew:
        raise ConfigurationError("--renew is for --to safetensors; leave it out")
    if known.to == "adapter" and "dtype" in given:
        raise ConfigurationError("--dtype is not for --to adapter; leave it out")
    print(_CONVERSIONS[known.to](known.source, known.target, **given))
    return 0
