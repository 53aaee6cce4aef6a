"""What a parameter and a buffer have in common: an array that is made late or never.

    fresh --first access to .array, or values for it--> held --release()--> released

Its initial values are a function of (seed, name, element index).
"""

import copy
from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy

from ..annotations import Array, DTypeLike, Shape
from ..array.backend import to_host, xp_of
from ..errors import ShapeError, ShardingError
from .autograd import Tensor, array_of
from .building import count_one
from .init import Initializer


class LateArray(Tensor):
    """A tensor that has first a shape, a dtype and an initializer, and an array when asked for."""

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
    _kind: ClassVar[str]  # what messages call it

    def __init__(
        self, shape: int | Sequence[int], init: Initializer, dtype: DTypeLike, requires_grad: bool
    ) -> None:
        count_one()
        self._is_released = self._is_sharded = False
        self._begin(requires_grad)
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._dtype = numpy.dtype(dtype)
        self.init = init
        self.name: str | None = None
        self.seed: int | None = None
        self._array: Array | None = None

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return prod(self._shape)

    @property
    def is_fresh(self) -> bool:
        """True while it has its initial values and no array yet."""
        return self._array is None and not self._is_released

    @property
    def is_released(self) -> bool:
        """True while it has no memory because others have its values: of a buffer, on ranks that do
        not compute with it.
        """
        return self._is_released

    @property
    def _called(self) -> str:
        """What messages call it."""
        if self.name is None:
            return f"a {self._kind} of shape {self._shape}"
        return f"{self._kind} {self.name}"

    def _check_named(self) -> None:
        """Raise ShardingError unless it has what its initial values depend on."""
        if self.name is None or self.seed is None:
            raise ShardingError(
                f"{self._called} has no name and seed yet, and its initial values depend on both; "
                "call finish(seed) on the model that it belongs to"
            )

    def _fill(self, values):
        """Copy values into its array, which may be part of a unit's buffer.

        Errors: ShapeError on another shape.
        """
        values = array_of(values)
        if numpy.shape(values) != self._shape:
            raise ShapeError(
                f"{self._called} has shape {self._shape}, but values of shape "
                f"{numpy.shape(values)} were given; the two must be equal"
            )
        if self.is_fresh:
            self._array = xp_of(values).empty(self._shape, self._dtype)
        xp = xp_of(self.array)
        self._array[...] = to_host(values) if xp is numpy else xp.asarray(values)
        self._memory.version += 1

    def _become(self, other, memo):
        """Take over the name and the state of another, with memory of its own."""
        self.name = other.name
        self.seed = other.seed
        self._array = copy.deepcopy(other._array, memo)
        self._is_released = other._is_released
        self._is_sharded = other._is_sharded
