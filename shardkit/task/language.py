"""`language`: a GPT that learns to continue text: bytes, or the tokens of any tokenizer."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy

from ..checkpoint.models import without_weights
from ..checkpoint.pretrained.folder import is_transformers_folder
from ..data.contents import Contents
from ..data.language import LanguageData
from ..data.samples import TRAINING, VALIDATION, Samples
from ..data.settings import TextData
from ..data.tokenizer import MAIN_FILE, tokenizer_of
from ..errors import ConfigurationError
from ..files.writing import write_whole
from ..nn.lora import update_names
from ..nn.models.gpt import GPT
from ..nn.settings import Model
from ..parallel.model.sharded_model import parts_of
from .generation import Sample, write_texts
from .task import Task

_LORA = ("lora_rank", "lora_alpha", "lora_layers")
BITS_PER_NAT = 1 / numpy.log(2).item()
BYTES = 256


class Language(Task):
    """Text in, a GPT out."""

    sections = {"model": Model, "data": TextData, "sample": Sample}
    defaults = {"run.folder": "runs/gpt"}
    unit = "tokens"
    initial = "model.start"
    instead_of_predict = "shardkit generate"

    def __init__(self, settings):
        super().__init__(settings)
        self._data: LanguageData | None = None
        self._windows: dict[str, Samples] = {}
        self._name_tokens("token")

    def _name_tokens(self, token: str):
        self.sample = f"sequences of {self.settings.model.sequence_length} {token}s"
        self.loss_unit = f"nats per {token}"

    # ---- the model -------------------------------------------------------------------------------

    @classmethod
    def implied(cls, settings, given):
        """Return the sizes of the model in model.start, a checkpoint or a folder of transformers.

        Errors: ConfigurationError on a setting that contradicts it, with both values;
        CheckpointError if there is no GPT.
        """
        path = settings.model.start
        if not path:
            return {}
        length = given.get("model.sequence_length")
        changes = {} if length is None else {"sequence_length": settings.model.sequence_length}
        stored = GPT.from_checkpoint(path, **changes).settings
        if not stored.choices.is_rotary:  # each position has a weight
            stored = GPT.from_checkpoint(path).settings
        names = [name for name in _size_names() if stored.lora_rank or name not in _LORA]
        sizes = {f"model.{name}": getattr(stored, name) for name in names}
        _check_sizes(settings, given, sizes, is_longer_free=stored.choices.is_rotary)
        return sizes

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens that the model knows. Errors: ConfigurationError if it is open."""
        size = self.settings.model.vocabulary_size
        if size is None and self._data is not None:
            size = self._data.vocabulary_size
        if size is None:
            raise ConfigurationError(
                "the files of data.path do not tell how many tokens their vocabulary has; give "
                "model.vocabulary_size"
            )
        if self._data is not None and self._data.is_bytes and size != BYTES:
            raise ConfigurationError(
                f"the tokens of data.path are bytes, {BYTES} of them, but the model knows {size:,} "
                "tokens; wanted files of tokens of its own tokenizer: shardkit prepare"
            )
        return size

    def make_model(self):
        model = self.settings.model
        sizes = {name: getattr(model, name) for name in _size_names()}
        sizes["vocabulary_size"] = self.vocabulary_size
        gpt = GPT(seed=self.settings.run.seed, **sizes)
        if not model.start:
            return gpt
        return without_weights(gpt, model.start, update_names(gpt) if _adds_updates(model) else ())

    def begin(self, model):
        path = self.settings.model.start
        if not path:
            return ""
        stored = model.load_model(path, only="model", strict=not _adds_updates(self.settings.model))
        theirs = parts_of(model).checkpoints.companions.get(MAIN_FILE)
        ours = self._data.tokenizer_files.get(MAIN_FILE)
        if None not in (theirs, ours) and theirs != ours:
            raise ConfigurationError(
                f"the tokens of data.path were made by another tokenizer than that of {path}; let "
                "`shardkit prepare` make them with its tokenizer.json"
            )
        return (
            f"begins with the weights of {path} at step {stored['step']}; optimizer state is fresh"
        )

    # ---- data ------------------------------------------------------------------------------------

    def _texts(self) -> tuple:
        """Return what the settings say of the texts, and what makes samples of their tokens."""
        return self.settings.data, None

    def prepare(self, folder, resume):
        found = LanguageData.prepare(folder / "data", *self._texts(), resume=resume)
        self._take(found)
        found.check_tokens(self.vocabulary_size)
        found.store(folder / "data")
        _note_start(self.settings.model.start, folder / "data", resume)
        for name, content in found.tokenizer_files.items():
            write_whole(folder / name, content)

    def open(self, folder):
        self._take(LanguageData.open(folder / "data", *self._texts()))

    def _take(self, found: LanguageData):
        """Know the data and what follows from it. Errors: ConfigurationError, CorpusError."""
        self._data = found
        if found.is_bytes:
            self._name_tokens("byte")
        size, length = self.vocabulary_size, self.settings.model.sequence_length
        self._windows = {part: found.samples(part, length, size) for part in (TRAINING, VALIDATION)}

    def companions(self):
        return self._data.tokenizer_files

    def samples(self, part):
        return self._windows[part]

    def samples_of(self, path, *, has_targets=True):
        length = self.settings.model.sequence_length
        return self._data.samples_of(path, length, self.vocabulary_size)

    @property
    def units_per_sample(self):
        return self.settings.model.sequence_length

    def describe_data(self):
        training, held_out = (self._data.num_tokens(part) for part in (TRAINING, VALIDATION))
        what = "bytes" if self._data.is_bytes else f"tokens of {self.vocabulary_size:,}"
        return f"text of {training:,} {what} + {held_out:,} held out"

    def example(self, count, seed=0):
        tokens = numpy.random.default_rng(seed).integers(
            0, self.vocabulary_size, (count, self.settings.model.sequence_length + 1)
        )
        return tokens[:, :-1], tokens[:, 1:]

    # ---- reports ---------------------------------------------------------------------------------

    def describe_loss(self, loss):
        ((name, value),) = self.loss_record(loss).items()
        return f"{super().describe_loss(loss)}  ({value:.3f} {name.replace('_', ' ')})"

    def loss_record(self, loss):
        per_token = self.loss_unit.removeprefix("nats ").replace(" ", "_")
        return {f"bits_{per_token}": loss * BITS_PER_NAT}

    def num_flops_per_sample(self, model):
        return model.num_flops_per_token * self.settings.model.sequence_length

    def smallest(self):
        return {
            "model.start": None,
            "model.width": 2 * self.settings.model.heads,
            "model.hidden": None,
            "model.vocabulary_size": self.vocabulary_size,
            "model.sequence_length": max(self.settings.mesh.tensor, 2),
        }

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self, model):
        sample = self.settings.sample
        if sample.tokens == 0:
            return ""
        if self.settings.mesh.domain > 1 or self.settings.parallel.domain_slabs is not None:
            return (
                "no sample of text: `shardkit generate` writes one, where ranks share no sequence"
            )
        tokenizer = self._data.tokenizer()
        if tokenizer is None and MAIN_FILE in parts_of(model).checkpoints.companions:
            tokenizer = tokenizer_of(parts_of(model).checkpoints.companions)
        if tokenizer is None:
            return "no sample of text: there is no tokenizer beside the tokens or the model"
        prompt = self._prompt()
        how = {"temperature": sample.temperature, "seed": self.settings.run.seed}
        window = model.wrapped_model.settings.sequence_length
        num_tokens = sample.num_tokens(tokenizer.encode(prompt), window)
        (text,) = write_texts(model, tokenizer, [prompt], num_tokens, **how)
        return f"sample of generated text:\n{text}"

    def _prompt(self) -> str:
        """Return the beginning of the sample of text."""
        return self.settings.sample.prompt.replace("\\n", "\n")


