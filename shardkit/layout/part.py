"""Parts of samples: which one a rank reads, and arrays that hold it.

    SamplePart   number 1 of 3, along dim 2 of x    --span(11)-->  rows [4, 8) of samples 11 long
    Rows   an array of these rows, that says where they lie in whole samples

A source that is told a part reads these rows alone, whatever the length of its samples; halos
travel between ranks in the layers. The spans of all parts are those of even_span, or runs of them
where parts have several slabs. Where dims behind x_dim are cut too, a part is a box.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..errors import ShapeError
from .cuts import run_of_spans

Shape: TypeAlias = tuple[int, ...]
Index: TypeAlias = tuple[slice, ...]


def with_length(shape: Shape, dim: int, length: int) -> Shape:
    """Return a shape with another length of one dim."""
    changed = list(shape)
    changed[dim] = length
    return tuple(changed)


class DimSpan(NamedTuple):
    """The elements [start, stop) of `length` along a dim."""

    dim: int
    start: int
    stop: int
    length: int


def dim_spans(dim: int, index: Index, shape: Shape) -> tuple[DimSpan, ...]:
    """Return what an index of whole samples of this shape has, from this dim on."""
    found = []
    for at, (own, length) in enumerate(zip(index, shape)):
        found.append(DimSpan(at, own.start, own.stop, length))
    return tuple(found[dim:])


def in_words(spans: Sequence[DimSpan]) -> str:
    """Return spans as text: "4:8 along dim 2 and 0:5 along dim 3"."""
    return " and ".join([f"{each.start}:{each.stop} along dim {each.dim}" for each in spans])


class Rows:
    """Some rows of samples, on a rank that has no others; or a box of them.

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
    beside
        (start, length) along each of the next dims that are cut too.
    """

    __slots__ = ("array", "dim", "start", "length", "beside")

    def __init__(
        self,
        array: Any,
        dim: int,
        start: int,
        length: int,
        beside: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.array, self.dim = array, dim
        self.start, self.length = start, length
        self.beside = tuple(beside)

    @classmethod
    def at(cls, array: Any, dim: int, index: Index, shape: Shape) -> "Rows":
        """Return an array as what lies at an index of whole samples.

        Parameters
        ----------
        array
            Of these elements.
        dim
            The first one that is cut.
        index
            Of dims from that of the samples to the last one that is cut.
        shape
            Of whole samples.
        """
        spans = dim_spans(dim, index, shape)
        first, *beside = [(each.start, each.length) for each in spans]
        return cls(array, dim, *first, tuple(beside))

    @property
    def stop(self) -> int:
        """The number behind the last row."""
        return self.start + self.array.shape[self.dim]

    @property
    def cuts(self) -> tuple[DimSpan, ...]:
        """What the array has, along each dim that is cut."""
        places = (self.start, self.length), *self.beside
        found = []
        for dim, (start, length) in enumerate(places, self.dim):
            found.append(DimSpan(dim, start, start + self.array.shape[dim], length))
        return tuple(found)

    @property
    def shape(self) -> Shape:
        """The shape of whole samples."""
        shape = self.array.shape
        for cut in self.cuts:
            shape = with_length(shape, cut.dim, cut.length)
        return shape

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
        return Rows(function(self.array), self.dim, self.start, self.length, self.beside)

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
        return f"rows {in_words(self.cuts)} of {self.shape}"


def each_part(function: Callable[[Any], Any], value: Any) -> Any:
    """Return function(array), of a slab at its place."""
    return value.map(function) if isinstance(value, Rows) else function(value)


@dataclass(frozen=True)
class SamplePart:
    """Which part of each sample a rank reads: what `Samples.read` is told on a domain axis.

    Parameters
    ----------
    number
        Of this part, from 0, along x_dim.
    count
        How many there are along it.
    x_dim
        Of x [samples, ...], along which it is cut.
    y_dim
        Likewise of y; None: y is read whole, such as the class of an image.
    slabs
        That make up a part: all slabs of all parts are even.
    beside
        (number, count) along each dim behind x_dim, and behind y_dim, that is cut too. A source
        that reads the rows of span(length) and returns them by x() and y() need not know of it:
        they keep the own ones.
    """

    number: int
    count: int
    x_dim: int
    y_dim: int | None = None
    slabs: int = 1
    beside: tuple[tuple[int, int], ...] = ()

    def span(self, length: int, which: int = 0) -> tuple[int, int]:
        """Return which rows [start, stop) of samples of this length are read.

        Parameters
        ----------
        length
            Of whole samples, along a dim that is cut.
        which
            Of these dims: 0 for x_dim and y_dim, 1 for the next one.
        """
        number, count = ((self.number, self.count), *self.beside)[which]
        return run_of_spans(length, count * self.slabs, number * self.slabs, self.slabs)

    def x(self, rows: Any, length: int, *others: int) -> Rows:
        """Return x as a model takes it, of the rows that were read.

        Parameters
        ----------
        rows
            [samples, ...]: those of span(length) along x_dim.
        length
            Of whole samples.
        others
            Lengths of whole samples along the next dims that are cut, if what was read is a box;
            along those that are left out rows are whole, and cut here.
        """
        return self._held(rows, self.x_dim, (length, *others))

    def y(self, rows: Any, length: int, *others: int) -> Any:
        """Return y as a model takes it, of the rows that were read; y itself if it is whole.

        Parameters
        ----------
        rows
            As of x, along y_dim.
        length, others
            Of whole samples, as of x.
        """
        return rows if self.y_dim is None else self._held(rows, self.y_dim, (length, *others))

    def _held(self, rows, dim, lengths):
        starts = [self.span(length, which)[0] for which, length in enumerate(lengths)]
        first, *beside = zip(starts, lengths)
        return self._cut(Rows(rows, dim, *first, tuple(beside)), dim)

    def cut(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return this part of whole x and y: views. What cannot be cut stays, and is refused by the
        model.

        Parameters
        ----------
        x, y
            [samples, ...] each, or slabs already.
        """
        return self._cut(x, self.x_dim), self._cut(y, self.y_dim)

    def _cut(self, value, dim):
        """Return this part of an array, or of a slab that was read for it."""
        inside = self.inside(getattr(value, "shape", ()), dim)
        is_slab = isinstance(value, Rows)
        if inside is None or is_slab and value.dim != dim:
            return value
        known = value.cuts if is_slab else ()
        behind = dim + len(known)
        before = [slice(cut.start, cut.stop) for cut in known]
        index = (*inside[:dim], *before, *inside[behind:])
        array = value.array if is_slab else value
        array = array[(slice(None),) * behind + inside[behind:]]
        return Rows.at(array, dim, index, value.shape)

    def inside(self, shape: Shape, dim: int | None) -> Index | None:
        """Return the index of this part in arrays of this shape; None where they stay whole.

        Parameters
        ----------
        shape
            Of whole samples.
        dim
            x_dim or y_dim.
        """
        counts = [self.count, *[count for _, count in self.beside]]
        if dim is None or len(shape) < dim + len(counts):
            return None
        sizes = shape[dim : dim + len(counts)]
        if any([size < count for size, count in zip(sizes, counts)]):
            return None
        own = [slice(*self.span(size, which)) for which, size in enumerate(sizes)]
        return (slice(None),) * dim + tuple(own)
