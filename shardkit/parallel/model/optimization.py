"""The input and the results of ShardedOptimizer.optimize().

    epoch e    all samples in the order of (shuffle_seed, e)
               |-- batch_size --|-- batch_size --|-- batch_size --| rest |
    batch      | data rank 0 | data rank 1 | ... |     the rest waits for another order

The arrays are global and the same on all ranks; who computes on which sample follows from the mesh,
but the batches do not.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy

from ...arguments import is_integer, require
from ...array.backend import host_array
from ...array.random import key_of, permutation
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import collectively
from ...errors import ConfigurationError, ShapeError
from ...tree import is_tree, leaves, named_leaves, num_samples, rebuild, structure
from ..fingerprint import describe
from ..step.engine import Engine
from .sharded_model import ShardedModel

SETS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class OptimizationInputData:
    """The samples to learn from and to judge by, and how to go through them.

    Parameters
    ----------
    x_train, y_train
        [samples, ...] each, or trees of such arrays, global, the same on all ranks.
    x_validation, y_validation
        Judge each epoch; None: the training loss does.
    x_test, y_test
        Looked at once, at the end; or None.
    initial_solution
        An nn.Module, a sharded model, or a canonical vector for the model that is there already.
    epochs
        At most.
    batch_size
        Samples of a global batch; data ranks x micro_batches must divide it. Of fewer training
        samples all are one batch.
    shuffle_seed
        The order of an epoch depends on it and the epoch alone; None: as they come.

    Notes
    -----
    Every epoch has the same whole batches on any mesh. Samples that do not fill a last one are left
    out of it (under a shuffle, others in each epoch), and optimize() warns how many. It raises
    errors in the input on all ranks.
    """

    x_train: Any
    y_train: Any
    x_validation: Any = None
    y_validation: Any = None
    x_test: Any = None
    y_test: Any = None
    initial_solution: Any = None
    epochs: int = 10
    batch_size: int = 32
    shuffle_seed: int | None = 0

    def samples(self, name: str) -> Any:
        """Return (x, y) of "train", "validation" or "test" as NumPy arrays, or trees of them; None
        if not given.

        Parameters
        ----------
        name
            "train", "validation" or "test".
        """
        x, y = getattr(self, f"x_{name}"), getattr(self, f"y_{name}")
        if x is None and y is None:
            return None
        return _on_host(f"x_{name}", x), _on_host(f"y_{name}", y)

    def check(self) -> None:
        """Raise ShapeError if x and y of a set do not match, ConfigurationError on bad sizes."""
        for name in SETS:
            if name == "train" or self.samples(name) is not None:
                _check_set(name, getattr(self, f"x_{name}"), getattr(self, f"y_{name}"))
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            require(is_integer(value, at_least=1), name, value, "an integer >= 1")
        seed = self.shuffle_seed
        is_seed = seed is None or is_integer(seed, at_least=0)
        require(is_seed, "shuffle_seed", seed, "an integer >= 0, or None")

    def check_batches(self, num_parts: int) -> None:
        """Raise ConfigurationError unless batches can be cut into `num_parts` equal parts.

        Parameters
        ----------
        num_parts
            Data ranks x micro-batches.
        """
        if self.batch_size % num_parts:
            raise ConfigurationError(
                f"batch_size = {self.batch_size} is no multiple of {num_parts}, data ranks x "
                f"micro_batches; wanted {-(-self.batch_size // num_parts) * num_parts}, for example"
            )
        if self._size % num_parts:
            raise ConfigurationError(
                f"{self._size} training samples, fewer than batch_size = {self.batch_size}, make "
                f"one batch, which is no multiple of {num_parts}, data ranks x micro_batches; "
                f"wanted a multiple of {num_parts}, or {self.batch_size} samples or more"
            )

    @property
    def _size(self) -> int:
        """Samples of each batch."""
        return min(self.batch_size, num_samples(self.x_train))

    def left_out(self) -> str | None:
        """Return what is to be said of samples that an epoch leaves out; None if there are none."""
        count = num_samples(self.x_train)
        if not count % self._size:
            return None
        others = "the same in every epoch: shuffle_seed is None"
        if self.shuffle_seed is not None:
            others = "others in every epoch"
        return (
            f"optimize() trains on whole batches: {count} samples make {count // self._size} of "
            f"batch_size = {self._size}, and {count % self._size} are left out, {others}; to train "
            "on all, give a batch_size that divides their number"
        )

    def check_samples(self, engine: Engine) -> None:
        """Raise ShapeError naming the set unless the engine's model and loss take it.

        Parameters
        ----------
        engine
            Of the model that is trained.
        """
        for name in SETS:
            samples = self.samples(name)
            try:
                if samples is not None:
                    engine.check_samples(*samples)
            except ShapeError as error:
                raise ShapeError(f"x_{name}, y_{name}: {error}") from None

    def batches(self, epoch: int) -> list:
        """Return the sample numbers of each global batch of an epoch, on any mesh.

        No communication.

        Parameters
        ----------
        epoch
            Its number, from 0.
        """
        count, size = num_samples(self.x_train), self._size
        order = numpy.arange(count)
        if self.shuffle_seed is not None:
            order = permutation(key_of(self.shuffle_seed, "epoch", epoch), count)
        return [order[start : start + size] for start in range(0, count - size + 1, size)]

    def outline(self) -> dict[str, str]:
        """Return what must be the same on all ranks, as text: shapes, dtypes, values."""
        outlines = {field.name: _outline(getattr(self, field.name)) for field in fields(self)}
        sets = {name: self.samples(name) or (None, None) for name in SETS}
        pairs = {f"{what}_{name}": tree for name in SETS for what, tree in zip("xy", sets[name])}
        content = {f"the content of {name}": _content(tree) for name, tree in pairs.items()}
        return outlines | content


def check_together(given: OptimizationInputData, backend: CommunicationBackend):
    """Check the input on all ranks. Collective over the backend.

    Errors, on all ranks: TypeError or ShapeError if they were given different input, and those of
    check().
    """
    with collectively(backend):
        if not isinstance(given, OptimizationInputData):
            raise TypeError(
                f"optimize() takes an OptimizationInputData, got {type(given).__name__}"
            )
        given.check()
        outline = given.outline()
    outlines = backend.all_gather_object(outline)
    for rank, other in enumerate(outlines):
        for name, here in outlines[0].items():
            if other[name] != here:
                raise ShapeError(
                    f"{name} is {here} on rank 0, but {other[name]} on rank {rank}; pass the same, "
                    "whole, on all ranks: each takes its part of every batch"
                )


def _check_set(name, x, y):
    shapes = {
        where: None if array is None else numpy.shape(array)
        for what, tree in ((f"x_{name}", x), (f"y_{name}", y))
        for where, array in (named_leaves(tree, what) if _is_several(tree) else [(what, tree)])
    }
    lengths = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(lengths) > 1 or 0 in lengths:
        (first, shape), *others = shapes.items()
        found = "".join(f" and {where} {of_other}" for where, of_other in others)
        raise ShapeError(
            f"{first} has shape {shape}{found}; wanted the same number of samples, one or more, "
            "along dim 0"
        )


def _outline(value) -> str:
    if value is None or isinstance(value, (int, numpy.integer)):
        return str(value)
    if _is_several(value):
        return f"{structure(value)} of {', '.join(map(_outline, leaves(value)))}"
    array = numpy.asarray(value)
    return type(value).__name__ if array.dtype == object else f"{array.dtype} {array.shape}"


def _content(tree) -> str:
    """Return a text that differs with the values of an array on the host, or of a tree of them."""
    arrays = leaves(tree) if _is_several(tree) else [] if tree is None else [tree]
    return " ".join(map(describe, arrays))


def _is_several(value) -> bool:
    """Return True for a tree with an array in it."""
    return value is not None and is_tree(value) and structure(value).num_leaves > 0


def _on_host(what, value):
    """Return an array, or a tree of arrays, on the host."""
    if not _is_several(value):
        return host_array(what, value)
    return rebuild(structure(value), [host_array(*pair) for pair in named_leaves(value, what)])


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationResult:
    """The mean loss over all samples of a set; NaN if nothing in it counts.

    Parameters
    ----------
    loss
        The mean, in the unit of the loss.
    samples
        How many the set has.
    metrics
        {name: figure}, those of the model: nn.Module.metrics.
    """

    loss: float
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class OptimizationResult:
    """The best parameters that were found, and how; the same on all ranks but for the shards.

    Parameters
    ----------
    best_solution
        The sharded model, with the parameters of the epoch of best fitness.
    best_fitness_score
        Of that epoch; lower is better.
    iterations
        Optimization steps taken.
    fitness_history
        One per epoch: the validation loss after it, or without validation set the mean loss of its
        samples, each before the step that learned from it.
    training_result, validation_result, test_result
        Of best_solution on the whole sets; None for a set that was not given.
    selected_features
        Numbers of the input features that best_solution looks at; None if it has no features.
    """

    best_solution: ShardedModel
    best_fitness_score: float
    iterations: int
    fitness_history: tuple[float, ...]
    training_result: EvaluationResult
    validation_result: EvaluationResult | None
    test_result: EvaluationResult | None
    selected_features: tuple[int, ...] | None
