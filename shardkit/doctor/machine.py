"""The machine: versions, hosts of the ranks, cores, BLAS, and the end of the allocation."""

import platform
import time
from importlib.metadata import PackageNotFoundError, version

from threadpoolctl import threadpool_info

from ..array.blas import LIBRARIES, library_named
from ..array.blas.find import blas_threads
from ..array.blas.probe import has_same_bits
from ..array.blas.processor import multiplies_bfloat16
from ..checkpoint.format.hdf5 import library_text
from ..comm.backend import CommunicationBackend
from ..comm.ranks import ranks_text
from ..comm.seats import all_seats, crowding
from ..environment import allocation_end, blas_threads_are_set, slurm_job
from ..errors import ConfigurationError
from ..train.log import duration_text
from ..train.stopping import end_of_slurm_job
from .finding import Finding, joined, ok, warning

PRODUCTS = 200  # of each kind, at random addresses
_PACKAGES = ("shardkit", "numpy", "numba")


def check_versions() -> list[Finding]:
    """Report the versions of Python, of the packages that compute, and of HDF5."""
    packages = ", ".join(map(_version_text, _PACKAGES))
    found = ok("versions", f"Python {platform.python_version()}, {packages}")
    return found + ok("HDF5", library_text())


def _version_text(package):
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # runs from a checkout that was not installed
        return f"{package} not installed"


def check_nodes(backend: CommunicationBackend) -> list[Finding]:
    """Report which ranks are on which host. Collective."""
    hosts: dict[str, list[int]] = {}
    for rank, seat in enumerate(all_seats(backend, 1)):
        hosts.setdefault(seat.host, []).append(rank)
    shown = [f"{host}: {ranks_text(ranks)}" for host, ranks in list(hosts.items())[:16]]
    if len(hosts) > 16:
        shown.append("...")
    uneven = len({len(ranks) for ranks in hosts.values()}) > 1
    text = f"ranks by host: {'; '.join(shown)}"
    if uneven:
        advice = "the hosts have different numbers of ranks; the slowest sets the pace"
        return warning("nodes", text, advice)
    return ok("nodes", text)


def check_cores(backend: CommunicationBackend) -> list[Finding]:
    """Compare affinity masks and CPU quotas with BLAS threads and ranks per node. Collective."""
    seats = all_seats(backend, blas_threads())
    crowds = crowding(seats)
    if crowds:
        advice = "what a run does is in run.threads and in the launcher's binding (jobs/env.sh)"
        return joined(warning("cores", text, advice) for text in crowds)
    mine = seats[0]
    granted = f"{min(mine.quotas.values()):g} cores" if mine.quotas else "none"
    return ok(
        "cores",
        f"rank 0 may use cores {ranks_text(mine.cores)} (CPU quota: {granted}) and has "
        f"{mine.threads} BLAS threads; no host has more threads than cores for them",
    )


def check_blas() -> list[Finding]:
    """Report the library that multiplies matrices."""
    libraries = [
        f"{library['internal_api']} {library['version']}, {library['num_threads']} threads"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    if not libraries:
        return warning(
            "BLAS",
            "NumPy uses a BLAS that does not say its name",
            "its threads must be set by hand: OMP_NUM_THREADS=1 before the start",
        )
    by = "set by nobody, so the ranks of a node share its cores"
    if blas_threads_are_set():
        by = "set by the environment"
    return ok("BLAS", f"{'; '.join(libraries)}, {by}; a run sets run.threads")


def check_products() -> list[Finding]:
    """Report the libraries of parallel.blas, and whether each repeats its bits at any address."""
    return joined(_products(name) for name in LIBRARIES if name != "numpy")


def _products(name: str) -> list[Finding]:
    try:
        library = library_named(name)
    except ConfigurationError as error:
        return ok(name, f"not to be had: {error}")
    if not has_same_bits(library, PRODUCTS):
        return warning(
            name,
            f"{library.name} gave the same product other bits at another address",
            'runs cannot be repeated with it; use parallel.blas="numpy", and report this CPU',
        )
    halves = ", bfloat16 too" if multiplies_bfloat16() else "; this CPU multiplies no bfloat16"
    return ok(name, f"{library.name}: the same bits in {PRODUCTS} products each{halves}")


def check_allocation() -> list[Finding]:
    """Report when the batch system ends the job, if there is one."""
    end = allocation_end() or end_of_slurm_job()
    if end is not None:
        left = duration_text(max(0, end - time.time()))
        return ok("time", f"the allocation ends in {left}; a run saves before that")
    if slurm_job() is not None:
        return warning(
            "time",
            f"SLURM job {slurm_job()} does not say when it ends",
            "export SHARDKIT_END_TIME in the job script, or set run.time_limit_seconds",
        )
    return ok("time", "no batch job: runs go on until they are done")
