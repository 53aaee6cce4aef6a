"""MPI_Init with a limit: a rank that stays in it is ended by its warden (watch/warden.py).

The warden prints what to check.
"""

from contextlib import contextmanager
from math import inf

from ...environment import launcher, ranks_may_die, start_seconds
from ..watch.attendance import attendance

ALONE_HINT = (
    ". Work that one rank does alone may keep the others waiting at their end no longer than the "
    "backend's timeout: set a longer one, or let all ranks take part"
)

# An old SLURM cuts long lines of PMI in two; MPICH 5 writes such lines when it runs over UCX.
MPICH_ADVICE = "With MPICH 5 under srun of SLURM 22.05, set MPIR_CVAR_CH4_NETMOD=ofi. "


@contextmanager
def start_limit(library: str, timeout: float):
    """Return a context manager around MPI_Init: a process that stays in it too long is killed.

    After one line that names what to check.
    library   name of the MPI that mpi4py loads
    timeout   seconds; SHARDKIT_START_SECONDS if that is less, and no limit if that is 0
    """
    seconds = start_seconds()
    join_roll(library)
    with attendance().waiting("MPI_Init", min(seconds, timeout) if seconds else inf):
        yield
    attendance().has_started()


def join_roll(library: str) -> None:
    """Enter this process in the registry of its node, unless it is there."""
    started_by = launcher().name or "an unknown launcher"
    attendance().open(
        f", {library}, started by {started_by}",
        {"MPI_Init": start_advice(library), "MPI_Finalize": ALONE_HINT},
        survives=ranks_may_die(),
    )


def start_advice(library: str) -> str:
    """Return what to check when MPI_Init does not return."""
    kind = "pmix" if library == "Open MPI" else "pmi2"
    return (
        f". Check: does the launcher speak this MPI's protocol (srun --mpi={kind}; srun "
        f"--mpi=list), or is it the mpiexec of this very {library}? Did all ranks start, or did "
        "one die first? Do the nodes reach each other (firewall, network interface)? "
        f"{MPICH_ADVICE if library == 'MPICH' else ''}Starting again may be enough. "
        "SHARDKIT_START_SECONDS and the backend's timeout set the limit"
    )
