"""`shardkit train`."""

import os
from functools import partial

from ..comm.failure.signals import StopSignals
from ..comm.same import alike
from ..environment import launcher
from ..errors import ShardkitError, StopVoted
from ..files.notes import settle_output
from ..train.agreement import SAME_SETTINGS, facts_of_place
from ..train.loop import train_run
from ..train.settings import RunConfiguration
from ..train.start import StartClock
from ..train.survivors import SurvivingRun
from .arguments import add_trust, local_path, option
from .job import job, mpi_backend
from .settings import Given, trust_in

_TRAIN = """train a task: a language model on text, or one of your own

Train a task: a language model on text, or one of your own:
  mpiexec -n 4 shardkit train [settings.toml] [--section.key=value ...]
  mpiexec -n 4 shardkit train --task my_model.py:Surrogate [...]"""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    # add_help: the settings that it lists are those of the task
    train = add_command("train", _train, _TRAIN, takes_settings=True, add_help=False)
    add = partial(option, train)
    train.add_argument(
        "-h",
        "--help",
        action="store_true",
        help="show this, with every setting of the task, and leave",
    )
    add("--print-settings", "print the settings that the run would have, as a TOML file, and leave")
    add(
        "settings",
        "TOML file with a [section] for each group of the settings below",
        nargs="?",
        type=local_path,
    )
    add("--resume", "continue the run in run.folder from its newest valid checkpoint")
    add(
        "--resume-if-any",
        "continue if run.folder holds a checkpoint, otherwise start: for requeued jobs",
    )
    add_trust(train)
    train.set_defaults(parser=train)


def _train(known, overrides) -> int:
    if known.help:
        return _show_help(known, overrides)
    if known.print_settings:
        return _print_settings(known, overrides)
    signals, start = StopSignals().listen(), StartClock.of_process()
    is_elastic, error = _is_elastic(known, overrides)
    if is_elastic:
        return _train_elastic(known, overrides, signals, start)
    backend = mpi_backend()
    with job(backend) as program:
        with alike(backend, SAME_SETTINGS) as facts:
            if error is not None:
                raise error
            facts |= facts_of_place(Given.read(known.settings, overrides).folder())
            facts |= {"--resume": str(known.resume), "--resume-if-any": str(known.resume_if_any)}
        settings, resume = _run_settings(
            known, overrides, lambda has_run: backend.broadcast_object(has_run, 0)
        )
        start.note("MPI")
        how = {"program": program, "signals": signals, "start": start}
        result = train_run(settings, backend, resume=resume, **how)
    signals.ignore()
    settle_output()  # the run has its own records: a full disk behind standard output fails nothing
    return StopVoted.exit_code if result.is_interrupted else 0


def _is_elastic(known, overrides) -> tuple[bool, ShardkitError | None]:
    """Return run.elastic, and what is wrong with the settings, for all ranks to raise."""
    try:
        return _run_settings(known, overrides)[0].run.elastic, None
    except ShardkitError as error:
        return False, error


def _train_elastic(known, overrides, signals, start) -> int:
    run = SurvivingRun(*_run_settings(known, overrides), signals, start=start)
    start.note("MPI")
    result = run.go()
    code = StopVoted.exit_code if result is not None and result.is_interrupted else 0
    settle_output()
    if run.has_lost_ranks:
        os._exit(code)  # MPI_Finalize may wait for dead ranks
    signals.ignore()
    return code


def _run_settings(
    known, overrides, agreed=lambda has_run: has_run
) -> tuple[RunConfiguration, bool]:
    """Return (settings, resume)."""
    given = Given.read(known.settings, overrides)
    trust = trust_in(known.trust, given.first("run.task"))
    return given.of_run(known.resume, known.resume_if_any, agreed, trust)


def _print_settings(known, overrides) -> int:
    """Print the settings of a start, or with --resume those that the run goes on with."""
    if not launcher().rank:
        print(_run_settings(known, overrides)[0].toml_text(), end="")
    return 0


def _show_help(known, overrides) -> int:
    """Print the options, and the settings of the task that is given."""
    configuration = Given.read(known.settings, overrides).configuration()
    print(known.parser.format_help())
    print(f"settings of {configuration.task_class.__name__}:\n\n{configuration.help_text()}")
    return 0
