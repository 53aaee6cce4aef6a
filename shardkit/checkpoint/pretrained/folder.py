"""A folder of transformers as a checkpoint of step 0 that holds parameters only.

    config.json              --> the model: families.py
    model.safetensors        --> its parameters, read box by box: names.py, reads.py
    model.safetensors.index.json: the same in several files. Where both are there, the first is
                             read, as by transformers; an index that does not hold is refused
    tokenizer.json, ...      --> companions, which travel in the checkpoints of the model

So GPT.from_checkpoint(folder) and load_model(folder) take such a folder as it is. Nothing in it has
a checksum: sizes, names and shapes are compared before anything is read.
"""

import re
from dataclasses import asdict
from pathlib import Path

import numpy

from ...array.backend import is_device_array
from ...array.copies import Copies
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import by_first, collectively
from ...errors import CheckpointError
from ...files.reading import read_json, size_of
from ...layout.axes import AXES
from ...layout.box import Box
from ...layout.piece import Piece
from ...nn.init import Unread
from ...nn.models.gpt import GPT
from ..fit import Fit, Stored, Wanted
from ..format.companions import CONFIGURATION_NAME, found_beside
from ..format.manifest import MANIFEST_NAME
from ..format.reads import READERS, read_all
from .families import read_configuration
from .names import Link, found_names, links
from .reads import reads_of_tensor
from .safetensors import READABLE, TYPE_NAMES, StoredTensor, read_header

TENSORS_NAME = "model.safetensors"
INDEX_NAME = TENSORS_NAME + ".index.json"
_MOST_INDEX_BYTES = 1 << 26
_MOST_PARTS = 1 << 16
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})(?P<suffix>\..+)", re.ASCII)
_CHUNK = 1 << 20  # elements
_MODEL = "model/"


def is_transformers_folder(path) -> bool:
    """Return True for a folder of transformers, be it complete or not."""
    path = Path(path)
    return (path / CONFIGURATION_NAME).exists() and not (path / MANIFEST_NAME).exists()


