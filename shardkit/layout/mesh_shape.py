"""MeshShape: the arithmetic between a rank and its coordinates on the (pipeline, data, tensor)
mesh.

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

from dataclasses import dataclass, replace
from math import prod

from ..arguments import is_integer
from ..errors import MeshError

AXES = ("pipeline", "data", "tensor")


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """One rank's place along each axis."""

    pipeline: int = 0
    data: int = 0
    tensor: int = 0


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Ranks per axis; `order` names the axes from the slowest to the fastest one of a rank."""

    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    order: tuple[str, str, str] = AXES

    def __post_init__(self):
        if sorted(self.order) != sorted(AXES):
            raise MeshError(f"order {self.order} must name each of {', '.join(AXES)} once")
        for axis in AXES:
            _check_size(axis, getattr(self, axis))

    @classmethod
    def infer(
        cls, world_size: int, *, pipeline: int = 1, tensor: int = 1, data: int = -1, order=AXES
    ) -> "MeshShape":
        """Return the mesh that uses all `world_size` ranks; data = -1 takes those that remain.

        Errors: MeshError, with the arithmetic, if the sizes do not multiply to world_size.
        """
        _check_size("pipeline", pipeline)
        _check_size("tensor", tensor)
        replica = pipeline * tensor
        if data == -1 and world_size % replica:
            raise MeshError(
                f"pipeline {pipeline} x tensor {tensor} = {replica} ranks per data replica do not "
                f"divide the {world_size} that were started; run mpiexec -n "
                f"{-(-world_size // replica) * replica} or choose other sizes"
            )
        if data == -1:
            data = world_size // replica
        shape = cls(pipeline, data, tensor, tuple(order))
        shape.check(world_size)
        return shape

    def check(self, world_size: int) -> None:
        """Check that the mesh has this many ranks. Errors: MeshError with the arithmetic."""
        if self.size == world_size:
            return
        data, rest = divmod(world_size, self.pipeline * self.tensor)
        advice = f"set data = {data} or " if data >= 1 and rest == 0 else ""
        product = " x ".join(f"{axis} {getattr(self, axis)}" for axis in AXES)
        raise MeshError(
            f"{product} = {self.size} ranks, but {world_size} were started; {advice}run "
            f"mpiexec -n {self.size}"
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(getattr(self, axis) for axis in AXES)

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

    def group(self, axis: str, rank: int) -> list[int]:
        """Return the ranks that differ from this one only along `axis`, in order along it."""
        _check_axis(axis)
        here = self.coordinates(rank)
        return [self.rank(replace(here, **{axis: along})) for along in range(getattr(self, axis))]

    def groups(self, axis: str) -> list[list[int]]:
        """Return all groups along `axis` by their first rank; each rank is in exactly one."""
        _check_axis(axis)
        first = (rank for rank in range(self.size) if getattr(self.coordinates(rank), axis) == 0)
        return [self.group(axis, rank) for rank in first]

    def __str__(self) -> str:
        return " x ".join(f"{axis} {getattr(self, axis)}" for axis in self.order)


def _check_size(axis: str, size: int) -> None:
    if not is_integer(size, at_least=1):
        raise MeshError(
            f"{axis} {size!r} is not a size; it must be an integer >= 1 (MeshShape.infer also "
            "takes data = -1)"
        )


def _check_axis(axis: str) -> None:
    if axis not in AXES:
        raise MeshError(f"{axis!r} is not an axis of the mesh; the axes are {', '.join(AXES)}")
