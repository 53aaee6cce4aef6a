"""Trials that Optuna draws, or ends early: the only file that imports it.

    study.ask() --> settings of a trial --> its steps --> report(), should_prune() --> tell()

A study is made anew from the trials that are recorded, so an ensemble that goes on asks on.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..public import LateModule
from .settings import SweepSettings
from .space import OneOf, Range, Space
from .trials import FINISHED, STOPPED, WAITING, Trial

if TYPE_CHECKING:
    import optuna
else:
    optuna = LateModule("optuna")


class Study:
    """A study of the trials of one ensemble, which decides as comparing.Judge does.

    Errors: ConfigurationError if Optuna is missing, or has no such sampler or pruner.
    """

    def __init__(self, sweep: SweepSettings, space: Space, trials: list[Trial]):
        _check_installed(sweep)
        self._steps, self._space = sweep.compare_at, space
        self._live: dict[int, Any] = {}  # the trials that optuna is not told the end of
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            sampler=_made("samplers", sweep.sampler or "RandomSampler", sweep.seed + len(trials)),
            pruner=_made("pruners", sweep.pruner or "NopPruner"),
        )
        for trial in trials:
            self._take(trial)

    def _take(self, trial: Trial) -> None:
        """Let the study know a trial that is recorded."""
        self._study.enqueue_trial(self._parameters(trial.settings))
        self._ask(trial.number)
        for step, loss in trial.losses:
            if loss is not None:
                self._live[trial.number].report(loss, step)
        self._tell(trial)

    def ask(self, number: int) -> dict[str, Any]:
        """Return the settings of one more trial."""
        asked = self._ask(number).params
        drawn = {name: self._value(name, asked[name]) for name in asked}
        return {**self._space.fixed, **drawn}

    def _ask(self, number: int):
        spans = self._space.spans.items()
        distributions = {name: _distribution(span) for name, span in spans}
        self._live[number] = self._study.ask(distributions)
        return self._live[number]

    def until(self, trial: Trial, trials: list[Trial]) -> int | None:
        """Return the next step at which the pruner is asked about a trial."""
        return next((step for step in self._steps if trial.source_at(step) is None), None)

    def settle(self, trials: list[Trial]) -> list[Trial]:
        """Return the trials, those stopped that the pruner ends."""
        settled = [self._judged(trial, trials) for trial in trials]
        for trial in settled:
            self._tell(trial)
        return settled

    def _judged(self, trial: Trial, trials: list[Trial]) -> Trial:
        step = self.until(trial, trials)
        if trial.status != WAITING or trial.step != step:
            return trial
        live = self._live[trial.number]
        if trial.loss is not None:
            live.report(trial.loss, step)
        if trial.loss is None or live.should_prune():
            return replace(trial, status=STOPPED)
        return trial.passed(step, trial.number)

    def _tell(self, trial: Trial) -> None:
        """Tell Optuna how a trial ended, once."""
        if trial.status == WAITING or trial.number not in self._live:
            return
        live, states = self._live.pop(trial.number), optuna.trial.TrialState
        if trial.status == FINISHED and trial.loss is not None:
            self._study.tell(live, trial.loss)
        else:
            self._study.tell(live, state=states.PRUNED if trial.status == STOPPED else states.FAIL)

    def _parameters(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return what Optuna calls the values: those of a list by their places."""
        spans = self._space.spans
        return {
            name: span.values.index(settings[name]) if isinstance(span, OneOf) else settings[name]
            for name, span in spans.items()
        }

    def _value(self, name: str, parameter):
        span = self._space.spans[name]
        return span.values[parameter] if isinstance(span, OneOf) else parameter


def _distribution(span: OneOf | Range):
    kinds = optuna.distributions
    if isinstance(span, OneOf):
        return kinds.CategoricalDistribution(range(len(span.values)))
    kind = kinds.IntDistribution if span.is_integer else kinds.FloatDistribution
    return kind(span.low, span.high, log=span.is_log)


def _check_installed(sweep: SweepSettings) -> None:
    what = next(name for name in ("sampler", "pruner") if getattr(sweep, name) is not None)
    try:
        optuna.imported
    except ImportError as error:
        raise ConfigurationError(
            f"{what} = {getattr(sweep, what)!r} needs Optuna ({error}); pip install optuna, or "
            f"leave {what} out: trials are then drawn independently, and compare_at with keep "
            "decides who goes on"
        ) from None


def _made(kind: str, name: str, seed: int | None = None):
    """Return a sampler or a pruner of this name. Errors: ConfigurationError."""
    room = getattr(optuna, kind)
    ending = kind[:-1].capitalize()
    known = sorted(name for name in room.__all__ if name.endswith(ending))
    if name not in known:
        raise ConfigurationError(f"{kind[:-1]} = {name!r}; wanted one of {', '.join(known)}")
    cls = getattr(room, name)
    try:
        return cls() if seed is None else cls(seed=seed)
    except (TypeError, ImportError) as error:
        raise ConfigurationError(
            f"{kind[:-1]} = {name!r} cannot be made: {error}; wanted one that needs nothing more"
        ) from None
