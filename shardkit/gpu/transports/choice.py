"""Which way GPU arrays go between ranks where gpu_transport is "auto", and what would be quicker.

    quickest   needs                                                   what is tried
    nccl       a GPU for each rank                                     its library is found
    ipc        all ranks on one node, in processes of their own        blocks are read
    mpi        an MPI library that takes GPU memory                    probe.py
    staged     nothing

One function decides, here: at the start of a run and in `shardkit doctor` by what ranks find, in
`shardkit plan` and `shardkit render` by how many ranks and GPUs a node is to have.
"""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import DeviceError
from .device import GpuSeat, gpu_seat, shared_text

_WHY = {
    "nccl": "NCCL, since each rank has a GPU of its own",
    "ipc": "CUDA IPC, since the ranks of one node read each other's GPU memory",
    "mpi": "MPI, since the library takes GPU memory",
    "staged": "through page-locked host memory",
}
_QUICKER = {"nccl": "NCCL", "ipc": "CUDA IPC", "mpi": "a GPU-aware MPI library"}
Try = Callable[[], str]  # returns why a way cannot be gone, the same on all ranks; "": it can


@dataclass(frozen=True)
class WayOfArrays:
    """A name of TRANSPORTS.

    missed   the quickest way that was not taken, and why; "": there is none
    """

    name: str
    missed: str = ""

    def __str__(self):
        quicker = f"; quicker would be {self.missed}" if self.missed else ""
        return f'gpu_transport "{self.name}": {_WHY[self.name]}{quicker}'


@dataclass(frozen=True)
class RankPlace:
    """Where one rank computes.

    host      its node
    process   the number of its process there
    gpu       the GPU that it takes; None: it has none
    """

    host: str
    process: int
    gpu: str | None


def choose(places: list[RankPlace], tries: Mapping[str, Try]) -> WayOfArrays:
    """Return the quickest way between ranks at these places; at least two.

    tries   {name: Try} of each way that the places alone do not rule out; collective if they are
    """
    missed = ""
    for name, why_not in _WHY_NOT.items():
        problem = why_not(places) or tries[name]()
        if not problem:
            return WayOfArrays(name, missed)
        missed = missed or f"{_QUICKER[name]}, but {problem}"
    return WayOfArrays("staged", missed)


def planned_text(name: str, num_nodes: int, ranks_per_node: int, gpus_per_node: int) -> str:
    """Return a line about the way between the ranks of a job; "" for one rank, or a way by name.

    name   the setting gpu_transport
    """
    if name != "auto" or num_nodes * ranks_per_node == 1:
        return ""
    choice = choose_planned(num_nodes, ranks_per_node, gpus_per_node)
    return f"{choice}; where the nodes have its library, else the next that they have"


def choose_planned(num_nodes: int, ranks_per_node: int, gpus_per_node: int) -> WayOfArrays:
    """Return the choice for a job that is to be started, where nodes have all libraries."""
    places = [
        RankPlace(f"node {node}", rank, f"GPU {rank % gpus_per_node} on node {node}")
        for node in range(num_nodes)
        for rank in range(ranks_per_node)
    ]
    return choose(places, dict.fromkeys(_WHY_NOT, lambda: ""))


def agreed_problem(world, find: Callable[[], object]) -> str:
    """Return why a rank does not find what it needs, the same on all; "": all do. Collective."""
    try:
        find()
        problem = ""
    except DeviceError as error:
        problem = str(error)
    everyones = world.all_gather_object(problem)
    return next((f"rank {rank}: {each}" for rank, each in enumerate(everyones) if each), "")


def mpi_problem(verdict) -> str:
    """Return why MPI is given no GPU memory; "" if it is given some."""
    return "" if verdict.takes_anything else verdict.reason


def own_place(local_rank: int) -> RankPlace:
    """Return the place of the rank with this number on its node; it takes its GPU, if any."""
    try:
        return place_of(gpu_seat(local_rank))
    except DeviceError:
        return RankPlace(platform.node(), os.getpid(), None)


def place_of(seat: GpuSeat) -> RankPlace:
    """Return the place of this rank, which takes the GPU."""
    return RankPlace(seat.host, os.getpid(), seat.place)


def _why_no_nccl(places: list[RankPlace]) -> str:
    blind = [rank for rank, place in enumerate(places) if place.gpu is None]
    if blind:
        return f"rank {blind[0]} has no GPU"
    return shared_text([place.gpu or "" for place in places])


def _why_no_ipc(places: list[RankPlace]) -> str:
    if len({place.host for place in places}) > 1:
        return "the ranks are on several nodes"
    if len({place.process for place in places}) < len(places):
        return "ranks are threads of one process"
    return ""


_WHY_NOT = {"nccl": _why_no_nccl, "ipc": _why_no_ipc, "mpi": lambda places: ""}
