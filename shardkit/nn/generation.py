"""Generate text from a language model, one token at a time.

The next token depends on the last `sequence_length` tokens and on nothing before them. While the
text fits into this window, keys and values of earlier positions are kept, and a token costs one
position. When the text is longer the window slides, all positions in it change, and each token
costs a pass over the whole window. Cache or no cache, the logits are those of
`model.predict(window)`, to rounding.
"""

import numpy

from ..array.backend import host_array, to_host
from ..array.random import key_of, uniform
from ..errors import ConfigurationError, ShapeError
from .autograd import no_grad
from .context import ForwardContext, forward_context
from .transformer import KeyValueCache


def generate(model, prompt, num_tokens: int, *, temperature: float = 1.0, seed: int = 0):
    """Return the tokens that follow the prompt.

    model        a GPT
    prompt       1-D integers, at least one
    temperature  logits are divided by it before one is drawn; 0: always the likeliest
    seed         token i is drawn with random number i of this seed: same seed, same text
    returns      [num_tokens] int64, without the prompt
    Errors: ShapeError on another prompt, ConfigurationError on a negative temperature or number.
    """
    tokens = _checked_prompt(prompt, model.settings.vocabulary_size)
    if not temperature >= 0 or num_tokens < 0:
        raise ConfigurationError(
            f"generate {num_tokens} tokens at temperature {temperature}; wanted neither below 0"
        )
    chances = uniform(key_of(seed, "generate"), 0, num_tokens)
    decoder = Decoder(model)
    for chance in chances:
        tokens.append(choose(decoder.next_logits(tokens), temperature, chance))
    return numpy.array(tokens[len(tokens) - num_tokens :], numpy.int64)


def _checked_prompt(prompt, vocabulary_size) -> list[int]:
    prompt = host_array("the prompt", prompt)
    if prompt.ndim != 1 or prompt.size == 0 or prompt.dtype.kind not in "iu":
        raise ShapeError(
            f"a prompt of shape {prompt.shape} and dtype {prompt.dtype}; wanted 1-D integers, at "
            "least one"
        )
    if prompt.min() < 0 or prompt.max() >= vocabulary_size:
        raise ShapeError(
            f"a prompt with tokens from {prompt.min()} to {prompt.max()}; wanted 0 <= token < "
            f"{vocabulary_size}"
        )
    return prompt.tolist()


class Decoder:
    """The logits after a growing text, with keys and values kept between calls."""

    def __init__(self, model):
        self._model = model
        self._window = model.settings.sequence_length
        self._forget()

    def _forget(self):
        self._caches = [KeyValueCache(self._window) for _ in self._model.layers]

    def next_logits(self, tokens: list[int]):
        """Return the logits [vocabulary], on the host, of the token after `tokens`.

        These must continue the tokens of the last call.
        """
        if len(tokens) > self._window:
            self._forget()  # the window has moved, and with it every position in it
        known = self._caches[0].length
        ids = numpy.array([tokens[-self._window :][known:]])  # [1, new positions]
        with no_grad(), forward_context(ForwardContext()):
            x = self._model.embedding(ids, known)
            for block, cache in zip(self._model.layers, self._caches):
                x = block(x, cache)
            # Only the last position is asked for.
            return to_host(self._model.head(x[:, -1:]).array)[0, 0]


def choose(logits, temperature: float, chance: float) -> int:
    """Return the token at height `chance`, in [0, 1), of stacked softmax(logits / temperature)."""
    if temperature == 0:
        return int(logits.argmax())
    heights = numpy.exp((logits.astype(numpy.float64) - logits.max()) / temperature).cumsum()
    return min(
        int(numpy.searchsorted(heights, chance * heights[-1], side="right")), logits.size - 1
    )
