"""The settings of an ensemble, and what it is made of, checked before its first trial.

[sweep] of a file of `shardkit sweep`, and the arguments of sk.Ensemble: its folder and groups,
which trials there are, what becomes of them.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

from ..errors import ConfigurationError, MeshError
from ..settings import Sections, setting
from ..task.load import load_task
from ..task.task import Task
from ..train.settings import Run, configuration_of, first_settings
from .record import SweepRecord
from .space import Space, storable
from .trials import Trial


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Which trials there are, where they run, and which of them go on."""

    folder: str = setting(
        "runs/sweep",
        "folder of the ensemble: sweep.h5, and a run folder for each trial",
        is_common=True,
        is_place=True,
        holds=bool,
        wanted="a path, such as runs/a",
    )
    groups: int = setting(
        1, "groups of ranks, each of which trains a trial at a time", minimum=1, is_common=True
    )
    trials: int | None = setting(
        None, "trials that are drawn; none: every combination of the lists", minimum=1
    )
    seed: int = setting(0, "seed of what is drawn", minimum=0)
    compare_at: tuple[int, ...] = setting(
        (),
        "steps at which trials are compared by their last validation, ascending; none: all go on",
        "steps",
        minimum=1,
    )
    keep: float = setting(
        0.5, "share of the trials that go on after a comparison", above=0.0, maximum=1.0
    )
    exchange: bool = setting(
        False,
        "the others go on too, each from the weights and the optimizer state of one that is kept",
    )
    sampler: str | None = setting(
        None, "class of optuna.samplers, such as TPESampler, that draws; none: independent draws"
    )
    pruner: str | None = setting(
        None, "class of optuna.pruners, such as MedianPruner, that decides who goes on; none: keep"
    )
    retry: bool = setting(False, "run trials again that have failed before")


@dataclass(frozen=True)
class OnlySweep(Sections):
    """The section [sweep] of a file."""

    sweep: SweepSettings = SweepSettings()


def sweep_of(options: dict[str, Any]) -> SweepSettings:
    """Return the settings of an ensemble. Errors: ConfigurationError unless they go together."""
    named = {f"sweep.{name}": value for name, value in options.items()}
    sweep = OnlySweep().replace(named).sweep
    _check_together(sweep)
    return sweep


def _check_together(sweep: SweepSettings) -> None:
    steps, asks = sweep.compare_at, sweep.sampler or sweep.pruner
    wrong = {
        f"compare_at = {list(steps)}; wanted ascending steps": list(steps) != sorted(set(steps)),
        "exchange needs compare_at, the steps at which trials are exchanged": sweep.exchange
        and not steps,
        "exchange and Optuna's sampler or pruner cannot go together; leave one out": sweep.exchange
        and asks,
        "pruner needs compare_at, the steps at which it is asked": sweep.pruner and not steps,
        "sampler draws while trials are compared, so compare_at wants a pruner": sweep.sampler
        and steps
        and not sweep.pruner,
        "sampler needs trials, how many to draw": sweep.sampler and not sweep.trials,
    }
    for text, is_so in wrong.items():
        if is_so:
            raise ConfigurationError(text)


def check_groups(num_ranks: int, groups: int) -> None:
    """Raise MeshError unless the ranks make so many groups of one size."""
    if num_ranks % groups:
        fits = [each for each in range(1, num_ranks + 1) if num_ranks % each == 0]
        raise MeshError(
            f"{num_ranks} ranks in {groups} groups are {num_ranks / groups:.3g} ranks each; wanted "
            f"groups of one size, so that no trial depends on its group: set groups to one of "
            f"{', '.join(map(str, fits))}, or start {groups * -(-num_ranks // groups)} ranks"
        )


def check_common(trials: list[Trial]) -> None:
    """Raise ConfigurationError if trials have folders of their own, or are of several tasks."""
    if any("run.folder" in trial.settings for trial in trials):
        raise ConfigurationError("run.folder of a trial is in the ensemble's folder; leave it out")
    tasks = dict.fromkeys(trial.settings.get("run.task") for trial in trials)
    if len(tasks) > 1:
        raise ConfigurationError(
            f"run.task of trials = {list(tasks)}; wanted one task for all, or an ensemble of each"
        )


def check_trial(task: str | type[Task], trial: Trial, compare_at: tuple[int, ...]) -> None:
    """Raise ConfigurationError, with the number, if a task does not take settings of a trial, or if
    that cannot be compared at these steps.
    """
    try:
        configuration = configuration_of(load_task(task) if isinstance(task, str) else task)
        run = first_settings(configuration, trial.settings).run
        known = compare_at if run.epochs is None else ()  # of epochs, the data says how many steps
        for step in (None, *known):
            check_run(run, step)
    except ConfigurationError as error:
        raise ConfigurationError(f"trial {trial.number}: {error}") from None


def check_run(run: Run, until: int | None) -> None:
    """Raise ConfigurationError if a run cannot be a trial that is compared at this step."""
    if run.elastic:
        raise ConfigurationError(
            "run.elastic of a trial, whose group cannot go on without some of its ranks; leave it "
            "out: start the ensemble again, which goes on"
        )
    if until is not None and (until >= run.steps or until % run.validate_every):
        raise ConfigurationError(
            f"compare_at has step {until} of run.steps = {run.steps}, with a validation each "
            f"run.validate_every = {run.validate_every}; wanted steps of validations before the end"
        )


def first_trials(settings, space: Space | None, sweep: SweepSettings) -> list[Trial]:
    """Return the trials that are known from the start: all, unless Optuna draws them.

    Errors: ConfigurationError.
    """
    if space is None:
        if sweep.trials is not None or sweep.sampler or sweep.pruner:
            raise ConfigurationError(
                "trials, sampler and pruner go with a table of lists and ranges; wanted that as "
                "settings, or leave them out: the trials are listed"
            )
        found = [_stored(each) for each in settings]
    elif sweep.sampler is not None:
        return []
    elif sweep.trials is None:
        found = space.grid()
    else:
        found = [space.draw(sweep.seed, number) for number in range(sweep.trials)]
    if not found:
        raise ConfigurationError("settings has no trials; wanted one or more")
    kept = {"run.keep_every": gcd(*sweep.compare_at)} if sweep.exchange else {}
    return [Trial(number, {**kept, **each}) for number, each in enumerate(found)]


def _stored(settings) -> dict[str, Any]:
    if not isinstance(settings, dict):
        raise ConfigurationError(
            f"settings of a trial = {settings!r:.100}; wanted a table {{'section.key': value}}"
        )
    return {name: storable(name, value) for name, value in settings.items()}


def check_same(found: SweepRecord, about: dict, first: list[Trial], sweep: SweepSettings) -> None:
    """Raise ConfigurationError unless a record is of this ensemble."""
    differ = [
        f"{name} = {about[name]}, {found.about.get(name)} before"
        for name in about
        if found.about.get(name) != about[name]
    ]
    differ += [
        f"trial {old.number} has settings {new.settings}, {old.settings} before"
        for old, new in zip(found.trials, first)
        if old.settings != new.settings
    ]
    num_asked = sweep.trials if sweep.sampler else len(first)
    if len(found.trials) > (num_asked or 0):
        differ.append(f"{num_asked} trials, {len(found.trials)} before")
    if differ:
        raise ConfigurationError(
            f"{sweep.folder} holds another ensemble: {differ[0]}; choose another folder, or "
            "begin as before (more trials may be added)"
        )
