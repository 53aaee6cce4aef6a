"""Seats: which ranks share which cores, and how many threads each may run.

    4 ranks x 8 BLAS threads on 8 cores   slower than 4 x 2: a warning with the setting
    the threads are not set               the cores that a rank may use, shared among the ranks that
                                          may use them

Affinity masks list the cores that a rank may use; mpiexec and srun set them ("binding"). Cores are
those of the kernel: with two hardware threads to a core, both count. The quota of a container
(quotas.py) may grant less time than the cores have.
"""

import os
import platform
from dataclasses import dataclass, field

from threadpoolctl import threadpool_limits

from ..environment import blas_threads_are_set
from .quotas import own_quotas
from .ranks import ranks_text


@dataclass(frozen=True)
class Seat:
    """Where a rank runs: its host, the cores that it may use there, and the BLAS threads that it
    has.

    quotas   {control group: cores} that limit it, the same name for all ranks of a host
    """

    host: str
    cores: tuple[int, ...]
    threads: int
    quotas: dict[str, float] = field(default_factory=dict)

    @classmethod
    def here(cls, threads: int) -> "Seat":
        """Return the seat of this process."""
        return cls(platform.node(), own_cores(), threads, own_quotas())


def own_cores() -> tuple[int, ...]:
    """Return the cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))  # no affinity masks on this system


def all_seats(backend, threads: int) -> list[Seat]:
    """Return the seats of all ranks, in rank order. Collective over the backend."""
    return backend.all_gather_object(Seat.here(threads))


def seats_on_first(backend, threads: int) -> list[Seat]:
    """Return the seats of all ranks on rank 0, [] on the others. Collective over the backend."""
    return backend.gather_object(Seat.here(threads)) or []


def have_cores(seats: list[Seat]) -> bool:
    """Return True if each rank of a host can have a core for itself, all of the time."""
    cores = set().union(*(seat.cores for seat in seats))
    return len(cores) >= len(seats) and all(
        cores >= len(ranks) for cores, ranks in _quotas(dict(enumerate(seats)))
    )


def _quotas(seats: dict[int, Seat]) -> list[tuple[float, list[int]]]:
    """Return the quotas on a host, in cores, each with the ranks that share it."""
    found = {name: cores for seat in seats.values() for name, cores in seat.quotas.items()}
    return [
        (cores, [rank for rank, seat in seats.items() if name in seat.quotas])
        for name, cores in found.items()
    ]


def crowding(seats: list[Seat]) -> list[str]:
    """Return one sentence for each host on which more threads run than it has cores for them, and
    for each quota that grants less time than the threads under it can use.

    With what to set.
    """
    on_hosts: dict[str, dict[int, Seat]] = {}
    for rank, seat in enumerate(seats):
        on_hosts.setdefault(seat.host, {})[rank] = seat
    return [
        text
        for host, of_host in on_hosts.items()
        for find in (_crowding_on, _short_quotas_on)
        for text in find(host, of_host)
    ]


def _short_quotas_on(host, seats):
    """Return a sentence for each quota that is too small, for {rank: seat} of one host.

    One for quotas of the same size around the same ranks.
    """
    short = {
        (cores, tuple(ranks)): sum(seats[rank].threads for rank in ranks)
        for cores, ranks in _quotas(seats)
    }
    return [
        _short_quota(host, ranks, threads, cores)
        for (cores, ranks), threads in short.items()
        if threads > cores
    ]


def _short_quota(host, ranks, threads, cores):
    who = f"ranks {ranks_text(ranks)} run" if len(ranks) > 1 else f"rank {ranks[0]} runs"
    what = f"{threads} threads" if threads > 1 else "1 thread"
    fair = max(1, int(cores / len(ranks)))
    fix = "give the container or job as many cores as it has ranks"
    if fair < threads // len(ranks):
        fix = f"set run.threads={fair} (OMP_NUM_THREADS={fair})"
    return (
        f"on {host} {who} {what} under a CPU quota of {cores:g} cores (cpu.max of their control "
        f"group); {fix}"
    )


def _crowding_on(host, seats):
    """[] or [sentence] for {rank: seat} of one host, about its most crowded rank."""
    demand = {rank: _demand(seat, seats.values()) / len(seat.cores) for rank, seat in seats.items()}
    worst = max(demand, key=demand.get)
    if demand[worst] <= 1:
        return []
    seat = seats[worst]
    peers = [rank for rank, other in seats.items() if set(other.cores) & set(seat.cores)]
    fair = max(1, len(seat.cores) // len(peers))
    what = (
        f"on {host} rank{'s' if len(peers) > 1 else ''} {ranks_text(peers)} "
        f"run{'' if len(peers) > 1 else 's'} {sum(seats[rank].threads for rank in peers)} threads "
        f"on {len(seat.cores)} core{'s' if len(seat.cores) > 1 else ''}"
    )
    if len(peers) == 1:
        return [
            f"{what}; set run.threads={fair}, or bind wider: srun --cpus-per-task={seat.threads}, "
            "mpiexec -bind-to "
            f"core:{seat.threads} (MPICH) or --map-by slot:PE={seat.threads} (Open MPI)"
        ]
    if fair < seat.threads:
        return [f"{what}; set run.threads={fair} (OMP_NUM_THREADS={fair})"]
    return [
        f"{what}; start {len(seat.cores) // seat.threads} ranks there, or give the job more cores"
    ]


def _demand(seat, others):
    """Threads that want the cores of this seat; those of a rank are spread evenly over the cores
    that it may use.
    """
    cores = set(seat.cores)
    return sum(
        other.threads * len(cores.intersection(other.cores)) / len(other.cores) for other in others
    )


def share_cores(own: Seat, everyones: list[Seat]) -> int:
    """Return the BLAS threads for a rank with this seat, if every rank of its node gets a fair part
    of the cores, and of the quotas, that it may use.
    """
    peers = sum(bool(set(own.cores) & set(other.cores)) for other in everyones)
    of_quotas = [
        int(cores / sum(name in other.quotas for other in everyones))
        for name, cores in own.quotas.items()
    ]
    return max(1, min([len(own.cores) // peers, *of_quotas]))


def settle_threads(node) -> None:
    """Set the BLAS threads of this process to its share, unless the environment sets them."""
    own = Seat.here(1)
    everyones = node.allgather((own, blas_threads_are_set()))
    if not any(is_set for _, is_set in everyones) and len(everyones) > 1:
        threadpool_limits(share_cores(own, [seat for seat, _ in everyones]))
