"""The MPI library, and whether the launcher belongs to it."""

import re
import subprocess

from ..comm.mpi.elastic import why_not_elastic
from ..comm.mpi.facts import mpi_facts
from ..comm.mpi.launch import find_mpiexec, launch_warnings
from ..environment import environment_without_launcher, launcher
from ..files.programs import find_program, python_command
from .finding import Finding, error, joined, ok, warning

_TRIAL_SECONDS = 60.0
_TRIAL = "import sys; from mpi4py import MPI; sys.stdout.write(f'world of {MPI.COMM_WORLD.size};')"


def check_library(problem: str | None) -> list[Finding]:
    """Report which MPI mpi4py loads, and whether threads may call it.

    problem   why there is no MPI; None: there is one
    """
    if problem is not None:
        return error("MPI", problem)
    facts = mpi_facts()
    found = ok("MPI", f"{facts.library}, standard {facts.standard}, mpi4py {facts.mpi4py}")
    level = f"thread level {facts.thread_level}"
    if facts.thread_level == "MULTIPLE":
        return found + ok("threads", level) + _survival()
    late = warning(
        "threads",
        f"{level}: a rank that ends early is noticed late",
        "load an MPI built for MPI_THREAD_MULTIPLE, and leave mpi4py.rc.thread_level at its "
        "default",
    )
    return found + late + _survival()


def _survival() -> list[Finding]:
    """Report what run.elastic does here when a rank dies."""
    reason = why_not_elastic()
    if reason is None:
        return ok(
            "elastic",
            "a rank may die: with run.elastic=true the others go on in the same job, from copies "
            "in memory",
        )
    return ok(
        "elastic",
        "with run.elastic=true the job script starts again after a death, from the newest "
        f"checkpoint, since {reason}",
    )


def check_launcher(num_ranks: int, problem: str | None) -> list[Finding]:
    """Check that ranks find each other. Called on one rank.

    Outside of a launcher it starts two ranks with the mpiexec that it finds.
    """
    found = launcher()
    if problem is not None:
        return []
    if found.num_ranks is not None:
        return ok(
            "launcher", f"{found.name} started {found.num_ranks} ranks, and MPI sees {num_ranks}"
        )
    texts = launch_warnings(num_ranks)
    warnings = joined(warning("launcher", text, "see jobs/README.md") for text in texts)
    return warnings + _try_mpiexec()


def _try_mpiexec() -> list[Finding]:
    mpiexec = find_mpiexec()
    name = mpi_facts().name
    if mpiexec is None and find_program("srun"):
        return warning(
            "launcher",
            "srun starts the ranks here, and there is no mpiexec beside this Python or in PATH",
            "look at ranks inside a job: srun -n 2 python -m shardkit doctor, with --mpi=pmi2 "
            "(MPICH, Intel MPI), --mpi=pmix (Open MPI) or what the site says (Cray: "
            "--mpi=cray_shasta)",
        )
    if mpiexec is None:
        return warning(
            "launcher",
            "no mpiexec beside this Python or in PATH",
            f"load the MPI module that has {name}, or start with srun --mpi=pmi2 (MPICH, Intel "
            "MPI) or --mpi=pmix (Open MPI)",
        )
    try:
        done = subprocess.run(
            [mpiexec, "-n", "2", *python_command(_TRIAL)],
            env=environment_without_launcher(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return error(
            "launcher", f"{mpiexec} -n 2 did not end within {_TRIAL_SECONDS:g} s", "try it by hand"
        )
    return _judge_trial(mpiexec, name, done)


def _judge_trial(mpiexec: str, name: str, done: subprocess.CompletedProcess) -> list[Finding]:
    worlds = re.findall(r"world of (\d+);", done.stdout)
    if done.returncode == 0 and worlds == ["2", "2"]:
        return ok("launcher", f"{mpiexec} -n 2 makes a world of 2 ranks")
    if "1" in worlds:
        return error(
            "launcher",
            f"{mpiexec} -n 2 makes two worlds of 1: it is not the mpiexec of {name}, which mpi4py "
            "loads",
            f"use the mpiexec of {name}, or install mpi4py for the MPI of this mpiexec",
        )
    last = (done.stderr.strip().splitlines() or ["no words"])[-1]
    return error(
        "launcher",
        f"{mpiexec} -n 2 ended with exit code {done.returncode}: {last}",
        "try it by hand; on login nodes of some sites MPI does not run: then try it inside a job",
    )
