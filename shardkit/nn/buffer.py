"""Buffers: values of a module that are kept with the model, but not trained.

    class Standardized(Module):
        def __init__(self, width):
            self.running_mean = Buffer(width, Fill(0.0))
            self.steps_tracked = Buffer((), Fill(0), "int64")

        def forward(self, x):                        # x [batch, width]
            if not current_context().training:
                return x - ops.cast(self.running_mean, x.dtype)      # x may be of half floats
            mean = ops.mean(x, 0)
            self.steps_tracked.advance()
            self.running_mean.observe(mean, momentum=0.1)
            return x - mean

A forward pass never writes to a buffer of a sharded model. It observes:

    micro-batch 0   observe(v0) --\\
    micro-batch 1   observe(v1) ---+--> mean of the step --the step is taken--> old + momentum *
    ...             ...           /                                             (mean - old)
    a second forward of recomputation, a skipped step: nothing

so that the new value depends on the global batch and not on the mesh. Without an engine, which is
what a training loop by hand is, each observation is applied at once, as in PyTorch.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy

from ..annotations import Array, DTypeLike, PerDim, Shape
from ..arguments import is_number, require
from ..array.backend import to_host, xp_of
from ..array.dtypes import check_holds, named_dtype
from ..errors import ConfigurationError, ShapeError, ShardingError
from .autograd import Tensor, array_of
from .building import count_one
from .context import current_context, is_sharded_pass
from .init import Copied, Fill, Initializer
from .parameter import called, filled, origin_of, shape_and_init
from .tape import MemoryOfModel

BUFFER_DTYPES = ("float32", "float64", "float16", "int64", "int32", "bool")  # of a checkpoint


@dataclass(frozen=True, slots=True)
class Observation:
    """What one forward pass says about a buffer.

    Parameters
    ----------
    value
        float64, of the buffer's shape, memory of its own; None: advance() was called.
    momentum
        The weight of the new mean; None: 1 / count, so that all steps weigh alike.
    count
        The buffer that counts steps, if there is no momentum.
    """

    value: Any = None
    momentum: float | None = None
    count: "Buffer | None" = None


class HeldMemory(MemoryOfModel):
    """Memory of a buffer of a sharded model, to which no forward pass writes."""

    def check_change(self) -> None:
        if is_sharded_pass():
            raise ShardingError(
                f"{self._name} was written to in a forward pass of a sharded model, where each "
                "rank would have other values; use observe(value, momentum) or advance(), which it "
                "follows after the step, or write between two steps, on all ranks"
            )


class Buffer(Tensor):
    """A tensor that is kept, saved and copied with a model, but takes no gradient.

    Parameters
    ----------
    shape
        An integer or a tuple; or its initial values, an array.
    init
        Its values, as a function of seed, name and element index; None: those given.
    dtype
        One of BUFFER_DTYPES; None: bool or int64 of values of such kinds, else float32.

    Attributes
    ----------
    name, seed
        Set by Module.finish; without them there are no initial values.

    Raises
    ------
    ConfigurationError
        On another dtype, or values that integers or booleans of it cannot hold.

    Notes
    -----
    On a mesh, the ranks that compute its block hold it whole; `array` is a ShardingError on the
    others. Every rank of a tensor group must observe the same.
    """

    __slots__ = (
        "name",
        "seed",
        "init",
        "_shape",
        "_dtype",
        "_array",
        "_is_released",
        "_is_sharded",
    )

    def __init__(
        self, shape: PerDim | Array, init: Initializer | None = None, dtype: DTypeLike | None = None
    ) -> None:
        count_one()
        self._begin(requires_grad=False)
        self._shape, init = shape_and_init("Buffer", shape, init)
        self._dtype = named_dtype(_usual_dtype(init) if dtype is None else dtype)
        if str(self._dtype) not in BUFFER_DTYPES:
            raise ConfigurationError(
                f"a buffer of dtype {self._dtype}; wanted one of {', '.join(BUFFER_DTYPES)}"
            )
        if isinstance(init, (Copied, Fill)):
            given = init.values if isinstance(init, Copied) else init.value
            check_holds("a buffer", numpy.asarray(to_host(given)), self._dtype)
        self.init = init
        self.name: str | None = None
        self.seed: int | None = None
        self._array: Array | None = None
        self._is_released = self._is_sharded = False

    # ---- what it is, without making the array ----------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return self._dtype

    @property
    def is_fresh(self) -> bool:
        """True while it has its initial values and no array yet."""
        return self._array is None and not self._is_released

    @property
    def is_released(self) -> bool:
        """True on ranks that do not compute with it."""
        return self._is_released

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def is_sharded(self) -> bool:
        """True once it belongs to a sharded model, or is a copy of one that does."""
        return self._is_sharded

    # ---- values ----------------------------------------------------------------------------------

    @property
    def array(self) -> Array:
        """[*shape], made on the first access; a ShardingError where other ranks hold it, or without
        a name and seed.
        """
        if self._array is None:
            self._array = self.initial_values()
        return self._array

    @array.setter
    def array(self, values):
        self._array = filled(self, values)
        self._memory.version += 1

    def initial_values(self) -> Array:
        """Return a new array of the initial values.

        Raises
        ------
        ShardingError
            As `array`.
        """
        if self._is_released:
            raise ShardingError(
                f"{called(self)} lives on the pipeline ranks that compute with it; a checkpoint "
                "(save_model, serialize) holds it whole"
            )
        values = self.init.span(*origin_of(self), 0, self.size, self._dtype)
        return values.reshape(self._shape)

    def bind(self, array: Array) -> None:
        """Use this memory from now on: [*shape], of the buffer's dtype, on any device."""
        assert array.shape == self._shape and array.dtype == self._dtype
        self._array = array
        self._is_released = False
        self._is_sharded = True
        self.stale_views(HeldMemory(called(self)))
        self._memory.version += 1

    def release(self) -> None:
        """Give up the memory: other ranks hold the values."""
        self._array = None
        self._is_released = self._is_sharded = True

    def renew(self) -> None:
        """Set it back to its initial values, where it is held. On other ranks nothing changes."""
        if self._array is not None:
            self.array = self.initial_values()

    # ---- in a forward pass -----------------------------------------------------------------------

    def observe(
        self, value: Any, momentum: float | None = 0.1, *, count: "Buffer | None" = None
    ) -> None:
        """Say what this forward pass found: after the step the buffer is
        (1 - momentum) * old + momentum * mean over all that was observed in the step.

        Nothing happens outside of training. The mean is over all micro-batches of the global batch,
        each with the same weight, in float64. Without an engine the buffer changes at once.

        Parameters
        ----------
        value
            Tensor or array of the buffer's shape; no gradient goes through it.
        momentum
            0 to 1; None: the mean over all steps, 1 / count.
        count
            The buffer whose advance() every training forward calls; with momentum=None only.

        Raises
        ------
        ShapeError
            On another shape.
        ConfigurationError
            On another momentum, or of integers.
        """
        context = current_context()
        if not context.training:
            return
        self._check_observed(value, momentum, count)
        array = array_of(value)
        observation = Observation(xp_of(array).array(array, "float64"), momentum, count)
        self._tell(context, observation)

    def advance(self) -> None:
        """Count this step: after it the buffer is larger by 1, however many micro-batches it has.

        Nothing happens outside of training. Without an engine it changes at once.
        """
        context = current_context()
        if context.training:
            self._tell(context, Observation())

    def _tell(self, context, observation):
        if context.observer is not None:
            return context.observer(self, observation)
        if observation.value is None:
            self.add_one()
        else:
            self.blend(observation.value, weight_of(observation))

    def _check_observed(self, value, momentum, count):
        if numpy.shape(array_of(value)) != self._shape:
            raise ShapeError(
                f"{called(self)} has shape {self._shape}, but observed a value of shape "
                f"{numpy.shape(array_of(value))}; the two must be equal"
            )
        if self._dtype.kind != "f":
            raise ConfigurationError(f"{called(self)} is {self._dtype}; only floats have a mean")
        if (momentum is None) != (count is not None):
            raise ConfigurationError(
                f"{called(self)}: observe() wants either a momentum, or momentum=None and the "
                "buffer that counts steps"
            )
        if momentum is not None:
            is_weight = is_number(momentum, at_least=0) and momentum <= 1
            require(is_weight, f"{called(self)}: momentum", momentum, "a number from 0 to 1")

    # ---- after a step ----------------------------------------------------------------------------

    def blend(self, mean: Any, weight: float) -> None:
        """Become (1 - weight) * old + weight * mean, computed in float64."""
        old = self.array.astype("float64")
        self.array = ((1.0 - weight) * old + weight * mean).astype(self._dtype)

    def add_one(self) -> None:
        """Become one larger."""
        self.array = self.array + self._dtype.type(1)

    # ---- the rest --------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> "Buffer":
        """Return a copy in the same state, with memory of its own."""
        copied = Buffer(self._shape, self.init, self._dtype)
        array = copy.deepcopy(self._array, memo)
        copied.__setstate__((self.name, self.seed, array, self._is_released, self._is_sharded))
        return copied

    def __reduce__(self) -> tuple:
        making = self._shape, self.init, self._dtype
        values = None if self.is_fresh else to_host(self.array).copy()
        return Buffer, making, (self.name, self.seed, values, False, False)

    def __setstate__(self, facts: tuple) -> None:
        self.name, self.seed, self._array, self._is_released, self._is_sharded = facts

    def __repr__(self) -> str:
        state = "fresh" if self.is_fresh else "elsewhere" if self._is_released else "held"
        return f"Buffer({self.name!r}, {self._shape}, {self._dtype}, {state})"


def unobserved(buffer: Buffer, observation: Observation) -> None:
    """Take an observation and forget it: of a second forward of a micro-batch, or of a trial."""


def weight_of(observation: Observation) -> float:
    """Return the weight of a new mean: its momentum, or 1 / the steps counted so far."""
    if observation.momentum is not None:
        return float(observation.momentum)
    assert observation.count is not None
    return 1.0 / max(to_host(observation.count.array).item(), 1)


def _usual_dtype(init):
    """Return bool or int64 for booleans or integers that are given, else float32."""
    kind = init.values.dtype.kind if isinstance(init, Copied) else "f"
    return {"b": "bool", "i": "int64", "u": "int64"}.get(kind, "float32")
