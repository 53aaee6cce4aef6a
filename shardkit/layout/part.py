"""Parts of samples: which one a rank reads, and arrays that hold it.

    SamplePart   number 1 of 3, along dim 2 of x    --span(11)-->  rows [4, 8) of samples 11 long
    Rows   an array of these rows, that says where they lie in whole samples

A source that is told a part reads these rows alone, whatever the length of its samples; halos
travel between ranks in the layers. The spans of all parts are those of even_span, or runs of them
where parts have several slabs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import ShapeError
from .cuts import run_of_spans

Shape: TypeAlias = tuple[int, ...]
Index: TypeAlias = tuple[slice, ...]


def with_length(shape: Shape, dim: int, length: int) -> Shape:
    """Return a shape with another length of one dim."""
    changed = list(shape)
    changed[dim] = length
    return tuple(changed)


class Rows:
    """Some rows of samples, on a rank that has no others.

    Its shape is that of whole samples; that of the rows is array.shape.

    Parameters
    ----------
    array
        [samples, ..., rows, ...]: the rows.
    dim
        Of array, along which they lie.
    start
        Number of the first one in whole samples.
    length
        Rows of whole samples.
    """

    __slots__ = ("array", "dim", "start", "length")

    def __init__(self, array: Any, dim: int, start: int, length: int) -> None:
        self.array, self.dim = array, dim
        self.start, self.length = start, length

    @property
    def stop(self) -> int:
        """The number behind the last row."""
        return self.start + self.array.shape[self.dim]

    @property
    def shape(self) -> Shape:
        """The shape of whole samples."""
        return with_length(self.array.shape, self.dim, self.length)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        """The dtype of the rows."""
        return self.array.dtype

    def map(self, function: Callable[[Any], Any]) -> "Rows":
        """Return what function makes of the array, at the same place of samples as long.

        Parameters
        ----------
        function
            (array) -> array with as many rows along dim.
        """
        return Rows(function(self.array), self.dim, self.start, self.length)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, samples: slice) -> "Rows":
        return self.map(lambda array: array[samples])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ShapeError(
            f"{self} is a part of samples, where an array of whole ones is wanted: only a model "
            "whose domain ranks share samples takes parts; the rows alone are slab.array"
        )

    def __repr__(self) -> str:
        return f"rows {self.start}:{self.stop} along dim {self.dim} of {self.shape}"


def each_part(function: Callable[[Any], Any], value: Any) -> Any:
    """Return function(array), of a slab at its place."""
    return value.map(function) if isinstance(value, Rows) else function(value)


@dataclass(frozen=True)
class SamplePart:
    """Which part of each sample a rank reads: what `Samples.read` is told on a domain axis.

    Parameters
    ----------
    number
        Of this part, from 0.
    count
        How many there are.
    x_dim
        Of x [samples, ...], along which it is cut.
    y_dim
        Likewise of y; None: y is read whole, such as the class of an image.
    slabs
        That make up a part: all slabs of all parts are even.
    """

    number: int
    count: int
    x_dim: int
    y_dim: int | None = None
    slabs: int = 1

    def span(self, length: int) -> tuple[int, int]:
        """Return which rows [start, stop) of samples of this length are read.

        Parameters
        ----------
        length
            Of whole samples, along the dim that is cut.
        """
        num = self.count * self.slabs
        return run_of_spans(length, num, self.number * self.slabs, self.slabs)

    def x(self, rows: Any, length: int) -> Rows:
        """Return x as a model takes it, of the rows that were read.

        Parameters
        ----------
        rows
            [samples, ...]: those of span(length) along x_dim.
        length
            Of whole samples.
        """
        return Rows(rows, self.x_dim, self.span(length)[0], length)

    def y(self, rows: Any, length: int) -> Any:
        """Return y as a model takes it, of the rows that were read; y itself if it is whole.

        Parameters
        ----------
        rows
            As of x, along y_dim.
        length
            Of whole samples.
        """
        if self.y_dim is None:
            return rows
        return Rows(rows, self.y_dim, self.span(length)[0], length)

    def cut(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return this part of whole x and y: views. What cannot be cut stays, and is refused by the
        model.

        Parameters
        ----------
        x, y
            [samples, ...] each, or slabs already.
        """
        return self._cut(x, self.x_dim), self._cut(y, self.y_dim)

    def _cut(self, array, dim):
        inside = None if isinstance(array, Rows) else self.inside(getattr(array, "shape", ()), dim)
        if inside is None:
            return array
        return Rows(array[inside], dim, inside[dim].start, array.shape[dim])

    def inside(self, shape: Shape, dim: int | None) -> Index | None:
        """Return the index of this part in arrays of this shape; None where they stay whole.

        Parameters
        ----------
        shape
            Of whole samples.
        dim
            x_dim or y_dim.
        """
        if dim is None or len(shape) <= dim or shape[dim] < self.count:
            return None
        own = slice(*self.span(shape[dim]))
        return (slice(None),) * dim + (own,)
