"""What opens each transport of GPU arrays (comm/settings.py). What it does not take is staged.

A transport is imported when a model asks for it.
"""

from ...layout.axes import Held, alike
from .choice import WayOfArrays, agreed_problem, choose, mpi_problem, own_place
from .device import nccl_version


def _staged(world, groups: dict, deterministic: bool) -> None:
    """Open nothing: every group stages arrays through page-locked host memory."""


def _mpi(world, groups: dict, deterministic: bool) -> None:
    from .mpi import open_gpu_mpi

    open_gpu_mpi(world, _all(groups))


def _ipc(world, groups: dict, deterministic: bool) -> None:
    from .ipc import open_gpu_ipc

    open_gpu_ipc(world, _all(groups))


def _nccl(world, groups: dict, deterministic: bool) -> None:
    from .nccl import open_nccl

    carried = [group for axis in alike(Held.BLOCKS) for group in groups[axis]]  # others send
    axes = {group.group_key: axis for axis, along in groups.items() for group in along}
    others = [group for group in _all(groups) if group not in carried]
    open_nccl(world, carried, fixed_order=deterministic, axes=axes, messages=others)


def choose_here(world) -> WayOfArrays:
    """Return the choice for these ranks. Collective over the world."""
    from .ipc import why_no_ipc
    from .probe import agreed_verdict

    places = world.all_gather_object(own_place(world.local_rank))
    tries = {
        "nccl": lambda: agreed_problem(world, nccl_version),
        "ipc": lambda: why_no_ipc(world),
        "mpi": lambda: mpi_problem(agreed_verdict(world)),
    }
    return choose(places, tries)


def _auto(world, groups: dict, deterministic: bool) -> None:
    if world.world_size > 1:
        choice = choose_here(world)
        if world.rank == 0:
            world.say(str(choice))
        OPENED_BY[choice.name](world, groups, deterministic)


def _all(groups: dict) -> list:
    return [group for along in groups.values() for group in along]


OPENED_BY = {"auto": _auto, "staged": _staged, "mpi": _mpi, "ipc": _ipc, "nccl": _nccl}


def open_transport(name: str, world, groups: dict, *, deterministic: bool) -> None:
    """Open this transport in the groups {axis: groups} of a mesh. Collective over the world.

    name   one of comm.settings.TRANSPORTS
    Errors, on all ranks: DeviceError if it is "nccl" and a rank has no NCCL or no GPU of its own.
    """
    OPENED_BY[name](world, groups, deterministic)
