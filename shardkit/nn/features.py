"""Input features: named columns of x, some of which may be switched off."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy

from ..annotations import DTypeLike
from ..array.backend import xp_of
from ..errors import ConfigurationError, FeatureError
from .autograd import Tensor
from .layers.basic import check_width, input_tensor
from .module import Module
from .ops.elementwise import where


def input_features(model: Module) -> "InputFeatures | None":
    """Return the attribute `features` of a model, if it is InputFeatures; else None."""
    found = getattr(model, "features", None)
    return found if isinstance(found, InputFeatures) else None


class InputFeatures(Module):
    """x [batch, features] with zero where a feature is inactive, for output and gradient.

    Parameters
    ----------
    num_features
        Columns of x; all are active at first.
    names
        One each, different; None: feature_0, feature_1, ...
    dtype
        That x is cast to.

    Raises
    ------
    ConfigurationError
        On another number of names, or one given twice.
    """

    def __init__(
        self, num_features: int, names: Any = None, *, dtype: DTypeLike = "float32"
    ) -> None:
        if names is None:
            names = [f"feature_{i}" for i in range(num_features)]
        self.names = tuple(map(str, names))
        if len(self.names) != num_features or len(set(self.names)) != num_features:
            raise ConfigurationError(
                f"feature_names = {list(self.names)}; wanted {num_features} different names"
            )
        self._active = tuple(range(num_features))
        self._mask = None
        self._dtype = dtype

    @property
    def active(self) -> tuple[int, ...]:
        """Numbers of the active features, ascending."""
        return self._active

    def checked(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return these numbers, ascending, each once.

        Raises
        ------
        FeatureError
            On a number that is no feature, or on no number at all.
        """
        numbers = sorted({operator.index(i) for i in indices})
        if not numbers or numbers[0] < 0 or numbers[-1] >= len(self.names):
            raise FeatureError(
                f"features {numbers} cannot be made active; wanted some of 0 to "
                f"{len(self.names) - 1}"
            )
        return tuple(numbers)

    def activate(self, indices: Sequence[int]) -> None:
        """Make exactly these features active.

        Raises
        ------
        FeatureError
            As checked().
        """
        self._active = self.checked(indices)
        self._mask = None

    def check_input(self, x: Any) -> None:
        check_width("a model of input features", x, len(self.names))

    def forward(self, x: Tensor) -> Tensor:
        x = input_tensor(x, self._dtype)
        if len(self._active) == len(self.names):
            return x
        return where(self._mask_in(xp_of(x.array)), x, x.array.dtype.type(0))

    def _mask_in(self, xp):
        """Return the mask [features] bool in the memory of xp, True for active.

        It is made once, so that no step sends it to a GPU again.
        """
        if self._mask is None or xp_of(self._mask) is not xp:
            mask = numpy.zeros(len(self.names), bool)
            mask[list(self._active)] = True
            self._mask = xp.asarray(mask)
        return self._mask
