"""Mesh: a MeshShape with communication. One live group of ranks per axis, and one of COPIES.

mesh = Mesh(backend, pipeline=2, tensor=2)          # data is inferred from the number of ranks
mesh.group("data").all_reduce(gradients)            # over the ranks that differ from this one only
                                                    in `data`
"""

import platform
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any

import numpy

from ..environment import checked_mode
from ..errors import MeshError
from ..layout.axes import AXES, COPIES, ORDER, TOGETHER
from ..layout.mesh_shape import Coordinates, MeshShape, axes_of
from ..on_gpu import gpu_part
from .backend import CommunicationBackend
from .failure.agreement import collectively

_JOINED = COPIES, TOGETHER  # several axes, whose ranks make one group


class Mesh:
    """Ranks arranged along the axes pipeline, data, domain and tensor.

    Collective over the backend, which is initialized if it is not yet. data = -1: as many as are
    left over.

    Parameters
    ----------
    backend
        Of all ranks of the mesh.
    pipeline, tensor
        Ranks of these axes, at least 1.
    data
        Ranks of the data axis; -1: as many as are left over.
    order
        Axes from the slowest to the one that varies fastest with the rank.
    domain
        Ranks that share each sample, at least 1.

    Raises
    ------
    MeshError
        On all ranks alike, if the sizes do not multiply to the number of ranks or differ between
        ranks.
    """

    def __init__(
        self,
        backend: CommunicationBackend,
        pipeline: int = 1,
        tensor: int = 1,
        data: int = -1,
        order: Sequence[str] = ORDER,
        domain: int = 1,
    ) -> None:
        backend.initialize()
        sizes = {"pipeline": pipeline, "tensor": tensor, "data": data, "domain": domain}
        with collectively(backend):
            shape = MeshShape.infer(backend.world_size, **sizes, order=order)
        self.world = backend
        self.shape = shape
        self._hosts = _agreed_hosts(backend, shape)
        self._groups: dict[str | tuple[str, ...], CommunicationBackend] = {
            axis: self._split(axis) for axis in AXES
        }
        self._groups |= {axes: self._joined(axes) for axes in _JOINED}
        self._cuts: dict[tuple, tuple[CommunicationBackend, ...]] = {}  # of grids of an axis
        self._teams: dict[int, CommunicationBackend] = {}
        self._transport: tuple[str, bool] | None = "staged", True
        self._num_users = 1

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        return self._hosts

    @property
    def names(self) -> dict[str, str]:
        """{key of a group: its axis, or "world"}, for people."""
        of_joined = {self._groups[axes].group_key: " x ".join(axes) for axes in _JOINED}
        of_cuts = {each.group_key: axis for axis in AXES for each in self.carriers(axis)}
        of_axes = {self._groups[axis].group_key: axis for axis in AXES}
        return {self.world.group_key: "world", **of_cuts, **of_joined, **of_axes}

    @property
    def rank(self) -> int:
        """This rank in the world."""
        return self.world.rank

    @property
    def coordinates(self) -> Coordinates:
        """Where this rank stands along each axis; also its rank in each group."""
        return self.shape.coordinates(self.rank)

    @cached_property
    def sample_part(self) -> tuple[int, int]:
        """Which part of a global batch this rank sees, and of how many. No communication."""
        return self.shape.part_of(self.rank), self.shape.num_parts

    def size(self, axis: str | tuple[str, ...]) -> int:
        """Return the number of ranks along the axis.

        Parameters
        ----------
        axis
            As of group, with its errors.
        """
        return self.group(axis).world_size

    def group(self, axis: str | tuple[str, ...]) -> CommunicationBackend:
        """Return the ranks that differ from this one only along the axis.

        Parameters
        ----------
        axis
            "pipeline", "data", "domain" or "tensor"; or of layout.axes COPIES, data and domain
            together: the ranks that hold the same parameters; or TOGETHER, domain and tensor: those
            that compute each layer together.

        Raises
        ------
        MeshError
            On an unknown axis.
        """
        if axis not in self._groups:
            axes_of(axis)
        return self._groups[axis]

    def cut_data(self, size: int) -> tuple[CommunicationBackend, ...]:
        """Return the groups that the ranks with the same parameters are made of: first this rank's
        run of `size` neighbors, then, if there are several runs, the ranks at its place in each.

        Collective over the backend the first time for each size.

        Parameters
        ----------
        size
            Of a run; it divides the ranks of COPIES.
        """
        data = self.group(COPIES)
        if size == data.world_size:
            return (data,)
        return self.grid(COPIES, (data.world_size // size, size))[::-1]

    def grid(
        self, axis: str | tuple[str, ...], sizes: tuple[int, ...]
    ) -> tuple[CommunicationBackend, ...]:
        """Return, for each dim of a grid of the ranks of an axis, those that differ from this rank
        along it alone.

        Collective over the backend the first time for each grid.

        Parameters
        ----------
        axis
            As of group, with its errors.
        sizes
            Of the grid, whose last dim varies fastest with the rank; their product is the number of
            ranks.

        Raises
        ------
        MeshError
            If it is not.
        """
        group = self.group(axis)
        if prod(sizes) != group.world_size:
            raise MeshError(f"a grid of {sizes} of {group.world_size} {axis} ranks; wanted as many")
        if (axis, sizes) not in self._cuts:
            strides = [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
            places = [group.rank // stride % size for stride, size in zip(strides, sizes)]
            lines = [
                self._part(group, group.rank - place * stride, place)
                for place, stride in zip(places, strides)
            ]
            self._cuts[axis, sizes] = tuple(lines)
            self._transport = None  # these groups have none yet
        return self._cuts[axis, sizes]

    def carriers(self, axis: str) -> tuple[CommunicationBackend, ...]:
        """Return all groups that carry messages along the axis: its own, and those it is cut into.

        Parameters
        ----------
        axis
            As of group, with its errors.
        """
        joined = [self._groups[axes] for axes in _JOINED if axes[-1] == axis]
        for (along, _), groups in self._cuts.items():
            joined += groups if axis == along or axis == along[-1] else ()
        own = [self._groups[one] for one in AXES]
        others = [group for group in dict.fromkeys(joined) if group not in own]
        return self.group(axis), *others

    def ranks_per_node(self, axis: str | tuple[str, ...]) -> int | None:
        """Return how many neighbors along the axis each node has; None if they differ.

        The same on all ranks; no communication.

        Parameters
        ----------
        axis
            As of group.
        """
        lengths = {
            len(list(run))
            for ranks in self.shape.groups(axis)
            for _, run in groupby(self._hosts[rank] for rank in ranks)
        }
        return lengths.pop() if len(lengths) == 1 else None

    def ranks(self, axis: str | tuple[str, ...]) -> list[int]:
        """Return the world ranks of group(axis), by their coordinate along it.

        Parameters
        ----------
        axis
            As of group.
        """
        return self.shape.group(axis, self.rank)

    def describe(self, **columns: Any) -> str:
        """Return a table of who is where; the same text on all ranks, no communication.

        Parameters
        ----------
        columns
            More of them: heading = one text per rank.
        """
        rows = [["rank", *self.shape.shown, "host", *columns]]
        rows += [
            self._row(rank, host) + [texts[rank] for texts in columns.values()]
            for rank, host in enumerate(self._hosts)
        ]
        lines = zip(*map(_aligned, zip(*rows)))
        return "\n".join(
            [
                f"{self.shape} = {self.shape.size} ranks",
                *("  ".join(line).rstrip() for line in lines),
            ]
        )

    def open_gpu_transport(self, name: str, *, deterministic: bool = True) -> None:
        """Let GPU arrays go this way within the groups from now on. Collective over the backend.

        Parameters
        ----------
        name
            One of comm.settings.TRANSPORTS; checked mode stages all, since it compares calls.
        deterministic
            Sums of floats are added as the tree over ranks.

        Raises
        ------
        DeviceError
            On all ranks, if it is "nccl" and cannot be had.
        """
        if self._transport == (name, deterministic) or checked_mode():
            return
        groups = {axis: self.carriers(axis) for axis in AXES}
        for group in (group for along in groups.values() for group in along):
            with group.verb("close transport"):  # a rank may never come here
                group.use_gpu_transport(None)
        open_transport = gpu_part("transports.opening").open_transport
        open_transport(name, self.world, groups, deterministic=deterministic)
        self._transport = name, deterministic

    def team(self, per_host: int) -> CommunicationBackend:
        """Return the group of this rank, where the ranks of a host make some. Collective at first.

        Parameters
        ----------
        per_host
            So many groups, or as many as ranks; neighbors are in one. close() frees them.
        """
        if per_host not in self._teams:
            host = self._hosts[self.rank]
            ranks = [rank for rank, other in enumerate(self._hosts) if other == host]
            teams = numpy.array_split(ranks, min(per_host, len(ranks)))
            own = next(team.tolist() for team in teams if self.rank in team)
            place = own.index(self.rank)
            self._teams[per_host] = self._part(self.world, own[0], place)
        return self._teams[per_host]

    def share(self) -> None:
        """Count one user more, who closes the mesh too. No communication; on all ranks."""
        self._num_users += 1

    @property
    def is_shared(self) -> bool:
        """True if close() leaves the groups to another user."""
        return self._num_users > 1

    def close(self) -> None:
        """Leave the mesh; the last user frees the groups. Collective over the backend, which stays.

        The maker of the mesh is its first user; a call more than there are users does nothing.
        """
        self._num_users = max(self._num_users - 1, 0)
        if not self._num_users:
            for axis in AXES:
                for group in reversed(self.carriers(axis)):
                    group.close()
            for team in self._teams.values():
                team.close()
            self._cuts.clear()
            self._teams.clear()

    def _split(self, axis):
        ranks = self.ranks(axis)
        return self._part(self.world, ranks[0], ranks.index(self.rank))

    def _joined(self, axes):
        """Return the group along several axes: that of one of them, if no other has ranks."""
        several = [axis for axis in axes if self.size(axis) > 1] or axes[-1:]
        return self._groups[several[0]] if len(several) == 1 else self._split(axes)

    @staticmethod
    def _part(backend: CommunicationBackend, color: int, key: int) -> CommunicationBackend:
        part = backend.split(color, key)
        assert part is not None  # since every rank has a color
        return part

    def _row(self, rank, host):
        coordinates = self.shape.coordinates(rank)
        return [str(rank), *(str(coordinates.along[axis]) for axis in self.shape.shown), host]

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, rank {self.rank})"


def _aligned(column):
    """Return the cells of a column at one width: numbers to the right, text to the left."""
    width = max(map(len, column))
    return [cell.rjust(width) if column[-1].isdigit() else cell.ljust(width) for cell in column]


def _agreed_hosts(backend, shape):
    """Return the host of every rank, once all ranks are known to mean the same mesh."""
    answers = backend.gather_object((str(shape), platform.node()))
    shapes, hosts = zip(*backend.broadcast_object(answers))
    for rank, other in enumerate(shapes):
        if other != shapes[0]:
            raise MeshError(
                f"rank 0 asked for a mesh of {shapes[0]}, but rank {rank} for {other}; pass the "
                "same sizes on all"
            )
    return hosts
