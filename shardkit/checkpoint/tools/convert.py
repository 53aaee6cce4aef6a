"""Convert checkpoints to and from folders of transformers: config.json and safetensors files.

    model.save_pretrained("llama")                      # transformers
    shardkit convert --to shardkit llama start          # a checkpoint of step 0, parameters only
    shardkit convert --to safetensors runs/x back       # the newest valid one, no optimizer state
    LlamaForCausalLM.from_pretrained("back")
    shardkit convert --to adapter runs/x tuned          # the updates of LoRA alone, for PEFT

One tensor is in memory at a time. A run needs no conversion: `shardkit train --model.start=llama`
reads the folder as it is. Token ids, generation settings and the files of a tokenizer
travel in the checkpoints, through training too (format/companions.py).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy

from ...comm.threads.backend import run_ranks
from ...errors import CheckpointError, ConfigurationError
from ...files.reading import parsed_json, read_bytes
from ...files.removing import remove_file
from ...files.writing import write_whole
from ...nn.lora import lora_layers, update_names, updated_weight
from ...nn.models.gpt import GPT
from ..choice import Which
from ..format.companions import CONFIGURATION_NAME, found_beside
from ..format.manifest import MANIFEST_NAME
from ..format.manifest import MOST_BYTES as MOST_MANIFEST_BYTES
from ..models import gpt_of
from ..paths import averaged_path, check_averaged
from ..pretrained.adapter import SETTINGS_NAME as ADAPTER_SETTINGS_NAME
from ..pretrained.adapter import TENSORS_NAME as ADAPTER_TENSORS_NAME
from ..pretrained.adapter import save_adapter
from ..pretrained.families import configuration_of
from ..pretrained.folder import INDEX_NAME, TENSORS_NAME, TransformersFolder
from ..pretrained.names import Link, links
from ..pretrained.safetensors import read_metadata, write_tensors
from ..sources import find_model
from ..store import CheckpointStore
from ..whole import load

_MADE_FROM = "shardkit.made_from"  # in the file of tensors
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


def to_safetensors(
    path,
    folder,
    *,
    dtype: str | None = None,
    averaged: bool = False,
    renews: bool = False,
    checkpoint: Which = None,
) -> Conversion:
    """Write a checkpoint's model as a folder that transformers reads; optimizer state stays behind.

    path     a checkpoint, or a folder of them; or a folder of transformers
    folder   is made, and gets the companions of the model too; files that have other names stay in
             it
    dtype    "float32" or "float64"; None: that of the checkpoint
    averaged the averages that sk.EMA kept, instead of the weights
    renews   a model that was written here of another checkpoint is replaced, and one of this
             checkpoint left as it is
    checkpoint   which of several, see choice.py
    Updates of low rank are added to their weights.
    Errors: FileNotFoundError, CheckpointError, OSError; ConfigurationError if the folder holds a
    model already.
    """
    folder = Path(folder)
    found, skipped, taken = find_model(path, checkpoint)
    companions = _with_tokenizer_settings(found.companions())
    names = (CONFIGURATION_NAME, TENSORS_NAME, INDEX_NAME, *companions)
    is_ours = renews and _MADE_FROM in _about(folder / TENSORS_NAME)
    _check_free(folder, [folder / (INDEX_NAME if is_ours else name) for name in names])
    original = parsed_json(
        companions.pop(CONFIGURATION_NAME, b"{}"),
        found.folder / CONFIGURATION_NAME,
        error=CheckpointError,
    )
    model = gpt_of(found, "has a counterpart in transformers")
    dtype = dtype or model.settings.dtype
    configuration, family, notes = configuration_of(
        model.settings, dtype, original.get("model_type")
    )
    configuration = _with_original(configuration, original)
    parts: dict[str, list[Link]] = {}
    parameters = model.named_parameters()
    names = [name for name in parameters if name not in update_names(model)]
    for link in sorted(links(model, family, names), key=lambda link: link.part):
        parts.setdefault(link.theirs, []).append(link)
    shapes = {
        theirs: some[0].shape_in_theirs(parameters[some[0].ours].shape)
        for theirs, some in parts.items()
    }
    made_from = _made_from(found, dtype, averaged)
    is_there = is_ours and (folder / CONFIGURATION_NAME).exists()
    if is_there and made_from == _about(folder / TENSORS_NAME)[_MADE_FROM]:
        return Conversion(str(folder), model, len(shapes), ["is of this checkpoint already"])
    if averaged:
        check_averaged(found.folder, found.shapes)
    read = _reader(found, model, averaged)
    arrays = (_assembled(read, some) for some in parts.values())
    folder.mkdir(parents=True, exist_ok=True)
    if is_there:
        remove_file(folder / CONFIGURATION_NAME)  # what is left half done is no model
    about = {_MADE_FROM: made_from} if made_from else None
    write_tensors(folder / TENSORS_NAME, shapes, dtype, arrays, about)
    for name, content in companions.items():
        write_whole(folder / name, content)
    text = json.dumps(configuration, indent=2) + "\n"
    write_whole(folder / CONFIGURATION_NAME, text.encode())
    notes = [taken.text] * bool(taken.text) + [f"skipped: {reason}" for reason in skipped] + notes
    if model.settings.lora_rank:
        notes.append("the updates of LoRA were added to their weights")
    if companions:
        notes.append(f"brought back: {', '.join(companions)}")
    return Conversion(str(folder), model, len(shapes), notes)


def _about(path: Path) -> dict:
    """Return what a file of tensors says of itself; {} where there is none."""
    return read_metadata(path) if path.exists() else {}


def _made_from(checkpoint, dtype: str, averaged: bool) -> str:
    """Return a hash of a checkpoint and settings; "" for a folder of transformers.

    The manifest has a checksum of all that the checkpoint holds.
    """
    if isinstance(checkpoint, TransformersFolder):
        return ""
    manifest = read_bytes(checkpoint.folder / MANIFEST_NAME, MOST_MANIFEST_BYTES)
    about = json.dumps([dtype, averaged]).encode()
    return hashlib.sha256(manifest + about).hexdigest()


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


def _reader(checkpoint, model: GPT, averaged: bool) -> Callable:
    """Return the function that reads a parameter by its name, with the update of its layer."""
    frozen = checkpoint.manifest.get("frozen") or ()
    scales = {f"{path}.weight": layer.scale for path, layer in lora_layers(model).items()}

    def stored(name):
        tensor = f"model/{name}"
        return checkpoint.read_whole(averaged_path(tensor, frozen) if averaged else tensor)

    def read(name):
        weight = stored(name)
        if name in scales:
            path = name.removesuffix(".weight")
            pair = stored(f"{path}.lora_A"), stored(f"{path}.lora_B")
            weight = updated_weight(weight, *pair, scales[name])
        return weight

    return read


def _assembled(read: Callable, some: list[Link]):
    """Return one tensor of theirs, made of these parameters of ours."""
    arrays = [read(link.ours) for link in some]
    turned = [array.T if link.is_transposed else array for link, array in zip(some, arrays)]
    return numpy.concatenate(turned, axis=-1)


def to_adapter(path, folder, *, averaged: bool = False, checkpoint: Which = None) -> Conversion:
    """Write the updates (LoRA) of a checkpoint's model as a folder of PEFT.

    path, averaged, checkpoint   as for to_safetensors
    folder                       is made
    Errors: FileNotFoundError, CheckpointError, OSError; ConfigurationError if the model has no
    updates, or the folder holds an adapter already.
    """
    folder = Path(folder)
    _check_free(folder, [folder / ADAPTER_SETTINGS_NAME, folder / ADAPTER_TENSORS_NAME])
    model = load(path, averaged=averaged, checkpoint=checkpoint)
    save_adapter(model, folder)
    return Conversion(str(folder), model, len(update_names(model)), [])


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
