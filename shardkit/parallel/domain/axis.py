"""The ranks that share samples, as layers see them.

    rows of a layer's input     0 1 2 3 | 4 5 6 | 7 8 9       layout.even_span, whatever the layer
    of its output               0 1 | 2 3 | 4

The parts of every activation are those of even_span of its own length, so that skips and sums of
branches fit without a word. How long it is, the ranks tell each other where a layer needs to know.
In later batches of samples of this length, a rank sees it by its own part, where all lengths of a
model differ on every rank.

Where ranks are a grid, such as 2 x 2, they cut several dims, and each dim has an axis of its own:

    dim 3 ->   rank 0 | rank 1      ranks 0 and 1 exchange columns, 0 and 2 rows; what is added up
    dim 2 |    -------+-------      over a sample is added over all four
          v    rank 2 | rank 3
"""

from itertools import product
from math import prod
from typing import Any

import numpy

from ...comm.backend import CommunicationBackend
from ...errors import ShapeError, ShardingError
from ...layout.cuts import even_runs, even_span
from ...nn.module import Module, check_input_of
from .slab_group import SlabGroup
from .spans import Table, even_spans

GRID_DIM = 2  # the first dim of a grid in [samples, channels, *grid], which is cut
NO_DIM = -1  # in place of a length
ADVICE = "use fewer domain ranks, longer samples, or a model that keeps more"