class TransformersFolder:
    """A folder of transformers; its members are those of a Checkpoint.

    dtype            "float32" or "float64", of the parameters: float16, bfloat16 and float32
                     numbers fit both exactly, float64 numbers are rounded to float32
    sequence_length  of the model; None: the longest that config.json says
    contents         of config.json, and {name: where a tensor is}, as another rank read them; None:
                     read them
    model            without weights
    notes            what could not be taken along
    Errors: FileNotFoundError, OSError; CheckpointError if it is damaged, or GPT cannot compute it.
    """

    def __init__(
        self,
        path,
        *,
        dtype: str = "float32",
        sequence_length: int | None = None,
        contents: tuple[dict, dict[str, StoredTensor]] | None = None,
    ):
        self.folder = Path(path)
        self._dtype = dtype
        if contents is None:
            tensors = _stored_tensors(self.folder)
            entries = read_json(self.folder / CONFIGURATION_NAME, error=CheckpointError)
            contents = entries, tensors
        self._entries: dict = contents[0]
        self._tensors = contents[1]
        self.model, self._family, self.notes = self._described(dtype, sequence_length)
        self.notes += _note_on_index(self.folder)
        self._links = {link.ours: link for link in links(self.model, self._family)}
        self._parameters = self.model.named_parameters()
        for parameter in self._parameters.values():
            parameter.init = Unread("GPT", str(path))
        self._by_name = self._found()
        self._check()
        if dtype == "float32" and any(t.dtype == "F64" for t in self._by_name.values()):
            self.notes.append("float64 numbers were rounded to float32; dtype float64 keeps them")

    @classmethod
    def opened_together(cls, path, backend: CommunicationBackend) -> "TransformersFolder":
        """Return the folder as rank 0 reads it. Collective. Errors, on all ranks."""

        def read() -> tuple[dict, dict[str, StoredTensor]]:
            first = cls(path)
            return first._entries, first._by_name

        return cls(path, contents=by_first(backend, read))

    def _described(self, dtype: str, sequence_length: int | None):
        where = str(self.folder / CONFIGURATION_NAME)
        most = len(self._tensors)
        return read_configuration(self._entries, where, dtype, sequence_length, most_layers=most)

    # ---- what is there ---------------------------------------------------------------------------

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{tensor path: global shape} of the parameters."""
        return {_MODEL + name: p.shape for name, p in self._parameters.items()}

    @property
    def manifest(self) -> dict:
        """What a checkpoint has beside its tensors."""
        return self._manifest(self.model)

    def _manifest(self, model: GPT) -> dict:
        return {
            "step": 0,
            "samples_seen": 0,
            "last_loss": None,
            "seed": 0,
            "mesh": dict.fromkeys(AXES, 1),
            "strategy": f"converted from {self._stored}",
            "active_features": None,
            "optimizer": None,
            "data_position": {},
            "model": {"class": "GPT", "configuration": asdict(model.settings)},
        }

    @property
    def _stored(self) -> str:
        """The types of numbers in the files, which those of the parameters may not be."""
        return " and ".join(sorted({TYPE_NAMES[tensor.dtype] for tensor in self._by_name.values()}))

    def companions(self) -> dict[str, bytes]:
        """Return {name: content} of its files without tensors, such as those of a tokenizer."""
        return found_beside(self.folder)[0]

    def fit(self, wanted: Wanted) -> Fit:
        """Return the fit with a model; its sequence length and dropout may differ.

        Errors: CheckpointError if they do not fit.
        """
        theirs = wanted.model["configuration"]
        model, _, _ = self._described(wanted.dtype, theirs.get("sequence_length"))
        manifest = self._manifest(model)
        if "dropout" in theirs:
            manifest["model"]["configuration"]["dropout"] = theirs["dropout"]
        tensors = {tensor: (shape, wanted.dtype) for tensor, shape in self.shapes.items()}
        return wanted.fit(Stored(str(self.folder), manifest, tensors))

    # ---- values ----------------------------------------------------------------------------------

    def load(self, owned, wanted: Wanted, backend: CommunicationBackend, copies: Copies) -> Fit:
        """Fill 1-D arrays of this rank, and return the fit with the model. Collective.

        owned   (tensor path, Piece, 1-D array) each; optimizer state becomes zero
        Errors, on all ranks: CheckpointError, OSError; nothing is filled if one refuses.
        """
        with collectively(backend):
            fit = self.fit(wanted)
            owned = fit.taken(owned)
            for path in {tensor.path for tensor in self._by_name.values()}:
                size_of(path, error=CheckpointError)
        with collectively(backend):
            self.read_into(owned, copies)
        return fit

    def read_into(self, owned, copies: Copies | None = None) -> None:
        """Fill 1-D arrays from the files. No communication.

        owned   (tensor path, Piece, 1-D array) each; optimizer state, which is not stored, becomes
                zero
        """
        for tensor, _, array in owned:
            if not tensor.startswith(_MODEL):
                array[...] = 0
        owned = [part for part in owned if part[0].startswith(_MODEL)]
        copies = copies or Copies()
        on_host = [part for part in owned if not is_device_array(part[2])]
        tasks = (read for tensor, piece, array in on_host for read in self._reads(piece, array))
        num_bytes = sum(array.nbytes for _, _, array in on_host)
        read_all(self.folder, tasks, num_bytes, READERS)
        try:
            for _, piece, array in owned:
                if is_device_array(array):
                    window = copies.window(array.nbytes)[: array.nbytes].view(array.dtype)
                    read_all(self.folder, self._reads(piece, window), window.nbytes, READERS)
                    copies.deliver(window, array)
        finally:
            copies.finish()

    def _reads(self, piece: Piece, array):
        """Return the tasks that fill an array on the host with a piece of a parameter."""
        link = self._links[piece.name]
        box = link.box_in_theirs(piece.box, piece.global_shape)
        tensor = self._by_name[link.theirs]
        return reads_of_tensor(tensor, box, array, is_transposed=link.is_transposed)

    def read_whole(self, tensor: str):
        """Return one parameter, whole, as a NumPy array."""
        name = tensor.removeprefix(_MODEL)
        shape = self.shapes[tensor]
        values = numpy.empty(shape, self._dtype)
        piece = Piece(name, Box.whole(shape), 0, values.size, shape)
        self.read_into([(tensor, piece, values.reshape(-1))])
        return values

    def __iter__(self):
        """Yield (path, Piece, 1-D array) of every parameter, read when its turn comes."""
        for name, parameter in self._parameters.items():
            piece = Piece(name, Box.whole(parameter.shape), 0, parameter.size, parameter.shape)
            yield _MODEL + name, piece, self.read_whole(_MODEL + name).reshape(-1)

    # ---- checks ----------------------------------------------------------------------------------

    def _found(self) -> dict[str, StoredTensor]:
        """Return {full name: where it is}, without lm_head.weight if it repeats the embedding."""
        names = found_names(self._tensors, self._family)
        tensors = {full: self._tensors[name] for full, name in names.items()}
        if not self.model.settings.tied:
            return tensors
        head = tensors.pop("lm_head.weight", None)
        embedding = tensors.get(self._links["embedding.tokens.weight"].theirs)
        if head is None or embedding is None or _are_equal(head, embedding):
            return tensors
        raise CheckpointError(
            f"{head.path}: lm_head.weight differs from the embedding, though {CONFIGURATION_NAME} "
            "says that the two are tied; set tie_word_embeddings to false there"
        )

    def _check(self):
        """Raise CheckpointError unless the files hold what the model needs, and nothing else."""
        for link in self._links.values():
            self._check_tensor(link, link.shape_in_theirs(self._parameters[link.ours].shape))
        unknown = sorted(self._by_name.keys() - {link.theirs for link in self._links.values()})
        if unknown:
            raise CheckpointError(
                f"{self._by_name[unknown[0]].path} holds {unknown[0]}, which has no place in this "
                "model: it computes something that GPT here does not"
            )

    def _check_tensor(self, link: Link, wanted: tuple[int, ...]):
        if link.theirs not in self._by_name:
            raise CheckpointError(
                f"{self.folder} has no {link.theirs} of shape {list(wanted)}; its files hold "
                f"{len(self._by_name)} tensors: {', '.join(sorted(self._by_name)[:3])}, ..."
            )
        found = self._by_name[link.theirs]
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


def _are_equal(a: StoredTensor, b: StoredTensor) -> bool:
    """Compare a few rows at a time."""
    if a.shape != b.shape:
        return False
    num_rows = max(_CHUNK // max(a.shape[-1], 1), 1)
    parts = [slice(at, at + num_rows) for at in range(0, a.shape[0], num_rows)]
    return all(
        numpy.array_equal(a.read("float64", part), b.read("float64", part)) for part in parts
    )


# ---- files ---------------------------------------------------------------------------------------


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return {name in the files: where it is}. Errors: FileNotFoundError, CheckpointError."""
    tensors = None
    if (folder / INDEX_NAME).exists():
        index = read_json(folder / INDEX_NAME, _MOST_INDEX_BYTES, error=CheckpointError)
        tensors = _indexed_tensors(folder, index)
    if (folder / TENSORS_NAME).exists():
        tensors = _header(folder / TENSORS_NAME)
    if tensors is None:
        advice = ""
        if any(folder.glob("*.bin")):
            advice = (
                "; its .bin files are pickles, which are never opened here: save_pretrained() of "
                "transformers writes safetensors"
            )
        raise FileNotFoundError(f"{folder} holds neither {TENSORS_NAME} nor {INDEX_NAME}{advice}")
    return tensors


