"""Text from a trained model, on one process."""

from dataclasses import dataclass

import numpy

from ..checkpoint.find import find_checkpoint
from ..checkpoint.load import Checkpoint
from ..checkpoint.models import gpt_of
from ..checkpoint.store import warn_of_skipped
from ..errors import ConfigurationError
from ..nn.models import GPT
from ..settings import setting
from .corpus import VOCABULARY_SIZE


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The text that is written at the end of a run."""

    prompt: str = setting("def ", "text to continue; \\n is a line end")
    tokens: int = setting(200, "bytes to generate at the end of training", "bytes", minimum=0)
    temperature: float = setting(0.8, "0 takes the most probable byte", minimum=0.0)


def fill_parameters(model, vector) -> None:
    """Write the vector of ShardedModel.gather_full_parameters() into an unsharded model."""
    at = 0
    for parameter in model.named_parameters().values():
        parameter.array = vector[at : at + parameter.size].reshape(parameter.shape)
        at += parameter.size


def load_for_generation(folder) -> tuple[GPT, Checkpoint]:
    """Build the model of the newest valid checkpoint in a folder, or of this one, with weights.

    Errors: FileNotFoundError, CheckpointError.
    """
    checkpoint, skipped = find_checkpoint(folder)
    warn_of_skipped(checkpoint, skipped)
    model = gpt_of(checkpoint, "generates text")
    for name, parameter in model.named_parameters().items():
        parameter.array = checkpoint.read_whole(f"model/{name}")
    return model, checkpoint


def generate_text(model: GPT, prompt: str, num_tokens: int, temperature: float, seed: int) -> str:
    """Return the prompt and its continuation, byte by byte; invalid UTF-8 is replaced.

    Errors: ConfigurationError if the model's tokens are not bytes.
    """
    if model.settings.vocabulary_size != VOCABULARY_SIZE:
        raise ConfigurationError(
            f"this model has {model.settings.vocabulary_size:,} tokens, and only its own tokenizer "
            "knows what they mean; text is "
            f"generated here by models of bytes, which have {VOCABULARY_SIZE}. In Python: numbers "
            "= the text by its tokenizer, "
            "then model.generate(numbers, 50) gives the numbers that follow"
        )
    prompt_tokens = numpy.frombuffer(prompt.encode("utf-8") or b"\n", numpy.uint8).astype(
        numpy.int64
    )
    new = model.generate(prompt_tokens, num_tokens, temperature=temperature, seed=seed)
    return prompt + bytes(new.astype(numpy.uint8)).decode("utf-8", errors="replace")
