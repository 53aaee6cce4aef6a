"""Generate text from a language model, one token at a time.

    prompts --> Writer: which texts take part in the next pass --> Passes: logits of their next
                tokens --> Choice: one token each --> back to the Writer

The next token depends on the last `sequence_length` tokens and on nothing before them. While a text
fits into this window, keys and values of earlier positions are kept, and a token costs one
position. When the text is longer the window slides, all positions in it change, and each token
costs a pass over the whole window. Cache or no cache, the logits are those of
`model.predict(window)`, to rounding.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy

from ..arguments import is_integer, is_number, require
from ..array.backend import host_array, to_host
from ..array.random import key_of, uniform
from ..errors import ConfigurationError, ShapeError
from .autograd import no_grad
from .context import ForwardContext, forward_context
from .texts import TextPass, Texts


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen from its logits.

    temperature  logits are divided by it before one is drawn; 0: always the likeliest
    top_k        draw among the k likeliest; None: among all
    top_p        draw among the likeliest whose probabilities, after top_k, first reach p (arXiv
                 1904.09751); None: among all
    stop         token numbers that end a text; they are not part of it
    Errors: ConfigurationError.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    stop: tuple[int, ...] = ()

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ConfigurationError(
                f"generate at temperature {self.temperature}; wanted one that is not below 0"
            )
        k, p = self.top_k, self.top_p
        require(k is None or is_integer(k, at_least=1), "top_k", k, "an integer, at least 1")
        is_share = p is None or is_number(p, above=0) and p <= 1
        require(is_share, "top_p", p, "a number above 0, at most 1")
        is_known = all(is_integer(token, at_least=0) for token in self.stop)
        require(is_known, "stop", self.stop, "token numbers")

    def token(self, logits, chance: float) -> int:
        """Return the token at height `chance`, in [0, 1), of the stacked probabilities.

        logits [vocabulary], on the host
        """
        if self.temperature == 0:
            return int(logits.argmax())
        weights = numpy.exp((logits.astype(numpy.float64) - logits.max()) / self.temperature)
        if self.top_k is not None or self.top_p is not None:
            weights = self._likeliest(weights)
        heights = weights.cumsum()
        at = numpy.searchsorted(heights, chance * heights[-1], side="right")
        return min(int(at), logits.size - 1)

    def _likeliest(self, weights):
        """Return the weights with 0 for tokens that are not drawn."""
        order = numpy.argsort(-weights, kind="stable")[: self.top_k]
        if self.top_p is not None:
            reached = weights[order].cumsum()
            order = order[: 1 + int((reached < self.top_p * reached[-1]).sum())]
        kept = numpy.zeros_like(weights)
        kept[order] = weights[order]
        return kept


class Passes:
    """Passes of an unsharded GPT over the texts that it continues.

    window      positions that the model sees
    remembers   keys and values of earlier positions are kept between passes
    """

    remembers = True

    def __init__(self, model):
        self._model = model
        self.window = model.settings.sequence_length

    def next_tokens(self, ids, texts: TextPass, choose: Callable) -> numpy.ndarray:
        """Return the next token of each text, [rows] int64.

        ids     [rows, S] integers, the new positions
        choose  function (logits [rows, vocabulary]) -> tokens [rows] int64
        """
        return choose(self.logits(ids, texts))

    def logits(self, ids, texts: TextPass):
        """Return the logits [rows, vocabulary] of the tokens that follow, on the host."""
        with no_grad(), forward_context(ForwardContext(texts=texts)):
            return to_host(self._model(ids).array)[:, -1]

    def anybody(self, is_busy: bool) -> bool:
        """Return whether any replica of the model has something left to do."""
        return is_busy


class Writer:
    """Continues some texts with one model, pass by pass.

    prompts     lists of token numbers
    num_tokens  to add to each, unless it stops before
    seeds       one for each text: token i of it, the prompt counted, is drawn with random number i
                of that seed, so that a text which is continued draws no number twice
    on_token    function (number of the prompt, token), called as soon as one is part of a text
    """

    def __init__(
        self,
        passes,
        prompts: list[list[int]],
        num_tokens: int,
        choice: Choice,
        seeds: Iterable[int],
        on_token: Callable[[int, int], None] | None = None,
    ):
        self._passes = passes
        self._prompts = prompts
        self._tokens = [list(prompt) for prompt in prompts]
        self._num_tokens = num_tokens
        self._choice = choice
        self._on_token = on_token or (lambda row, token: None)
        self._chances = [
            uniform(key_of(seed, "generate"), len(prompt), len(prompt) + num_tokens)
            for seed, prompt in zip(seeds, prompts)
        ]
        self._texts = Texts(len(prompts), passes.window)
        self._live = list(range(len(prompts))) if num_tokens else []

    def write(self) -> list[numpy.ndarray]:
        """Return what follows each prompt, int64. All replicas make the same number of passes."""
        while self._passes.anybody(bool(self._live)):
            if self._live:
                self._turn()
            else:
                ids = numpy.zeros((1, 1), numpy.int64)
                texts = Texts(1, 1).prompt([0], 1)
                self._passes.next_tokens(ids, texts, lambda logits: numpy.zeros(1, numpy.int64))
        return [
            numpy.array(tokens[len(prompt) :], numpy.int64)
            for tokens, prompt in zip(self._tokens, self._prompts)
        ]

    def _turn(self) -> None:
        """Make one pass: over prompts of one length if there are some, else over all texts."""
        window = self._passes.window
        fresh = [row for row in self._live if not self._texts.lengths[row]]
        if fresh:
            length = min(len(self._tokens[fresh[0]]), window)
            rows = [row for row in fresh if min(len(self._tokens[row]), window) == length]
            texts = self._texts.prompt(rows, length)
        else:
            length = 1
            rows = self._live
            texts = self._texts.next(rows)
        ids = numpy.array([self._tokens[row][-length:] for row in rows], numpy.int64)
        chosen = self._passes.next_tokens(ids, texts, lambda logits: self._choose(rows, logits))
        texts.finish()
        for row, token in zip(rows, chosen.tolist()):
            self._add(row, token)

    def _choose(self, rows, logits) -> numpy.ndarray:
        chances = (self._chances[row][self._num_new(row)] for row in rows)
        tokens = [self._choice.token(each, chance) for each, chance in zip(logits, chances)]
        return numpy.array(tokens, numpy.int64)

    def _num_new(self, row: int) -> int:
        return len(self._tokens[row]) - len(self._prompts[row])

    def _add(self, row: int, token: int) -> None:
        """Add a token to a text, which may end with it; forget it where the window slides."""
        if token in self._choice.stop:
            self._live = [other for other in self._live if other != row]
            return
        self._tokens[row].append(token)
        self._on_token(row, token)
        if self._num_new(row) == self._num_tokens:
            self._live = [other for other in self._live if other != row]
        if not self._passes.remembers or len(self._tokens[row]) > self._passes.window:
            self._texts.lengths[row] = 0


def generate(model, prompt, num_tokens: int, choice: Choice, seed: int = 0) -> numpy.ndarray:
    """Return the tokens that follow the prompt.

    model    a GPT
    prompt   1-D integers, at least one
    seed     token i of the text, the prompt counted, is drawn with random number i of this seed
    returns  int64 without the prompt, num_tokens of them unless the text stops before
    Errors: ShapeError on another prompt, ConfigurationError on a negative number.
    """
    prompt = checked_prompt(prompt, model.settings.vocabulary_size)
    check_number(num_tokens)
    return Writer(Passes(model), [prompt], num_tokens, choice, [seed]).write()[0]


def check_number(num_tokens) -> None:
    """Raise ConfigurationError unless this is a number of tokens to generate."""
    if not is_integer(num_tokens) or num_tokens < 0:
        raise ConfigurationError(
            f"generate {num_tokens} tokens; wanted an integer that is not below 0"
        )


def checked_prompt(prompt, vocabulary_size: int) -> list[int]:
    """Return the token numbers of a prompt. Errors: ShapeError if it is no list of tokens."""
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