def _note_on_index(folder: Path) -> list[str]:
    """Return a note on an index that is passed over."""
    if not ((folder / TENSORS_NAME).exists() and (folder / INDEX_NAME).exists()):
        return []
    return [
        f"{TENSORS_NAME} was read, as transformers does; {INDEX_NAME} beside it, and its files, "
        "were not"
    ]


def _indexed_tensors(folder: Path, index: dict) -> dict[str, StoredTensor]:
    files = index.get("weight_map")
    is_right = isinstance(files, dict) and all(
        isinstance(file, str) and Path(file).name == file for file in files.values()
    )
    if not is_right:
        raise CheckpointError(
            f"{folder / INDEX_NAME} has no weight_map of names of files beside it"
        )
    names = sorted(set(files.values()))
    _check_all_parts(folder, names)
    headers = {file: _header(folder / file) for file in names}
    for name, file in files.items():
        if name not in headers[file]:
            raise CheckpointError(f"{folder / file} does not hold {name}, which {INDEX_NAME} says")
    tensors: dict[str, StoredTensor] = {}
    for header in headers.values():
        for name, tensor in header.items():
            if name in tensors:
                raise CheckpointError(
                    f"{tensors[name].path} and {tensor.path} both hold {name}; of which save are "
                    f"the files that {INDEX_NAME} names? Write them again, into an empty folder"
                )
            tensors[name] = tensor
    return tensors


def _check_all_parts(folder: Path, names: list[str]) -> None:
    """Refuse an index that leaves out parts of its own save: "-00003-of-00003", say."""
    for name in names:
        part = _PART.fullmatch(name)
        if part is None:
            continue
        stem, count = part["stem"], int(part["count"])
        every = {f"{stem}-{i:05d}-of-{part['count']}{part['suffix']}" for i in range(1, count + 1)}
        left = sorted(every - {*names}) if count <= _MOST_PARTS else []
        if left or count > _MOST_PARTS:
            raise CheckpointError(
                f"{folder / INDEX_NAME} names {name}, but not {(left or ['all others'])[0]}; write "
                "the files again, into an empty folder"
            )


def _header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file; a link, as caches of downloads have them, is followed."""
    size_of(path, error=CheckpointError)  # named as it was given
    return read_header(path.resolve())
