"""Where a view lies in an array, so that it is found again when the array lies elsewhere.

whole    | 0 1 2 3 4 5 |   [2, 3]           view = whole.T    begins at 0, steps (1, 3)
later    | 0 1 2 3 4 5 |   in other memory  seen_in(later)    the same elements of it
"""

from dataclasses import dataclass
from typing import Any

import numpy

from ..annotations import Array, Shape


@dataclass(frozen=True)
class PlaceOfView:
    """A view of an array without gaps: its shape, its first element, its steps in elements."""

    shape: Shape
    start: int
    steps: tuple[int, ...]

    def seen_in(self, whole: Array) -> Array:
        """Return the view of an array like the one that the place was found in."""
        array: Any = whole
        size = array.dtype.itemsize
        start = self.start * size
        steps = tuple([step * size for step in self.steps])
        if type(array) is not numpy.ndarray:
            return type(array)(self.shape, array.dtype, array.data + start, steps)
        memory = array.reshape(-1).view(numpy.uint8)
        return numpy.ndarray(self.shape, array.dtype, memory, start, steps)


def place_in(whole: Array, view: Array) -> PlaceOfView | None:
    """Return where a view lies in an array without gaps; None if it is no view of it, or empty."""
    if view.dtype != whole.dtype or not view.size:
        return None
    start = _address(view) - _address(whole)
    if not 0 <= start < whole.nbytes:
        return None
    size = whole.dtype.itemsize
    steps = tuple([step // size for step in view.strides])
    return PlaceOfView(view.shape, start // size, steps)


def _address(x) -> int:
    return x.__array_interface__["data"][0] if type(x) is numpy.ndarray else x.data.ptr