def _note_start(path: str | None, folder: Path, resume: bool) -> None:
    """Keep what the folder of transformers held that the run began with, or compare it.

    One that is gone is not needed any more. Errors: InputError if it was changed, OSError.
    """
    if path is None or not is_transformers_folder(path):
        return
    files = sorted(Path(path).glob("*.safetensors"))
    contents = Contents.stored(folder) if resume else Contents()
    for file in files:
        if resume:
            contents.check(file)
        else:
            contents.of(file)
    contents.store(folder)


def _adds_updates(model: Model) -> bool:
    """Return whether updates (LoRA) begin beside the weights of model.start."""
    return model.lora_rank > 0 and not GPT.from_checkpoint(str(model.start)).settings.lora_rank


def _size_names() -> list[str]:
    """Return the settings of a model that are arguments of GPT."""
    return [each.name for each in fields(Model) if each.name != "start"]


def _check_sizes(
    settings, given: dict[str, Any], sizes: dict[str, Any], *, is_longer_free: bool
) -> None:
    """Raise ConfigurationError if a size was given that is not that of the checkpoint.

    is_longer_free   sequences may have another length than those that the model was trained on
    """
    for name in given.keys() & sizes.keys():
        is_fixed = "fixed" in settings.key(name).metadata
        is_fixed = is_fixed or name == "model.sequence_length" and not is_longer_free
        if is_fixed and settings.value(name) != sizes[name]:
            raise ConfigurationError(
                f"{name} = {settings.value(name)!r}, but the model in {settings.model.start} has "
                f"{sizes[name]!r}; leave it out, since model.start says the sizes"
            )
