"""Who goes on: trials are compared at the same steps, by rules that only see what is recorded.

                 step 100        step 300         end
    Halving      8 of them  -->  4 of them  -->  2      the others are stopped
    Exchange     8          -->  8          -->  8      the worse go on with the state of the better

A comparison waits until all its trials have come to its step, so that it does not depend on the
number of groups, on their speed, or on where an ensemble was killed.
Source: arXiv 1502.07943, Non-stochastic best arm identification (successive halving); arXiv
1711.09846, Population based training (exchange).
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from .trials import STOPPED, WAITING, Trial


class Judge(Protocol):
    """Decides who goes on."""

    def until(self, trial: Trial, trials: list[Trial]) -> int | None:
        """Return the step up to which a trial may run now; None: to its end."""

    def settle(self, trials: list[Trial]) -> list[Trial]:
        """Return the trials after all comparisons that can be made now."""


@dataclass(frozen=True)
class Halving:
    """The best go on, a share of those that have come so far.

    steps   of the comparisons, ascending
    """

    steps: tuple[int, ...]
    share: float

    def until(self, trial: Trial, trials: list[Trial]) -> int | None:
        """Return the first step at which not all are compared yet."""
        return next((step for step in self.steps if not self._is_made(step, trials)), None)

    def settle(self, trials: list[Trial]) -> list[Trial]:
        """Stop the worse ones at each step that all have reached."""
        for step in self.steps:
            if self._is_made(step, trials):
                continue
            if any(trial.status == WAITING and trial.step < step for trial in trials):
                break
            trials = self._compared(step, trials)
        return trials

    def _is_made(self, step: int, trials: list[Trial]) -> bool:
        """Return True if none waits at this step or before it."""
        waiting = (trial for trial in trials if trial.status == WAITING)
        return all(trial.source_at(step) is not None for trial in waiting)

    def _compared(self, step: int, trials: list[Trial]) -> list[Trial]:
        waiting = (trial for trial in trials if trial.status == WAITING)
        ranked = sorted(waiting, key=lambda trial: trial.rank)
        kept = ranked[: max(1, ceil(self.share * len(ranked) - 1e-9))]
        after = {trial.number: trial.passed(step, trial.number) for trial in kept}
        for place, trial in enumerate(ranked[len(kept) :]):
            better = kept[place % len(kept)]
            after[trial.number] = self._worse(step, trial, better)
        return [after.get(trial.number, trial) for trial in trials]

    def _worse(self, step: int, trial: Trial, better: Trial) -> Trial:
        return replace(trial, status=STOPPED)


@dataclass(frozen=True)
class Exchange(Halving):
    """All go on: each of the worse with the state of one of the better, in their order."""

    def _worse(self, step: int, trial: Trial, better: Trial) -> Trial:
        return trial.passed(step, better.number)
