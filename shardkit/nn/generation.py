"""Generate text from a language model, one token at a time.

    prompts --> Writer: which texts take part in the next pass --> Passes: logits of their next
                tokens --> Choice: one token each --> back to the Writer

Some texts are continued together. When one ends, the next prompt takes its place: prompts are read
in the passes that continue the others, so lengths need not agree, and nothing is padded.

The next token depends on the last `sequence_length` tokens and on nothing before them. While a text
fits into this window, keys and values of earlier positions are kept, and a token costs one
position. When the text is longer the window slides, all positions in it change, and each token
costs a pass over the whole window. Cache or no cache, the logits are those of
`model.predict(window)`, to rounding; on the CPU, with compiled loops, they do not depend on the
other texts by a bit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy

from ..arguments import is_integer, is_number, require
from ..array.backend import host_array, to_host
from ..array.random import key_of, uniform
from ..errors import NonFiniteError, ShapeError
from .autograd import no_grad
from .context import ForwardContext, forward_context
from .texts import TextPass, Texts

POSITIONS = 1024  # of prompts that are read in one pass, if they are several
FIRST_LOOK = 128  # among so many tokens top_p looks first
TOGETHER = 32  # texts
NO_TOKEN = -1  # is chosen where logits are NaN or infinite, and ends a text


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen from its logits.

    temperature  logits are divided by it before one is drawn; 0: always the likeliest
    top_k        draw among the k likeliest; None: among all
    top_p        draw among the likeliest whose probabilities, after top_k, first reach p (arXiv
                 1904.09751); None: among all
    repetition_penalty  before all else, logits of tokens that the text has, its prompt counted, are
                 divided by it where they are above 0, and multiplied elsewhere (arXiv 1909.05858)
    stop         token numbers that end a text; they are not part of it
    Logits are compared in float32, whatever the model computes in. Errors: ConfigurationError.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    stop: tuple[int, ...] = ()

    def __post_init__(self):
        warm = self.temperature
        require(is_number(warm, at_least=0), "temperature", warm, "a number that is not below 0")
        k, p = self.top_k, self.top_p
        penalty = self.repetition_penalty
        require(k is None or is_integer(k, at_least=1), "top_k", k, "an integer, at least 1")
        is_share = p is None or is_number(p, above=0) and p <= 1
        require(is_share, "top_p", p, "a number above 0, at most 1")
        is_penalty = is_number(penalty, above=0)
        require(is_penalty, "repetition_penalty", penalty, "a number above 0; 1: none")
        stop = tuple(listed("stop", self.stop, "token numbers"))
        is_known = all(is_integer(token, at_least=0) for token in stop)
        require(is_known, "stop", self.stop, "token numbers")
        object.__setattr__(self, "stop", stop)

    def token(self, logits, chance: float, text: Sequence[int] = ()) -> int:
        """Return the token at height `chance`, in [0, 1), of the stacked probabilities; NO_TOKEN if
        they are none.

        logits  [vocabulary], on the host
        text    the tokens before it
        """
        logits = self._penalized(logits.astype(numpy.float32, copy=False), text)
        likeliest = int(logits.argmax())  # a NaN, if there is one
        if not isfinite(logits[likeliest]):
            return NO_TOKEN
        if self.temperature == 0:
            return likeliest
        below = logits.astype(numpy.float64) - logits[likeliest]
        weights = numpy.exp(below / self.temperature)
        tokens = self._likeliest(logits, weights)
        heights = weights[tokens].cumsum()
        at = int(numpy.searchsorted(heights, chance * heights[-1], side="right"))
        drawn = numpy.arange(logits.size)[tokens]
        return int(drawn[min(at, drawn.size - 1)])

    def _penalized(self, logits, text):
        if self.repetition_penalty == 1 or not text:
            return logits
        text = numpy.array(text)
        changed = logits.copy()
        there = logits[text]
        by = numpy.float32(self.repetition_penalty)
        changed[text] = numpy.where(there > 0, there / by, there * by)
        return changed

    def _likeliest(self, logits, weights):
        """Return the numbers of the tokens that are drawn from, in order; or a slice of all."""
        if self.top_k is None and self.top_p is None:
            return slice(None)
        order = _largest(logits, self.top_k or FIRST_LOOK)
        if self.top_p is None:
            return numpy.sort(order)
        wanted = self.top_p * (weights[order] if self.top_k else weights).sum()
        most = min(self.top_k or logits.size, logits.size)
        reached = weights[order].cumsum()
        while reached[-1] < wanted and order.size < most:
            order = _largest(logits, 8 * order.size)
            reached = weights[order].cumsum()
        num_below = int((reached < wanted).sum())
        return numpy.sort(order[: 1 + num_below])


def _largest(numbers, count: int):
    """Return where the `count` largest are, these first, of equal ones the first."""
    places = numpy.arange(numbers.size)
    if count < numbers.size:
        least = numpy.partition(numbers, -count)[-count]
        places = numpy.flatnonzero(numbers >= least)
    return places[numpy.argsort(-numbers[places], kind="stable")[:count]]


class Passes:
    """Passes of an unsharded GPT over the texts that it continues.

    window      positions that the model sees
    remembers   keys and values of earlier positions are kept between passes
    """

    remembers = True

    def __init__(self, model):
        self._model = model
        self.window = model.settings.sequence_length

    def next_tokens(self, new, texts: TextPass, choose: Callable) -> numpy.ndarray:
        """Return the next token of each text, [texts] int64.

        new     of each text its new tokens
        choose  function (logits [texts, vocabulary]) -> tokens [texts] int64
        """
        return choose(self.logits(new, texts))

    def logits(self, new, texts: TextPass):
        """Return the logits [texts, vocabulary] of the tokens that follow, on the host."""
        with no_grad(), forward_context(ForwardContext(texts=texts)):
            return to_host(self._model(in_a_row(new)).array)[0]

    def anybody(self, is_busy: bool) -> bool:
        """Return whether any replica of the model has something left to do."""
        return is_busy


def in_a_row(new: list[list[int]]):
    """Return these tokens as the input of a pass, [1, P] int64."""
    return numpy.array([[token for each in new for token in each]], numpy.int64)


class Writer:
    """Continues some texts with one model, pass by pass.

    prompts     lists of token numbers
    num_tokens  to add to each, unless it stops before
    seeds       one for each text: token i of it, the prompt counted, is drawn with random number i
                of that seed, so that a text which is continued draws no number twice
    on_token    function (number of the prompt, token), called as soon as one is part of a text
    together    texts at a time
    """

    def __init__(
        self,
        passes,
        prompts: list[list[int]],
        num_tokens: int,
        choice: Choice,
        seeds: Iterable[int],
        on_token: Callable[[int, int], None] | None = None,
        together: int = TOGETHER,
    ):
        self._passes = passes
        self._prompts = prompts
        self._tokens = [list(prompt) for prompt in prompts]
        self._num_tokens = num_tokens
        self._choice = choice
        self._on_token = on_token or (lambda number, token: None)
        self._chances = [
            uniform(key_of(seed, "generate"), len(prompt), len(prompt) + num_tokens)
            for seed, prompt in zip(seeds, prompts)
        ]
        longest = num_tokens + max(map(len, prompts), default=0)
        self._texts = Texts(min(together, len(prompts)), min(passes.window, longest))
        self._waiting = list(range(len(prompts)))[::-1] if num_tokens else []
        self._rows: dict[int, int] = {}  # of the texts that are continued, among those kept
        self._free = list(range(len(self._texts.lengths)))

    def write(self) -> list[numpy.ndarray]:
        """Return what follows each prompt, int64. All replicas make the same number of passes."""
        while self._passes.anybody(bool(self._waiting or self._rows)):
            while self._waiting and self._free:
                self._rows[self._waiting.pop()] = self._free.pop()
            if self._rows:
                self._turn()
            else:
                texts = TextPass(Texts(1, 1), [0], [1])
                self._passes.next_tokens([[0]], texts, lambda logits: numpy.zeros(1, numpy.int64))
        return [
            numpy.array(tokens[len(prompt) :], numpy.int64)
            for tokens, prompt in zip(self._tokens, self._prompts)
        ]

    def _turn(self) -> None:
        """Make one pass."""
        new = self._new_tokens()
        numbers = list(new)
        rows = [self._rows[number] for number in numbers]
        texts = TextPass(self._texts, rows, [len(each) for each in new.values()])
        told = list(new.values()), texts, lambda logits: self._choose(numbers, logits)
        chosen = self._passes.next_tokens(*told)
        texts.finish()
        for number, token in zip(numbers, chosen.tolist()):
            self._add(number, token)

    def _new_tokens(self) -> dict[int, list[int]]:
        """Return {number: new tokens} of the texts of the next pass, the most first.

        Texts that hold nothing are read first, as many as fit.
        """
        counts = {number: self._num_to_read(number) for number in self._rows}
        taken: dict[int, list[int]] = {}
        room = POSITIONS
        for number in sorted(counts, key=lambda number: -counts[number]):
            if not taken or counts[number] <= room:
                taken[number] = self._tokens[number][-counts[number] :]
                room -= counts[number]
        return taken

    def _num_to_read(self, number: int) -> int:
        if self._texts.lengths[self._rows[number]]:
            return 1
        return min(len(self._tokens[number]), self._passes.window)

    def _choose(self, numbers, logits) -> numpy.ndarray:
        chances = (self._chances[number][self._num_new(number)] for number in numbers)
        texts = (self._tokens[number] for number in numbers)
        tokens = list(map(self._choice.token, logits, chances, texts))
        return numpy.array(tokens, numpy.int64)

    def _num_new(self, number: int) -> int:
        return len(self._tokens[number]) - len(self._prompts[number])

    def _add(self, number: int, token: int) -> None:
        """Add a token to a text, which may end with it; forget it where the window slides."""
        row = self._rows[number]
        ends = token in self._choice.stop
        if token == NO_TOKEN:
            ends = True
            self._tokens[number].append(token)
            self._waiting.clear()  # all of them are refused
        elif not ends:
            self._tokens[number].append(token)
            self._on_token(number, token)
            ends = self._num_new(number) == self._num_tokens
        if ends:
            self._free.append(self._rows.pop(number))
        slides = len(self._tokens[number]) > self._passes.window
        if ends or slides or not self._passes.remembers:
            self._texts.forget(row)


def generate(model, prompt, num_tokens: int, choice: Choice, seed: int = 0) -> numpy.ndarray:
    """Return the tokens that follow the prompt.

    model    a GPT
    prompt   1-D integers, at least one
    seed     token i of the text, the prompt counted, is drawn with random number i of this seed
    returns  int64 without the prompt, num_tokens of them unless the text stops before
    Errors: ShapeError on another prompt, ConfigurationError on another number, NonFiniteError.
    """
    prompts = checked_prompts([prompt], num_tokens, model.settings.vocabulary_size)
    require(is_integer(seed), "seed", seed, "an integer")
    (text,) = texts = Writer(Passes(model), prompts, num_tokens, choice, [seed]).write()
    check_tokens(texts)
    return text


def check_tokens(texts: Sequence) -> None:
    """Raise NonFiniteError if one of these texts came to logits that are no numbers."""
    for number, text in enumerate(texts):
        if NO_TOKEN in text[-1:]:
            raise NonFiniteError(
                f"the logits behind {len(text) - 1} new tokens of prompt {number} are NaN or "
                "infinite; wanted numbers: try an earlier checkpoint, or shardkit inspect --verify"
            )


def listed(name: str, value, wanted: str) -> list:
    """Return the items of a value. Errors: ConfigurationError if it has none, as a number."""
    require(hasattr(value, "__iter__") and getattr(value, "ndim", 1) > 0, name, value, wanted)
    return list(value)


def checked_prompts(prompts, num_tokens, vocabulary_size: int) -> list[list[int]]:
    """Return the token numbers of prompts. Errors: ShapeError, ConfigurationError."""
    given = listed("prompts", prompts, "a list of prompts")
    is_number_of = is_integer(num_tokens, at_least=0)
    require(is_number_of, "num_tokens", num_tokens, "an integer that is not below 0")
    return [checked_prompt(prompt, vocabulary_size) for prompt in given]


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
