"""What is known of the trials of an ensemble: values, which its file holds.

waiting --order--> (runs) --report--> waiting for a comparison, or finished, failed, stopped
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy

WAITING = "waiting"
FINISHED = "finished"
FAILED = "failed"
STOPPED = "stopped"
Curves = dict[str, numpy.ndarray]  # {name: [[step, value], ...] float64}


@dataclass(frozen=True)
class Trial:
    """One training, as far as it has come.

    status   waiting: it has steps to go; finished; failed; stopped: others were better
    step     that it has reached, and that was recorded
    loss     of its last validation, of its lowest where run.patience is set; None: there is none
    losses   [[step, loss]] at the comparisons
    sources  [[step, trial]] whose weights it went on with
    error    what it failed with
    """

    number: int
    settings: dict[str, Any]
    status: str = WAITING
    step: int = 0
    loss: float | None = None
    losses: list = field(default_factory=list)
    sources: list = field(default_factory=list)
    error: str = ""

    @property
    def rank(self) -> tuple:
        """Sorts trials from the lowest loss on, those without one last."""
        return self.loss is None, self.loss or 0.0, self.number

    def source_at(self, step: int) -> int | None:
        """Return the trial whose state this one takes at a step; None: it has its own."""
        return next((source for at, source in self.sources if at == step), None)

    def passed(self, step: int, source: int) -> "Trial":
        """Return the trial after a comparison, from which it goes on with the state of `source`."""
        return replace(self, sources=[*self.sources, [step, source]])

    def after(self, report: "Report", until: int | None) -> "Trial":
        """Return the trial after a report about it.

        until   the step of the next comparison
        """
        if report.error:
            return replace(self, status=FAILED, error=report.error)
        is_compared = report.step == until and not report.is_over
        status = WAITING if is_compared else FINISHED
        losses = [*self.losses, [report.step, report.loss]] if is_compared else self.losses
        return replace(self, status=status, step=report.step, loss=report.loss, losses=losses)


@dataclass(frozen=True)
class Assignment:
    """What a group does next: this trial, up to a step, or to its end for None.

    source   (step, trial): at that step it takes the state of the other one
    """

    trial: Trial
    until: int | None
    source: tuple[int, int] | None = None


@dataclass(frozen=True)
class Report:
    """How an order went.

    step      that was reached
    is_over   the run has no steps left, or its patience is over
    is_told   it was told to stop before: a signal, or the end of the job's time
    """

    number: int
    step: int = 0
    loss: float | None = None
    is_over: bool = False
    is_told: bool = False
    error: str = ""
    curves: Curves = field(default_factory=dict)
