"""How the job was started: the launcher's numbers against MPI's.

mpiexec or srun started 4 ranks, MPI sees 1   four programs that each train alone: refused, with
                                              what to do
"""

from pathlib import Path

from ...environment import Launcher, launcher
from ...errors import LaunchError
from ...files.programs import find_program, this_python


def check_launch(world_size: int, library: str) -> None:
    """Refuse a world of one if a launcher started several ranks. Errors: LaunchError, with the fix.

    library   name of the MPI that mpi4py loads: "MPICH", "Open MPI", ...
    """
    found = launcher()
    if found.num_ranks is not None and found.num_ranks > 1 and world_size == 1:
        raise LaunchError(
            f"the launcher started {found.num_ranks} ranks, but MPI sees a world of 1, so each "
            f"would train alone: {_mismatch(found, library)}"
        )


def check_library(library: str) -> None:
    """Refuse an MPI, not initialized yet, that is not the launcher's.

    Errors: LaunchError, with the fix.
    """
    found = launcher()
    if found.name == "Open MPI" and library != "Open MPI":
        raise LaunchError(
            f"the {found.num_ranks} ranks cannot find each other: {_mismatch(found, library)}"
        )


def _mismatch(found: Launcher, library: str) -> str:
    """Return why the ranks did not find each other, and how to start them."""
    beside = Path(this_python()).with_name("mpiexec")
    mpiexec = f"{beside}" if beside.exists() else f"the mpiexec of {library}"
    if found.name == "srun":
        kind = "pmix" if library == "Open MPI" else "pmi2"
        return (
            f"srun spoke no protocol that {library} knows; start with srun --mpi={kind} (srun "
            f"--mpi=list shows what there is), or with {mpiexec}"
        )
    if found.name == "Open MPI" or library == "Open MPI":
        return (
            f"they were started by {found.name}, but mpi4py loads {library}; start with {mpiexec}"
        )
    return (
        f"mpi4py loads another {library} than the launcher's; start with {mpiexec} "
        "(python -m mpi4py --mpi-lib-version shows what is loaded)"
    )


def find_mpiexec() -> str | None:
    """Return the mpiexec beside this Python, or that of the PATH."""
    beside = Path(this_python()).with_name("mpiexec")
    return str(beside) if beside.exists() else find_program("mpiexec")


def launch_warnings(world_size: int) -> list[str]:
    """Return what looks wrong about the start, though it may be intended."""
    found = launcher()
    if found.num_ranks is None and found.num_tasks is not None and found.num_tasks > world_size:
        return [
            f"SLURM gave this job {found.num_tasks} tasks, but {world_size} rank runs; start with "
            "srun or mpiexec"
        ]
    return []
