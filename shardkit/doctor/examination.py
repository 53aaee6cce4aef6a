"""The examination: all checks in order, on all ranks.

    shardkit doctor                              this node, and whether mpiexec belongs to the MPI
    mpiexec -n 4 shardkit doctor --folder RUN    also hosts of ranks, folder, network

Rank 0 broadcasts what it finds, so all ranks return the same findings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..comm.backend import CommunicationBackend
from .files import check_folder, check_python_files
from .finding import Finding
from .gpus import check_gpus
from .machine import (
    check_allocation,
    check_blas,
    check_cores,
    check_nodes,
    check_products,
    check_versions,
)
from .mpi import check_launcher, check_library
from .network import check_axes


def examine(
    backend: CommunicationBackend,
    folder: Path,
    *,
    sizes: Mapping[str, Any] = {},
    mpi_problem: str | None = None,
) -> list[Finding]:
    """Return all findings, the same on all ranks. Collective over the backend.

    folder       of the run; the check writes to it, or to the nearest folder above it
    sizes        {axis: its ranks} of the mesh whose axes are measured
    mpi_problem  why there is no MPI; the backend is then one rank without it
    """
    findings = check_versions() + check_python_files()
    findings += check_library(mpi_problem)
    findings += backend.broadcast_object(
        check_launcher(backend.world_size, mpi_problem) if backend.rank == 0 else None, 0
    )
    findings += (
        check_nodes(backend)
        + check_cores(backend)
        + check_blas()
        + check_products()
        + check_gpus(backend)
        + check_allocation()
    )
    return (
        backend.broadcast_object(findings, 0)
        + check_folder(backend, folder)
        + check_axes(backend, sizes)
    )