class DomainAxis:
    """The ranks that share each sample, and the dim of x along which they do.

    group     the ranks of the axis, or the slabs that they have (slab_group.py)
    dim       of activations: 2, the first of a grid in [samples, channels, *grid], or 1
    everyone  all ranks that share a sample: those of the group, and of axes beside it, by rows
    axes      of all dims that are cut, by dim: this one first
    made      lengths of inputs and of what layers made: any other is a mistake between layers; None
              where layers run on other ranks too, and what they make is not known
    along_last  the first layer that gets parts, and computes along the last dim; None: no one
    passed    {path of a module that gets parts: (dim of x, dim of what it returns or None: whole)}
    """

    def __init__(
        self,
        group: CommunicationBackend | SlabGroup,
        dim: int,
        *,
        follows: bool = True,
        everyone: CommunicationBackend | None = None,
        beside: "tuple[DomainAxis, ...]" = (),
    ):
        self.group: Any = group
        self.everyone: Any = everyone or group
        self.axes = self, *beside
        self.passed: dict[str, tuple[int, int | None]] = {}
        self.dim = dim
        self.made: set[int] | None = set() if follows else None
        self._by_part: dict[int, int] = {}  # own rows -> the length; none where they do not tell
        self._num_batches, self._sample_length = 0, 0  # begun, and of the last
        self._first_batches: dict[tuple, int] = {}  # (length of samples, layer) -> the first batch
        self._shared: dict[int, tuple] = {}
        self.along_last: str | None = None

    @classmethod
    def of_grid(
        cls,
        everyone: CommunicationBackend,
        lines: tuple[CommunicationBackend, ...],
        *,
        follows: bool,
    ) -> "DomainAxis":
        """Return the axis of the first dim of a grid, with those of the next dims beside it.

        everyone   ranks that share samples, by rows
        lines      for each dim, those that differ from this rank only along it
        """
        numbered = [*enumerate(lines, GRID_DIM)]
        beside = tuple(
            [cls(line, dim, follows=follows, everyone=everyone) for dim, line in numbered]
        )
        return cls(lines[0], GRID_DIM, follows=follows, everyone=everyone, beside=beside[1:])

    def lengths(self, x, path: str | None) -> tuple[int, ...]:
        """Return length() along each dim that is cut. Collective over everyone."""
        return tuple([axis.length(x, path) for axis in self.axes])

    def length(self, x, path: str | None) -> int:
        """Return how long dim of x is over all ranks. Collective over everyone.

        Errors, on all its ranks: ShapeError if some have no such dim; ShardingError unless they
        hold the rows of even_span, of a length that a layer has made.
        """
        own = x.shape[self.dim] if x.ndim > self.dim else NO_DIM
        is_told = self._by_part and self._was_met(path)
        if is_told and own in self._by_part:
            return self._by_part[own]
        lengths = [own] if is_told else self._lengths_of_all(own)
        if NO_DIM in lengths:
            raise ShapeError(
                f"{path} got x {x.shape}; wanted dim {self.dim}, along which domain ranks share it"
            )
        length = sum(lengths)
        wanted = [stop - start for start, stop in self.spans(length)]
        if self.made == set():  # the first layer of all
            self.note(length)
        if lengths != wanted or self.made is not None and length not in self.made:
            made = f", of {_listed(self.made)} rows in all" if self.made else ""
            raise ShardingError(
                f"{path} got parts of {_added(lengths)} along dim {self.dim} of x; wanted parts "
                f"that differ by one at most, the longer ones first{made}: a forward() between "
                "layers shortened or lengthened them; do that by a layer"
            )
        self._first_batches.setdefault((self._sample_length, path), self._num_batches)
        return length

    def _was_met(self, path: str | None) -> bool:
        """Return whether ranks have compared what this layer gets in an earlier batch."""
        return (
            self._first_batches.get((self._sample_length, path), self._num_batches)
            < self._num_batches
        )

    def _lengths_of_all(self, own: int) -> list[int]:
        """Return the length on each rank of the group; on all of everyone, if a line has others."""
        lengths = numpy.empty(2 * self.everyone.world_size, numpy.int64)
        self.everyone.all_gather(numpy.array([self.group.rank, own]), lengths)
        found = sorted(set(map(tuple, lengths.reshape(-1, 2).tolist())))
        return [length for _, length in found]

    def begin(self, shape: tuple[int, ...]) -> None:
        """Begin with samples of this shape, whatever others had, and ranks noted that failed."""
        for axis in self.axes:
            axis._begin(shape[axis.dim])

    def _begin(self, length):
        self._num_batches, self._sample_length = self._num_batches + 1, length
        self.made = None if self.made is None else set()
        self.note(length)

    def note(self, length: int) -> None:
        """Note a length that a layer makes: on all ranks alike."""
        if self.made is None or length in self.made:
            return
        self.made.add(length)
        lengths = sorted(self.made)
        parts = [[stop - start for start, stop in self.spans(each)] for each in lengths]
        by_part = [dict(zip(of_rank, lengths)) for of_rank in zip(*parts)]
        tell = min(map(len, by_part)) == len(lengths)
        self._by_part = by_part[self.group.rank] if tell else {}

    def note_last(self, name: str) -> None:
        """Note a layer that gets parts, and computes along the last dim."""
        self.along_last = self.along_last or name

    def spans(self, length: int) -> tuple[tuple[int, int], ...]:
        """Return each rank's [start, stop) of `length`."""
        return tuple(even_runs(length, self.group.world_size))

    def spans_of_output(self, length: int, before: int, path: str | None):
        """Return each rank's [start, stop) of a layer's output.

        before   the length of its input
        Errors: ShardingError if a rank would have nothing of it.
        """
        num_ranks = self.group.world_size
        if length < num_ranks:
            raise ShardingError(
                f"{path} makes {length} of {before} rows along dim {self.dim}: "
                f"{num_ranks} domain ranks would have parts of "
                f"{_added([stop - start for start, stop in self.spans(length)])}, but none may be "
                f"empty; {ADVICE}"
            )
        self.note(length)
        return self.spans(length)

    def table(self, x, path: str | None) -> Table:
        """Return all ranks' spans of dim of x. Collective over the group; errors: of length()."""
        return even_spans(self.length(x, path), self.group.world_size)

    def own_span(self, length: int) -> tuple[int, int]:
        """Return this rank's [start, stop) of `length`."""
        return even_span(length, self.group.world_size, self.group.rank)

    def shared(self, whole, made):
        """Return what was made of an object by the first of the layers that have it: `made`."""
        return self._shared.setdefault(id(whole), (whole, made))[1]

    def counts(self, lengths: tuple[int, ...]) -> list[int]:
        """Return how many places of a grid of these lengths each rank of everyone has."""
        table = [axis.spans(length) for axis, length in zip(self.axes, lengths)]
        counts = [[stop - start for start, stop in spans] for spans in table]
        return [*map(prod, product(*counts))]

    def __deepcopy__(self, memo):
        """Return the axis itself: a copy of a model talks over the same ranks."""
        return self


class CutLayer(Module):
    """A layer that gets this rank's part of x, in the place of one that gets whole samples.

    Its members are those of the layer `whole`, so parameters keep their names; it has its other
    attributes too: a forward() around it, or that of the class, may ask for them.
    leaves_parts   False: what it returns is whole, for each rank's own use
    behind         the axis of what it returns, which is cut along another dim perhaps
    """

    leaves_parts = True

    def __init__(self, axis: DomainAxis, whole: Module):
        vars(self).update(vars(whole))
        self.axis = self.behind = axis
        self._whole = whole

    @property
    def takes_place_of(self) -> type[Any]:
        """The class of the layer whose place it takes."""
        return type(self._whole)

    def members(self):
        return {name: m for name, m in Module.members(self).items() if name != "_whole"}

    def check_input(self, x):
        check_input_of(self._whole, x)


def _listed(numbers) -> str:
    return " or ".join(map(str, sorted(numbers)))


def _added(lengths) -> str:
    return " + ".join(map(str, lengths))
