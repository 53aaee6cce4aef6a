"""The GPU transports that a configuration can name, beside the staged one (../transport.py)."""

from .ipc import open_gpu_ipc
from .mpi import open_gpu_mpi
from .nccl import open_nccl


def open_transport(name: str, world, groups: dict, *, deterministic: bool) -> None:
    """Give the groups {axis: group} of a mesh this transport, where it can be had.

    Collective over the world.
    name   one of GPU_TRANSPORTS
    Errors, on all ranks: DeviceError if it is "nccl" and a rank has no NCCL or no GPU of its own.
    """
    if name == "mpi":
        open_gpu_mpi(world, groups.values())
    elif name == "ipc":
        open_gpu_ipc(world, groups.values())
    elif name == "nccl":
        open_nccl(world, [groups["data"], groups["tensor"]], fixed_order=deterministic)
