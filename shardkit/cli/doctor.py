"""`shardkit doctor`."""

import sys
from pathlib import Path

from ..comm.threads.backend import InMemoryCommunicationBackend
from ..doctor.examination import examine
from ..doctor.finding import as_json, as_text, exit_code
from ..environment import launcher
from ..errors import CommunicationError
from ..train.terminal import console_of
from .arguments import local_path, option
from .job import job, mpi_backend
from .settings import configuration

_DOCTOR = """check whether this machine is fit for a run

Examine MPI, cores, files and network, alone or under mpiexec or srun. Exit code 1 if something
does not work. --mesh.pipeline=P --mesh.tensor=T choose the mesh axes to measure."""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    doctor = add_command("doctor", _doctor, _DOCTOR, takes_settings=True)
    option(
        doctor,
        "--folder",
        "folder of the run; default: the current folder",
        type=local_path,
        default=".",
    )
    option(doctor, "--json", "print JSON for programs")


def _doctor(known, overrides) -> int:
    mesh = configuration(None, overrides).mesh
    problem = None
    try:
        backend = mpi_backend()
    except CommunicationError as error:
        if launcher().rank:
            raise
        backend = InMemoryCommunicationBackend(0, 1, environment_id="doctor")
        problem = str(error)
    with job(backend):
        findings = examine(backend, Path(known.folder), sizes=mesh.sizes, mpi_problem=problem)
        if backend.rank == 0:
            is_colored = console_of(sys.stdout).is_terminal
            text = as_text(findings, is_colored=is_colored)
            print(as_json(findings) if known.json else text)
    return exit_code(findings)
