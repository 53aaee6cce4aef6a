"""`shardkit train`."""

import argparse
import os
import sys
from pathlib import Path

from ..errors import ShardkitError, StopVoted
from ..train.folder import has_checkpoints, stored_settings
from ..train.initial import with_initial_sizes
from ..train.loop import train_run
from ..train.settings import RunConfiguration, resumed
from ..train.stopping import StopSignals
from ..train.survivors import SurvivingRun
from .job import job, mpi_backend
from .settings import given_settings


def add_commands(commands) -> None:
    """Add the parser of the command."""
    train = commands.add_parser(
        "train",
        help="train a language model on text",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train a GPT on text:\n"
        "  mpiexec -n 4 shardkit train [settings.toml] [--section.key=value ...]",
        epilog="settings:\n" + RunConfiguration.help_text(),
    )
    train.add_argument(
        "settings",
        nargs="?",
        help="TOML file with a [section] for each group of the settings below",
    )
    train.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in run.folder from its newest valid checkpoint",
    )
    train.add_argument(
        "--resume-if-any",
        action="store_true",
        help="continue if run.folder holds a checkpoint, otherwise start: for requeued jobs",
    )
    train.set_defaults(run=_train, takes_settings=True)


def _train(known, overrides) -> int:
    signals = StopSignals().listen()
    if _wants_elastic(known, overrides):
        return _train_elastic(known, overrides, signals)
    backend = mpi_backend()
    with job(backend) as program:
        settings, resume = _run_settings(
            known, overrides, lambda has_run: backend.broadcast_object(has_run, 0)
        )
        result = train_run(settings, backend, resume=resume, program=program, signals=signals)
    signals.ignore()
    return StopVoted.exit_code if result.is_interrupted else 0


def _wants_elastic(known, overrides) -> bool:
    """Return run.elastic; False if the settings are wrong, which all ranks report later."""
    try:
        return _run_settings(known, overrides)[0].run.elastic
    except ShardkitError:
        return False


def _train_elastic(known, overrides, signals) -> int:
    run = SurvivingRun(*_run_settings(known, overrides), signals)
    result = run.go()
    code = StopVoted.exit_code if result is not None and result.is_interrupted else 0
    sys.stdout.flush()
    if run.has_lost_ranks:
        os._exit(code)  # MPI_Finalize may wait for dead ranks
    signals.ignore()
    return code


def _run_settings(
    known, overrides, agreed=lambda has_run: has_run
) -> tuple[RunConfiguration, bool]:
    """Return (settings, resume).

    agreed   function (this rank sees a run in the folder) -> whether all ranks take it for one
    """
    given = given_settings(known.settings, overrides)
    folder = Path(RunConfiguration().replace(given).run.folder)
    if known.resume or known.resume_if_any and agreed(has_checkpoints(folder)):
        return resumed(stored_settings(folder), given), True
    return with_initial_sizes(given), False
