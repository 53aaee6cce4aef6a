"""`language`: a GPT that learns to continue text, whose tokens are bytes."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy

from ..checkpoint.models import without_weights
from ..comm.failure.agreement import collectively
from ..data.tokenizer import ByteTokenizer
from ..errors import ConfigurationError
from ..nn.models import GPT
from ..nn.settings import Model
from .corpus import VOCABULARY_SIZE, Text, Windows, build_corpus, has_corpus
from .generation import Sample, fill_parameters, generate_text
from .task import TRAINING, VALIDATION, Task

BITS_PER_NAT = 1 / numpy.log(2).item()
_FILES = {TRAINING: "train.bin", VALIDATION: "validation.bin"}


class Language(Task):
    """Text in, a GPT out."""

    sections = {"model": Model, "data": Text, "sample": Sample}
    defaults = {"run.folder": "runs/gpt"}
    unit = "tokens"
    loss_unit = "nats per byte"
    initial = "model.start"
    instead_of_predict = "shardkit generate"

    def __init__(self, settings):
        super().__init__(settings)
        self.sample = f"sequences of {settings.model.sequence_length} bytes"
        self._windows: dict[str, Windows] = {}

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
        sizes = {f"model.{name}": getattr(stored, name) for name in _size_names()}
        _check_sizes(settings, given, sizes, is_longer_free=stored.choices.is_rotary)
        return sizes

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens that the model knows."""
        return self.settings.model.vocabulary_size or VOCABULARY_SIZE

    def make_model(self):
        model = self.settings.model
        sizes = {name: getattr(model, name) for name in _size_names()}
        sizes["vocabulary_size"] = self.vocabulary_size
        gpt = GPT(seed=self.settings.run.seed, **sizes)
        return without_weights(gpt, model.start) if model.start else gpt

    def begin(self, model):
        path = self.settings.model.start
        if not path:
            return ""
        stored = model.load_model(path, only="model")
        return (
            f"begins with the weights of {path} at step {stored['step']}; optimizer state is fresh"
        )

    # ---- data ------------------------------------------------------------------------------------

    def prepare(self, folder, resume):
        if resume and has_corpus(folder / "data"):
            return  # a start before this one may have left other text
        if self.vocabulary_size != VOCABULARY_SIZE:
            raise ConfigurationError(
                f"the model knows {self.vocabulary_size:,} tokens, but text is read as bytes, "
                f"{VOCABULARY_SIZE} of them; wanted files of tokens of its own tokenizer: "
                "shardkit prepare"
            )
        text = self.settings.data
        build_corpus(folder / "data", text.path, text.validation_percent, text.maximum_bytes)

    def open(self, folder):
        length = self.settings.model.sequence_length
        for part, name in _FILES.items():
            self._windows[part] = Windows.open(Path(folder) / "data" / name, length)

    def samples(self, part):
        return self._windows[part]

    @property
    def units_per_sample(self):
        return self.settings.model.sequence_length

    def describe_data(self):
        training, held_out = (len(self._windows[part].tokens) for part in self._windows)
        return f"text of {training:,} bytes + {held_out:,} held out"

    def example(self, count, seed=0):
        tokens = numpy.random.default_rng(seed).integers(
            0, self.vocabulary_size, (count, self.settings.model.sequence_length + 1)
        )
        return tokens[:, :-1], tokens[:, 1:]

    # ---- reports ---------------------------------------------------------------------------------

    def describe_loss(self, loss):
        return f"{super().describe_loss(loss)}  ({loss * BITS_PER_NAT:.3f} bits per byte)"

    def loss_record(self, loss):
        return {"bits_per_byte": loss * BITS_PER_NAT}

    def num_flops_per_sample(self, model):
        return model.num_flops_per_token * self.settings.model.sequence_length

    def smallest(self):
        return {
            "model.start": None,
            "model.width": 2 * self.settings.model.heads,
            "model.hidden": None,
            "model.sequence_length": max(self.settings.mesh.tensor, 2),
        }

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self, model):
        sample = self.settings.sample
        if sample.tokens == 0:
            return ""
        vector = model.gather_full_parameters()
        text = ""
        with collectively(model.mesh.world):
            if model.rank == 0:
                plain = self.make_model()
                fill_parameters(plain, vector)
                prompt = sample.prompt.replace("\\n", "\n")
                seed = self.settings.run.seed
                how = sample.tokens, sample.temperature, seed
                text = generate_text(plain, ByteTokenizer(), prompt, *how)
        return f"sample of generated text:\n{text}"


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
