"""Latency and bandwidth between the ranks of each axis of the mesh."""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.mesh import Mesh
from ..layout.axes import AXES
from .finding import Finding, joined, ok, warning

_BYTES = 8 * 2**20
_TRIES = 11
_SLOW_SECONDS = 1e-3  # for 8 bytes: sockets or crowded cores, not a fabric
_SLOW_BYTES_PER_SECOND = 2e8


def check_axes(backend: CommunicationBackend, sizes: Mapping[str, Any]) -> list[Finding]:
    """Measure each axis that has several ranks, a line for each. Collective.

    Errors, on all ranks: MeshError.
    """
    mesh = Mesh(backend, **sizes)
    findings = joined(
        _judge(axis, mesh.size(axis), *_measure(backend, mesh.group(axis)))
        for axis in AXES
        if mesh.size(axis) > 1
    )
    mesh.close()
    alone = "only one rank; run under mpiexec or srun to measure the network"
    return findings or ok("network", alone)


def _measure(backend, group) -> tuple[float, float]:
    """Return seconds of an 8-byte all-reduce and bytes per second of a large one.

    Both are those of the slowest group, the same on all ranks.
    """
    small = numpy.zeros(1)
    large = numpy.zeros(_BYTES // 8)
    seconds = numpy.array([_seconds(group, small), _seconds(group, large)])
    everyones = numpy.empty((backend.world_size, 2))
    backend.all_gather(seconds, everyones)
    slowest = everyones.max(0)
    return float(slowest[0]), _BYTES / float(slowest[1])


def _seconds(group, array) -> float:
    group.all_reduce(array)
    times = []
    for _ in range(_TRIES):
        group.barrier()
        began = time.perf_counter()
        group.all_reduce(array)
        times.append(time.perf_counter() - began)
    return median(times)


def _judge(axis, size, latency, bandwidth) -> list[Finding]:
    text = (
        f"{axis} axis of {size}: all-reduce of 8 bytes {latency * 1e6:.0f} us, "
        f"of {_BYTES >> 20} MiB {bandwidth / 1e9:.2f} GB/s"
    )
    if latency > _SLOW_SECONDS or bandwidth < _SLOW_BYTES_PER_SECOND:
        return warning(
            "network",
            text,
            "see whether ranks share cores (above), and whether MPI uses the fabric and not plain "
            "sockets: UCX_TLS, FI_PROVIDER, OMPI_MCA_pml",
        )
    return ok("network", text)
