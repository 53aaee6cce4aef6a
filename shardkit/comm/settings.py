"""Settings of messages between ranks."""

from dataclasses import dataclass

from ..settings import setting

TRANSPORTS = "auto", "staged", "mpi", "ipc", "nccl"  # gpu/transports/opening.py opens each


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """How GPU arrays reach other ranks; the bits are the same.

    "auto" takes the quickest that the ranks can use, in this order, and says so. "nccl" takes one
    GPU per rank. With "ipc", ranks of one node copy in each other's GPU memory. "mpi" passes GPU
    arrays to MPI calls where a probe shows that the library takes them (SHARDKIT_GPU_AWARE_MPI).
    "staged" goes through page-locked host memory and is always right.
    """

    gpu_transport: str = setting(
        "auto",
        "how GPU arrays reach other ranks; auto: the quickest way that these ranks can use",
        among=TRANSPORTS,
        unplanned="the hardware's links say how fast messages are",
    )
