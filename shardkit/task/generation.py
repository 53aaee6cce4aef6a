"""Text from a trained model, on one process."""

from dataclasses import dataclass

import numpy

from ..checkpoint.load import Checkpoint
from ..checkpoint.models import gpt_of
from ..checkpoint.sources import find_model
from ..checkpoint.store import warn_of_skipped
from ..data.tokenizer import ByteTokenizer, Tokenizer
from ..errors import ConfigurationError
from ..nn.models import GPT
from ..settings import setting


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The text that is written at the end of a run."""

    prompt: str = setting("def ", "text to continue; \\n is a line end")
    tokens: int = setting(200, "tokens to generate at the end of training", "tokens", minimum=0)
    temperature: float = setting(0.8, "0 takes the most probable token", minimum=0.0)


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
    checkpoint, skipped = find_model(folder)
    warn_of_skipped(checkpoint, skipped)
    model = gpt_of(checkpoint, "generates text")
    for name, parameter in model.named_parameters().items():
        parameter.array = checkpoint.read_whole(f"model/{name}")
    return model, checkpoint


def generate_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, num_tokens: int, temperature: float, seed: int
) -> str:
    """Return the prompt and its continuation; tokens that make no UTF-8 come as U+FFFD.

    Errors: ConfigurationError if the tokens of the model are not those of the tokenizer.
    """
    check_tokenizer(tokenizer, model.settings.vocabulary_size)
    numbers = tokenizer.encode(prompt)
    if not len(numbers):
        numbers = _beginning(tokenizer)
    new = model.generate(numbers, num_tokens, temperature=temperature, seed=seed)
    # A token may be written differently at the beginning of a text, so both are decoded whole.
    whole = tokenizer.decode(numpy.concatenate([numbers, new]))
    return prompt + whole[len(tokenizer.decode(numbers)) :]


def check_tokenizer(tokenizer: Tokenizer, vocabulary_size: int) -> None:
    """Raise ConfigurationError unless a model of so many tokens can be that of the tokenizer."""
    if isinstance(tokenizer, ByteTokenizer) and vocabulary_size != tokenizer.vocabulary_size:
        raise ConfigurationError(
            f"this model has {vocabulary_size:,} tokens, and only its own tokenizer knows what "
            "they mean; there is no tokenizer.json beside its weights. In Python: numbers = the "
            "text by its tokenizer, then model.generate(numbers, 50) gives the numbers that follow"
        )
    if tokenizer.vocabulary_size > vocabulary_size:
        raise ConfigurationError(
            f"{tokenizer.name} has {tokenizer.vocabulary_size:,} tokens, but the model has "
            f"{vocabulary_size:,}; wanted the tokenizer that the model was trained with"
        )


def _beginning(tokenizer: Tokenizer) -> numpy.ndarray:
    """Return the tokens that stand for an empty prompt."""
    if tokenizer.end_of_text is None:
        return tokenizer.encode("\n")
    return numpy.array([tokenizer.end_of_text], numpy.int64)
