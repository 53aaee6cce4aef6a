"""Text from a trained model, through its tokenizer.

prompts --encode--> numbers --ShardedModel.generate--> numbers --decode--> texts
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from ..arguments import is_integer
from ..comm.failure.agreement import collectively
from ..data.tokenizer import ByteTokenizer, Tokenizer
from ..errors import ConfigurationError, InputError
from ..files.reading import parsed_json
from ..nn.models.gpt import GPT
from ..parallel.model.sharded_model import ShardedModel, parts_of
from ..settings import setting
from .streaming import TextStream, continuation, until

_MOST_BY_DEFAULT = 200
_GENERATION, _ENDS = "generation_config.json", "eos_token_id"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The text that is written at the end of a run."""

    prompt: str = setting("def ", "text to continue; \\n is a line end")
    tokens: int | None = setting(
        None,
        "tokens to generate at the end of training; none: up to 200, as many as the model sees",
        "tokens",
        minimum=0,
    )
    temperature: float = setting(0.8, "0 takes the most probable token", minimum=0.0)

    def num_tokens(self, prompt: Sequence[int], window: int) -> int:
        """Return how many tokens follow a prompt.

        Beyond the window of the model each new token costs a pass over the whole of it.
        """
        if self.tokens is not None:
            return self.tokens
        return min(_MOST_BY_DEFAULT, max(window - len(prompt), window // 2))


def write_texts(
    model: ShardedModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    num_tokens: int,
    *,
    stop: Sequence[str] = (),
    seed: int = 0,
    show: Callable[[str], None] | None = None,
    **choice,
) -> list[str]:
    """Return each prompt with its continuation, the same on all ranks. Collective.

    stop    texts that end a continuation, and are not part of it; the tokenizer's end of text is
            another, and so are the tokens that the generation_config.json of the model names
    seed    of the first prompt; the others follow it
    show    function (piece of the continuation) of the only prompt, called while it is generated;
            on any of the ranks that write it, and None on the others
    choice  temperature, top_k, top_p, repetition_penalty, together of ShardedModel.generate
    Tokens that make no UTF-8 come as U+FFFD.
    Errors, on all ranks: ConfigurationError, also if the tokens of the model are not those of the
    tokenizer.
    """
    with collectively(model.mesh.world):
        check_tokenizer(tokenizer, language_model(model).settings.vocabulary_size)
        numbers = [_numbers_of(prompt, tokenizer) for prompt in prompts]
        ends = [*_stop_tokens(stop, tokenizer), *stop_tokens_of(model)]
    seeds = range(seed, seed + len(prompts))
    stream = None if show is None else TextStream(tokenizer, numbers[0], stop, show)
    choice["on_token"] = stream and (lambda number, token: stream.add(token))
    new = model.generate(numbers, num_tokens, stop=ends, seeds=list(seeds), **choice)
    if stream is not None:
        stream.finish()
    return [
        prompt + until(stop, continuation(tokenizer, *both))
        for prompt, both in zip(prompts, zip(numbers, new))
    ]


def language_model(model: ShardedModel) -> GPT:
    """Return the GPT that is sharded. Errors: ConfigurationError if it is something else."""
    if not isinstance(model.wrapped_model, GPT):
        raise ConfigurationError(
            f"a {type(model.wrapped_model).__name__} generates no text; wanted a GPT"
        )
    return model.wrapped_model


def _numbers_of(prompt: str, tokenizer: Tokenizer) -> numpy.ndarray:
    """Return the tokens of a prompt; an empty one begins a text."""
    numbers = tokenizer.encode(prompt)
    if len(numbers):
        return numbers
    if tokenizer.end_of_text is None:
        return tokenizer.encode("\n")
    return numpy.array([tokenizer.end_of_text], numpy.int64)


def _stop_tokens(stop: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that end a continuation: of the texts that are one token, and its end."""
    if "" in stop:
        raise ConfigurationError("a stop text is empty; wanted at least one character")
    numbers = [tokenizer.encode(text) for text in stop]
    ends = [int(each[0]) for each in numbers if len(each) == 1]
    return ends if tokenizer.end_of_text is None else [*ends, tokenizer.end_of_text]


def stop_tokens_of(model: ShardedModel) -> list[int]:
    """Return the tokens that end a text by the generation_config.json that the model goes with.

    Errors: InputError unless they are tokens of the model.
    """
    content = parts_of(model).checkpoints.companions.get(_GENERATION)
    if content is None:
        return []
    size = language_model(model).settings.vocabulary_size
    found: Any = parsed_json(content, _GENERATION).get(_ENDS)
    ends: list[Any] = found if isinstance(found, list) else [found] * (found is not None)
    if not all(is_integer(end, at_least=0) and end < size for end in ends):
        raise InputError(
            f"{_GENERATION} beside the weights: {_ENDS} = {found!r:.100}; wanted token numbers "
            f"below {size:,}, or none",
            _GENERATION,
            _ENDS,
        )
    return ends


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
