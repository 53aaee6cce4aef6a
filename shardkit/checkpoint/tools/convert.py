"""Convert checkpoints to and from folders of transformers: config.json and safetensors files.

    model.save_pretrained("llama")                      # transformers
    shardkit convert --to shardkit llama start          # a checkpoint of step 0, parameters only
    shardkit convert --to safetensors runs/x back       # the newest valid one, no optimizer state
    LlamaForCausalLM.from_pretrained("back")

One tensor is in memory at a time. A run needs no conversion: `shardkit train --model.start=llama`
reads the folder as it is. Token ids, generation settings and the files of a tokenizer
travel in the checkpoints, through training too (format/companions.py).
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy

from ...comm.threads.backend import run_ranks
from ...errors import ConfigurationError
from ...nn.models.gpt import GPT
from ..format.companions import CONFIGURATION_NAME, found_beside
from ..models import gpt_of
from ..paths import averaged_path, check_averaged
from ..pretrained.families import configuration_of
from ..pretrained.folder import INDEX_NAME, TENSORS_NAME, TransformersFolder, parsed_json
from ..pretrained.names import Link, links
from ..pretrained.safetensors import write_tensors
from ..sources import find_model
from ..store import CheckpointStore

TOKENIZER_NAME, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class Conversion:
    """A report of what was written.

    model    without weights, for its settings
    notes    what could not be taken along
    """

    folder: str
    model: GPT
    num_tensors: int
    notes: list[str]

    def __str__(self):
        lines = [
            f"{self.folder}: {self.num_tensors} tensors, {self.model.parameter_count:,} parameters"
        ]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


# ---- to transformers -----------------------------------------------------------------------------


def to_safetensors(path, folder, *, dtype: str | None = None, averaged: bool = False) -> Conversion:
    """Write a checkpoint's model as a folder that transformers reads; optimizer state stays behind.

    path     a checkpoint, or a folder of them: the newest valid one; or a folder of transformers
    folder   is made, and gets the companions of the model too; files that have other names stay in
             it
    dtype    "float32" or "float64"; None: that of the checkpoint
    averaged the averages that sk.EMA kept, instead of the weights
    Errors: FileNotFoundError, CheckpointError, OSError; ConfigurationError if the folder holds a
    model already.
    """
    folder = Path(folder)
    checkpoint, skipped = find_model(path)
    companions = _with_tokenizer_settings(checkpoint.companions())
    names = (CONFIGURATION_NAME, TENSORS_NAME, INDEX_NAME, *companions)
    _check_free(folder, [folder / name for name in names])
    original = parsed_json(
        checkpoint.folder / CONFIGURATION_NAME, companions.pop(CONFIGURATION_NAME, b"{}")
    )
    model = gpt_of(checkpoint, "has a counterpart in transformers")
    dtype = dtype or model.settings.dtype
    configuration, family, notes = configuration_of(
        model.settings, dtype, original.get("model_type")
    )
    configuration = _with_original(configuration, original)
    parts: dict[str, list[Link]] = {}
    for link in sorted(links(model, family), key=lambda link: link.part):
        parts.setdefault(link.theirs, []).append(link)
    parameters = model.named_parameters()
    shapes = {
        theirs: some[0].shape_in_theirs(parameters[some[0].ours].shape)
        for theirs, some in parts.items()
    }
    if averaged:
        check_averaged(checkpoint.folder, checkpoint.shapes)
    arrays = (_assembled(checkpoint, some, averaged) for some in parts.values())
    folder.mkdir(parents=True, exist_ok=True)
    _write_whole(folder / TENSORS_NAME, lambda file: write_tensors(file, shapes, dtype, arrays))
    for name, content in companions.items():
        _write_whole(folder / name, lambda file: file.write_bytes(content))
    text = json.dumps(configuration, indent=2) + "\n"
    _write_whole(folder / CONFIGURATION_NAME, lambda file: file.write_text(text, "utf-8"))
    notes = [f"skipped: {reason}" for reason in skipped] + notes
    if companions:
        notes.append(f"brought back: {', '.join(companions)}")
    return Conversion(str(folder), model, len(shapes), notes)


def _with_original(configuration: dict, original: dict) -> dict:
    """Return the config.json of the model with what its original had beyond it, but for dtypes.

    A model that went on with shorter sequences still takes those that it took before.
    """
    more = {name: original[name] for name in original if name not in ("dtype", "torch_dtype")}
    name = "max_position_embeddings"
    if name in configuration and type(more.get(name)) is int:
        configuration = {**configuration, name: max(configuration[name], more[name])}
    return {"bos_token_id": None, "eos_token_id": None, **more, **configuration}


def _with_tokenizer_settings(companions: dict[str, bytes]) -> dict[str, bytes]:
    """Return the companions, with what AutoTokenizer asks for beside a tokenizer.json."""
    if TOKENIZER_NAME not in companions or TOKENIZER_SETTINGS in companions:
        return companions
    content = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}) + "\n"
    return {**companions, TOKENIZER_SETTINGS: content.encode("utf-8")}


def _assembled(checkpoint, some: list[Link], averaged: bool):
    """Return one tensor of theirs, made of these parameters of ours."""
    arrays = []
    for link in some:
        tensor = f"model/{link.ours}"
        frozen = checkpoint.manifest.get("frozen") or ()
        array = checkpoint.read_whole(averaged_path(tensor, frozen) if averaged else tensor)
        arrays.append(array.T if link.is_transposed else array)
    return numpy.concatenate(arrays, axis=-1)


def _write_whole(path: Path, write) -> None:
    """Call write(temporary path), then give it its name, so that nobody finds half a file."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_free(folder: Path, paths) -> None:
    there = [path for path in paths if path.exists()]
    if there:
        raise ConfigurationError(
            f"{there[0]} exists already; choose another folder than {folder}, or move it away"
        )


# ---- from transformers ---------------------------------------------------------------------------


def from_safetensors(
    path, folder, *, dtype: str = "float32", sequence_length: int | None = None
) -> Conversion:
    """Write a folder of transformers as a checkpoint of step 0 that holds parameters only.

    path     holds config.json and model.safetensors, or model.safetensors.index.json with the files
             that it names
    folder   of checkpoints, for GPT.from_checkpoint(folder) and load_model(folder); is made
    dtype, sequence_length   of the model, see TransformersFolder
    Errors: FileNotFoundError, OSError; CheckpointError if it is damaged or GPT cannot compute it;
    ConfigurationError if the folder holds checkpoints already.
    """
    companions, kept = found_beside(Path(path))
    store = CheckpointStore(folder, companions=companions)
    _check_free(store.folder, store.steps())
    source = TransformersFolder(path, dtype=dtype, sequence_length=sequence_length)
    (written,) = run_ranks(1, lambda backend: store.save(source, backend, source.manifest))
    return Conversion(written, source.model, len(source.shapes), source.notes + kept)
