"""Convert checkpoints to and from folders of transformers: config.json and safetensors files.

    model.save_pretrained("llama")                      # transformers
    shardkit convert --to shardkit llama start          # a checkpoint of step 0, parameters only
    shardkit convert --to safetensors runs/x back       # the newest valid one, no optimizer state
    LlamaForCausalLM.from_pretrained("back")

One tensor is in memory at a time. Token ids, generation settings and the files of a tokenizer
travel in the checkpoints, through training too (format/companions.py).
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy

from ...comm.threads.backend import run_ranks
from ...errors import CheckpointError, ConfigurationError
from ...layout.box import Box
from ...layout.piece import Piece
from ...nn.gpt import GPT
from ..find import find_checkpoint
from ..format.companions import CONFIGURATION_NAME, found_beside
from ..load import Checkpoint
from ..models import gpt_of
from ..store import CheckpointStore
from .hugging_face import Link, configuration_of, found_names, links, read_configuration
from .safetensors import READABLE, StoredTensor, read_header, write_tensors

TENSORS_NAME = "model.safetensors"
_INDEX_NAME = TENSORS_NAME + ".index.json"
_CHUNK = 1 << 20  # elements


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


def to_safetensors(path, folder, *, dtype: str | None = None) -> Conversion:
    """Write a checkpoint's model as a folder that transformers reads; optimizer state stays behind.

    path     a checkpoint, or a folder of them: the newest valid one
    folder   is made, and gets the companions of the model too; files that have other names stay in
             it
    dtype    "float32" or "float64"; None: that of the checkpoint
    Errors: FileNotFoundError, CheckpointError, OSError; ConfigurationError if the folder holds a
    model already.
    """
    folder = Path(folder)
    checkpoint, skipped = find_checkpoint(path)
    companions = checkpoint.companions()
    names = (CONFIGURATION_NAME, TENSORS_NAME, _INDEX_NAME, *companions)
    _check_free(folder, [folder / name for name in names])
    original = companions.pop(CONFIGURATION_NAME, b"{}")
    model = gpt_of(checkpoint, "has a counterpart in transformers")
    dtype = dtype or model.settings.dtype
    configuration, notes = configuration_of(model.settings, dtype)
    configuration = _with_original(configuration, original, checkpoint.folder / CONFIGURATION_NAME)
    parts: dict[str, list[Link]] = {}
    for link in sorted(links(model), key=lambda link: link.part):
        parts.setdefault(link.theirs, []).append(link)
    parameters = model.named_parameters()
    shapes = {
        theirs: some[0].shape_in_theirs(parameters[some[0].ours].shape)
        for theirs, some in parts.items()
    }
    arrays = (_assembled(checkpoint, some) for some in parts.values())
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


def _with_original(configuration: dict, original: bytes, where: Path) -> dict:
    """Return the config.json of the model with what its original had beyond it, but for dtypes."""
    more = _parsed_json(where, original)
    more = {name: more[name] for name in more if name not in ("dtype", "torch_dtype")}
    return {"bos_token_id": None, "eos_token_id": None, **more, **configuration}


def _assembled(checkpoint: Checkpoint, some: list[Link]):
    """Return one tensor of theirs, made of these parameters of ours."""
    arrays = []
    for link in some:
        array = checkpoint.read_whole(f"model/{link.ours}")
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


def from_safetensors(path, folder, *, dtype: str = "float32") -> Conversion:
    """Write a folder of transformers as a checkpoint of step 0 that holds parameters only.

    path     holds config.json and model.safetensors, or model.safetensors.index.json with the files
             that it names
    folder   of checkpoints, for GPT.from_checkpoint(folder) and load_model(folder); is made
    dtype    "float32" or "float64", of the parameters: float16, bfloat16 and float32 numbers fit
             both exactly, float64 numbers are rounded to float32
    Errors: FileNotFoundError, OSError; CheckpointError if it is damaged or GPT cannot compute it;
    ConfigurationError if the folder holds checkpoints already.
    """
    companions, kept = found_beside(Path(path))
    store = CheckpointStore(folder, companions=companions)
    _check_free(store.folder, store.steps())
    tensors = _stored_tensors(Path(path))
    model, notes = read_configuration(
        _read_json(Path(path) / CONFIGURATION_NAME), str(Path(path) / CONFIGURATION_NAME), dtype
    )
    stored = _StoredParameters(model, tensors)
    if dtype == "float32" and any(tensor.dtype == "F64" for tensor in tensors.values()):
        notes = notes + ["float64 numbers were rounded to float32; --dtype float64 keeps them"]
    description = {
        "step": 0,
        "samples_seen": 0,
        "last_loss": None,
        "seed": 0,
        "mesh": {"pipeline": 1, "data": 1, "tensor": 1},
        "strategy": "converted",
        "active_features": None,
        "optimizer": None,
        "data_position": {},
        "model": {"class": "GPT", "configuration": model.configuration()},
    }
    (written,) = run_ranks(1, lambda backend: store.save(stored, backend, description))
    return Conversion(written, model, len(model.named_parameters()), notes + kept)


class _StoredParameters:
    """Every parameter as CheckpointStore.save takes it, read when its turn comes.

    Errors, when it is made: CheckpointError unless the files hold what the model needs, and nothing
    else.
    """

    def __init__(self, model: GPT, tensors: dict[str, StoredTensor]):
        self._dtype = model.settings.dtype
        self._shapes = {
            name: parameter.shape for name, parameter in model.named_parameters().items()
        }
        self._links = links(model)
        names = found_names(tensors, model.settings.style)
        self._tensors = {full: tensors[name] for full, name in names.items()}
        if model.settings.tied:
            self._drop_tied_head(self._links[0].theirs)
        self._check()

    def _drop_tied_head(self, embedding: str):
        """Drop lm_head.weight, in which older files repeat the embedding."""
        head = self._tensors.pop("lm_head.weight", None)
        if head is None or embedding not in self._tensors:
            return
        if not _are_equal(head, self._tensors[embedding]):
            raise CheckpointError(
                f"{head.path}: lm_head.weight differs from the embedding, though "
                f"{CONFIGURATION_NAME} says that the two are tied; set tie_word_embeddings to "
                "false there"
            )

    def _check(self):
        for link in self._links:
            wanted = link.shape_in_theirs(self._shapes[link.ours])
            if link.theirs not in self._tensors:
                raise CheckpointError(
                    f"there is no {link.theirs} of shape {list(wanted)} in these files; they hold "
                    f"{len(self._tensors)} tensors: {', '.join(sorted(self._tensors)[:3])}, ..."
                )
            found = self._tensors[link.theirs]
            if found.dtype not in READABLE:
                raise CheckpointError(
                    f"{found.path}: {found.name} is of type {found.dtype}; wanted "
                    f"{', '.join(READABLE)}. Quantized models cannot be converted"
                )
            if found.shape != wanted:
                raise CheckpointError(
                    f"{found.path}: {found.name} has shape {list(found.shape)}; "
                    f"{CONFIGURATION_NAME} means {list(wanted)}"
                )
        unknown = sorted(self._tensors.keys() - {link.theirs for link in self._links})
        if unknown:
            raise CheckpointError(
                f"{self._tensors[unknown[0]].path} holds {unknown[0]}, which has no place in this "
                "model: it computes something that GPT here does not"
            )

    def __iter__(self):
        for link in self._links:
            shape = self._shapes[link.ours]
            array = self._tensors[link.theirs].read(self._dtype, link.index(shape))
            array = array.T if link.is_transposed else array
            piece = Piece(link.ours, Box.whole(shape), 0, array.size, shape)
            yield f"model/{link.ours}", piece, array.reshape(-1)


def _are_equal(a: StoredTensor, b: StoredTensor) -> bool:
    """Compare a few rows at a time."""
    if a.shape != b.shape:
        return False
    num_rows = max(_CHUNK // max(a.shape[-1], 1), 1)
    parts = [slice(at, at + num_rows) for at in range(0, a.shape[0], num_rows)]
    return all(
        numpy.array_equal(a.read("float64", part), b.read("float64", part)) for part in parts
    )


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return {name in the files: where it is}. Errors: FileNotFoundError, CheckpointError."""
    if (folder / _INDEX_NAME).exists():
        return _indexed_tensors(folder, _read_json(folder / _INDEX_NAME))
    if not (folder / TENSORS_NAME).exists():
        advice = ""
        if any(folder.glob("*.bin")):
            advice = (
                "; its .bin files are pickles, which are never opened here: save_pretrained() of "
                "transformers writes safetensors"
            )
        raise FileNotFoundError(f"{folder} holds neither {TENSORS_NAME} nor {_INDEX_NAME}{advice}")
    return read_header(folder / TENSORS_NAME)


def _indexed_tensors(folder: Path, index: dict) -> dict[str, StoredTensor]:
    files = index.get("weight_map")
    is_right = isinstance(files, dict) and all(
        isinstance(file, str) and Path(file).name == file for file in files.values()
    )
    if not is_right:
        raise CheckpointError(
            f"{folder / _INDEX_NAME} has no weight_map of names of files beside it"
        )
    headers = {file: read_header(folder / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in headers[file]:
            raise CheckpointError(f"{folder / file} does not hold {name}, which {_INDEX_NAME} says")
    return {name: headers[file][name] for name, file in files.items()}


def _read_json(path: Path) -> dict:
    return _parsed_json(path, path.read_bytes())


def _parsed_json(path: Path, content: bytes) -> dict:
    try:
        entries = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path} is damaged: it holds no table")
    return entries
