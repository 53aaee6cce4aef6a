"""Text from a sharded language model: its ranks continue prompts together.

    data rank r         continues every n-th prompt
    tensor ranks        keep keys and values of their own heads
    pipeline ranks      pass on the new positions; the last stage chooses the tokens, and tells the
                        others

A pass gathers the parameters as any forward pass does, so all replicas make the same number of
passes. No rank ever holds the whole model.
"""

from collections.abc import Callable, Sequence

import numpy

from ...arguments import is_integer, require
from ...array.backend import to_host, xp_of
from ...array.halves import widened
from ...comm.same import alike
from ...errors import ConfigurationError
from ...nn.generation import Choice, Writer, check_tokens, checked_prompts, in_a_row, listed
from ...nn.models.gpt import GPT
from ..fingerprint import describe
from ..step.engine import Engine
from ..tensor.vocabulary import whole_outputs


class ShardedPasses:
    """Passes of a sharded GPT over the texts that this replica continues."""

    remembers = True

    def __init__(self, engine: Engine):
        self.window = engine.model.settings.sequence_length
        self._evaluation = engine.evaluation
        self._data = engine.mesh.group("data")
        self._pipeline = engine.mesh.group("pipeline")
        self._last_rank = engine.plan.stages.last_rank

    def next_tokens(self, new, texts, choose) -> numpy.ndarray:
        """Return the next token of each text, the same on all ranks of the replica.

        Collective over the mesh. See generation.Passes.
        """
        with whole_outputs():
            output = self._output(new, texts)
        if output is None:
            tokens = numpy.empty(len(new), numpy.int64)
        else:
            tokens = choose(widened(to_host(output)))
        self._pipeline.broadcast(tokens, self._last_rank)
        return tokens

    def _output(self, new, texts):
        """Return the logits [texts, vocabulary] of the next tokens on the last stage, else None."""
        output = self._evaluation.forward(in_a_row(new), texts)
        return None if output is None else output[0]

    def anybody(self, is_busy: bool) -> bool:
        """Return whether any replica has something left to do. Collective over the data axis."""
        everyones = numpy.zeros(self._data.world_size, numpy.int64)
        self._data.all_gather(numpy.array([is_busy], numpy.int64), everyones)
        return bool(everyones.any())


class WholePasses(ShardedPasses):
    """Passes under sequence parallelism, where a rank cannot hold a single position.

    Each goes over whole texts, with as many positions behind them as make them equally long and
    the tensor ranks need to divide them, and keeps nothing.
    """

    remembers = False

    def __init__(self, engine: Engine):
        super().__init__(engine)
        self._num_slices = engine.mesh.group("tensor").world_size

    def _output(self, new, texts):
        width = -(-len(new[0]) // self._num_slices) * self._num_slices  # the longest is first
        padded = numpy.zeros((len(new), width), numpy.int64)
        for row, each in zip(padded, new):
            row[: len(each)] = each
        output = self._evaluation.forward(padded)
        if output is None:
            return None
        lasts = [len(each) - 1 for each in new]
        xp = xp_of(output)
        return output[xp.arange(len(new)), xp.asarray(lasts)]


def generate(
    engine: Engine,
    prompts: Sequence,
    num_tokens: int,
    choice: dict,
    seeds: Sequence[int] | None,
    on_token: Callable[[int, int], None] | None,
    together: int,
) -> list[numpy.ndarray]:
    """Return what follows each prompt; see ShardedModel.generate. Collective over the mesh.

    choice   {name: value} of a Choice
    """
    mesh = engine.mesh
    num_slices = mesh.size("tensor") if engine.config.sequence_parallel else 1
    with alike(mesh.world, call="generate") as facts:
        if not isinstance(engine.model, GPT):
            raise ConfigurationError(
                f"generate by a {type(engine.model).__name__}; wanted a language model "
                "(sk.models.GPT)"
            )
        settings = engine.model.settings
        texts = checked_prompts(prompts, num_tokens, settings.vocabulary_size)
        chosen = Choice(**choice)
        several = f"{len(texts)} integers, one for each prompt"
        seeds = listed("seeds", range(len(texts)) if seeds is None else seeds, several)
        are_seeds = len(seeds) == len(texts) and all(is_integer(seed) for seed in seeds)
        require(are_seeds, "seeds", seeds, several)
        require(on_token is None or callable(on_token), "on_token", on_token, "a function, or None")
        is_count = is_integer(together, at_least=1)
        require(is_count, "together", together, "a number of texts, at least 1")
        _check_slices(texts, num_tokens, settings.sequence_length, num_slices)
        engine.weights.check()
        own = {
            "prompts": texts,
            "num_tokens": num_tokens,
            "choice": chosen,
            "seeds": seeds,
            "together": together,
        }
        facts |= {name: describe(value) for name, value in own.items()}
    passes = (WholePasses if num_slices > 1 else ShardedPasses)(engine)
    data = mesh.group("data")
    mine = slice(data.rank, None, data.world_size)
    numbers = range(len(texts))[mine]
    told = on_token and (lambda row, token: on_token(numbers[row], token))
    given = texts[mine], num_tokens, chosen, seeds[mine], told, together
    written = Writer(passes, *given).write()
    results = [numpy.empty(0, numpy.int64) for _ in texts]
    for rank, part in enumerate(data.all_gather_object(written)):
        results[rank :: data.world_size] = part
    check_tokens(results)
    return results


def _check_slices(texts: list, num_tokens: int, window: int, num_slices: int) -> None:
    """Raise ConfigurationError if tensor ranks would fill up a text beyond what the model sees."""
    longest = min(max(map(len, texts), default=0) + num_tokens - 1, window)
    if num_tokens and -(-longest // num_slices) * num_slices > window:
        each, rest = divmod(longest, num_slices)
        raise ConfigurationError(
            f"generate with sequence_parallel: a text of {longest} tokens = {num_slices} tensor "
            f"ranks x {each} + {rest}, filled up so that they divide it, is longer than "
            f"sequence_length = {window} of the model; wanted sequence_parallel = False, another "
            "number of tensor ranks, or fewer tokens"
        )
