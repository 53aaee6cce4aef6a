"""`shardkit sweep`."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..comm.failure.agreement import collectively
from ..ensemble.ensemble import Ensemble
from ..ensemble.settings import OnlySweep
from ..ensemble.space import span_of
from ..errors import ConfigurationError, InputError, StopVoted
from ..files.notes import settle_output
from ..files.reading import named
from ..files.shown import shown
from ..report.sweep import describe_sweep
from ..settings import line_of
from ..train.settings import RunConfiguration
from .arguments import local_path, option
from .job import job, mpi_backend
from .settings import Given

_SWEEP = """train many trials side by side, and compare them

Train many trials of a task side by side, on groups of the ranks of one job:
  mpiexec -n 8 shardkit sweep settings.toml --groups 4 [--section.key=value ...]

The file has the settings of all trials, as for `shardkit train`; in [try] those
that trials differ in, and in [sweep] which of them there are:
  [try.optimizer]
  learning_rate = {log = [1e-4, 1e-2]}     # or {uniform = [low, high]}
  [try.task]
  width = [16, 32, 64]                     # values
  [sweep]
  trials = 20                              # without ranges: every combination

The same command goes on with a sweep that was stopped or killed.

"""
Values = dict[str, Any]
_TRIED = "try."
_SWEEPS = "sweep."


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    sweep = add_command("sweep", _sweep, _SWEEP + OnlySweep.help_text(), takes_settings=True)
    option(sweep, "settings", "TOML file of settings", type=local_path)


def _sweep(known, overrides) -> int:
    backend = mpi_backend()
    with job(backend):
        with collectively(backend):
            given = Given.read(known.settings, overrides)
            options, settings = parted(given)
            task = given.configuration().task_class
        ensemble = Ensemble(task, settings, backend=backend, **options)
        ensemble.run()
        if backend.rank == 0:
            print(shown(describe_sweep(Path(options["folder"]))), end="")
    settle_output()
    return 0 if ensemble.is_complete else StopVoted.exit_code


def parted(given: Given) -> tuple[Values, Values]:
    """Return (the options of the ensemble, the settings of its trials): [try] as it is, all others
    as lists of one value. Errors: ConfigurationError, with the line of the file.
    """
    tried = _tried(given)
    base = _without(given.values, _TRIED, _SWEEPS)
    texts = _without(given.texts, _SWEEPS)
    configuration = given.configuration()
    for name, value in base.items():
        with _at_line(given, name):
            configuration().replace({name: value})
    for name, value in tried.items():
        with _at_line(given, _TRIED + name):
            _check_tried(configuration, name, value)
    twice = [name for name in tried if name in base or name in texts]
    if twice:
        raise ConfigurationError(f"{twice[0]} is tried, and has one value too; wanted one of both")
    typed = {name: configuration.parse(name, text) for name, text in texts.items()}
    common = {name: [value] for name, value in {**base, **typed}.items()}
    return _options(given), {**common, **tried}


def _without(values: dict[str, Any], *beginnings: str) -> dict[str, Any]:
    return {name: each for name, each in values.items() if not name.startswith(beginnings)}


def _tried(given: Given) -> dict[str, Any]:
    """Return {"section.key": what is tried} of the tables of [try]."""
    found: dict[str, Any] = {}
    for name, table in given.values.items():
        section = name.removeprefix(_TRIED)
        if name == section:
            continue
        if not isinstance(table, dict):
            with _at_line(given, name):
                raise ConfigurationError(
                    f"{name} = {table!r:.100}; wanted a table [{name}] of settings that are tried"
                )
        found |= {f"{section}.{key}": value for key, value in table.items()}
    if not found:
        raise InputError(f"{given.path}: it has no [try.section] of settings to try", given.path)
    return found


def _check_tried(configuration: type[RunConfiguration], name: str, value) -> None:
    """Raise ConfigurationError unless a setting takes all that is tried for it."""
    configuration.key(name)
    for end in span_of(name, value).ends:
        configuration().replace({name: end})


def _options(given: Given) -> dict[str, Any]:
    """Return the options of the ensemble: [sweep] of the file, and of the command line."""
    own = {name: each for name, each in given.values.items() if name.startswith(_SWEEPS)}
    for name, value in own.items():
        with _at_line(given, name):
            OnlySweep().replace({name: value})
    own |= {
        name: OnlySweep.parse(name, text)
        for name, text in given.texts.items()
        if name.startswith(_SWEEPS)
    }
    settings = OnlySweep().replace(own)
    return dataclasses.asdict(settings.sweep)


@contextmanager
def _at_line(given: Given, name: str) -> Iterator[None]:
    """Name the line of the file in what is said of one of its settings."""
    line = line_of(Path(str(given.path)), name)
    with named(given.path if line is None else f"{given.path}:{line}"):
        yield
