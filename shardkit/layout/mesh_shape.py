"""MeshShape: the arithmetic between a rank and its coordinates on the mesh, whose axes are those of
axes.py.

    MeshShape(pipeline=2, data=2, tensor=2) in the default order: tensor varies fastest, so tensor
    peers are neighbors

                    tensor 0   tensor 1
        pipeline 0    data 0     0          1         group("tensor", 0)   = [0, 1]
                      data 1     2          3         group("data", 0)     = [0, 2]
        pipeline 1    data 0     4          5         group("pipeline", 0) = [0, 4]
                      data 1     6          7

Ranks are placed on nodes in order, so the axis that varies fastest stays within a node. It should
be the one with the most messages: tensor. Source: Megatron-LM (arXiv 2104.04473), section 3.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from ..arguments import is_integer
from ..errors import MeshError
from ..plain import counted
from .axes import AXES, LEFT_OVER, ORDER, REMAINDER, Held, alike, apart, completed


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """One rank's place along each axis."""

    pipeline: int = 0
    data: int = 0
    domain: int = 0
    tensor: int = 0

    @property
    def along(self) -> dict[str, int]:
        """{axis: the place along it}."""
        return {axis: getattr(self, axis) for axis in AXES}

    def is_first(self, axes: Iterable[str]) -> bool:
        """Return True for the first rank along all of these axes."""
        return not any(self.along[axis] for axis in axes)

    def __str__(self) -> str:
        return in_words(self.along, ", ", usual=0)


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Ranks per axis; `order` names the axes from the slowest to the fastest one of a rank."""

    pipeline: int = 1
    data: int = 1
    domain: int = field(default=1, kw_only=True)
    tensor: int = 1
    order: tuple[str, ...] = ORDER

    def __post_init__(self):
        object.__setattr__(self, "order", completed(self.order))
        if sorted(self.order) != sorted(AXES):
            raise MeshError(f"order {self.order} must name each of {', '.join(AXES)} once")
        for axis in AXES:
            _check_size(axis, getattr(self, axis))

    @classmethod
    def infer(cls, world_size: int, *, order=ORDER, **sizes: int) -> "MeshShape":
        """Return the mesh that uses all `world_size` ranks; data = -1 takes those that remain.

        sizes   ranks of axes by their names; else the defaults of the table of axes
        Errors: MeshError, with the arithmetic, if the sizes do not multiply to world_size.
        """
        for axis in sizes:
            _check_axis(axis)
        sizes = {axis: entry.default for axis, entry in AXES.items()} | sizes
        others = {axis: size for axis, size in sizes.items() if axis != REMAINDER}
        for axis, size in others.items():
            _check_size(axis, size)
        if sizes[REMAINDER] == LEFT_OVER:
            replica = prod(others.values())
            if world_size % replica:
                raise MeshError(
                    f"{in_words(others)} = {replica} ranks per {REMAINDER} replica do not divide "
                    f"the {world_size} that were started; run mpiexec -n "
                    f"{-(-world_size // replica) * replica} or choose other sizes"
                )
            sizes[REMAINDER] = world_size // replica
        shape = cls(**sizes, order=tuple(order))
        shape.check(world_size)
        return shape

    def check(self, world_size: int) -> None:
        """Check that the mesh has this many ranks. Errors: MeshError with the arithmetic."""
        if self.size == world_size:
            return
        size, rest = divmod(world_size, self.size // getattr(self, REMAINDER))
        advice = f"set {REMAINDER} = {size} or " if size >= 1 and rest == 0 else ""
        wanted = f"{in_words(self.sizes)} = {counted(self.size, 'rank')}"
        raise MeshError(
            f"{wanted}, but {world_size} were started; {advice}run mpiexec -n {self.size}"
        )

    @property
    def sizes(self) -> dict[str, int]:
        """{axis: its ranks}."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def replica(self) -> int:
        """Number of ranks that see the same samples."""
        return prod(self.sizes[axis] for axis in alike(Held.SAMPLES))

    @property
    def num_parts(self) -> int:
        """Number of parts that a global batch is cut into."""
        return prod(self.sizes[axis] for axis in apart(Held.SAMPLES))

    def part_of(self, rank: int) -> int:
        """Return which of these parts a rank sees."""
        part, here = 0, self.coordinates(rank).along
        for axis in apart(Held.SAMPLES):
            part = part * self.sizes[axis] + here[axis]
        return part

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes.values())

    def coordinates(self, rank: int) -> Coordinates:
        """Return where a rank stands: its number in the mixed base of the axis sizes."""
        if not 0 <= rank < self.size:
            raise MeshError(f"rank {rank} is not on a mesh of {self.size} ranks")
        along = {}
        for axis in reversed(self.order):
            rank, along[axis] = divmod(rank, getattr(self, axis))
        return Coordinates(**along)

    def rank(self, coordinates: Coordinates) -> int:
        """Return the rank that stands at these coordinates."""
        rank = 0
        for axis in self.order:
            size = getattr(self, axis)
            along = getattr(coordinates, axis)
            if not 0 <= along < size:
                raise MeshError(
                    f"{axis} coordinate {along} is outside the mesh, which has {axis} {size}"
                )
            rank = rank * size + along
        return rank

    def group(self, axis: str | tuple[str, ...], rank: int) -> list[int]:
        """Return the ranks that differ from this one only along `axis`, in order along it; of
        several axes along any of them, the last one fastest.
        """
        axes = axes_of(axis)
        here = self.coordinates(rank)
        places = product(*[range(getattr(self, one)) for one in axes])
        return [self.rank(replace(here, **dict(zip(axes, along)))) for along in places]

    def groups(self, axis: str | tuple[str, ...]) -> list[list[int]]:
        """Return all groups along `axis` by their first rank; each rank is in exactly one."""
        axes = axes_of(axis)
        first = (rank for rank in range(self.size) if self.coordinates(rank).is_first(axes))
        return [self.group(axes, rank) for rank in first]

    @property
    def shown(self) -> list[str]:
        """The axes that texts name, from the slowest to the fastest."""
        return [a for a in self.order if not AXES[a].is_tacit or getattr(self, a) > 1]

    def __str__(self) -> str:
        return in_words({axis: getattr(self, axis) for axis in self.order})


def in_words(numbers: Mapping[str, int], between: str = " x ", *, usual: int = 1) -> str:
    """Return the axes with their numbers: "pipeline 2 x data 4 x tensor 1".

    usual   the number with which tacit axes are left out
    """
    return between.join(
        f"{axis} {number}"
        for axis, number in numbers.items()
        if number != usual or not AXES[axis].is_tacit
    )


def _check_size(axis: str, size: int) -> None:
    if not is_integer(size, at_least=1):
        raise MeshError(
            f"{axis} {size!r} is not a size; it must be an integer >= 1 (MeshShape.infer also "
            "takes data = -1)"
        )


def axes_of(axis: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one axis, or several, as a tuple. Errors: MeshError on an unknown one."""
    axes = (axis,) if isinstance(axis, str) else axis
    for one in axes:
        _check_axis(one)
    return axes


def _check_axis(axis: str) -> None:
    if axis not in AXES:
        raise MeshError(f"{axis!r} is not an axis of the mesh; the axes are {', '.join(AXES)}")
