"""What a group of ranks does: it takes an order, trains, reports, until there is no order left.

    leader     send(report), look() ----> all ranks of the group: order --> sk.Training --> report

A trial trains on a communicator of its own, which what a failed one has left in it does not
outlive.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import agree, collectively, describe_error
from ..comm.failure.signals import StopRequest, StopSignals
from ..errors import CommunicationError, ConfigurationError, PeerError, ShardkitError
from ..parallel.model.callback import Callback
from ..parallel.model.sharded_model import ShardedModel
from ..parallel.step.shortage import hear_all
from ..train.folder import stored_places
from ..train.log import curves_of, read_metrics
from .desk import END, LeaderDesk, Line
from .record import trial_folder
from .settings import check_run
from .trials import Assignment, Report, Trial

_LOSS = "validation_loss"
_LONGEST_PAUSE_SECONDS = 0.2
Make = Callable[..., Any]  # (settings, folder=, backend=, callbacks=) -> sk.Training


class TrialPlace(Callback):
    """Where a trial is, and where it is to stop: the signals of the job, or the next comparison.

    At a step where trials are exchanged it takes the state of another one, unless it is past it.
    """

    on_all_ranks = True

    def __init__(self, order: Assignment, folder: Path, signals: StopRequest):
        self._order, self._folder = order, folder
        self._signals = signals
        self.step = 0
        self.model: ShardedModel | None = None  # from the start of the training on
        self.has_patience = False
        self._is_called = False

    @property
    def name(self) -> str | None:
        """What asks the trial to stop."""
        compared = f"comparison of trials at step {self._order.until}" if self.is_there else None
        return self._signals.name or compared

    @property
    def is_there(self) -> bool:
        """True at the step of the next comparison."""
        return self._order.until is not None and self.step >= self._order.until

    def check_called(self) -> None:
        """Raise ConfigurationError unless the training has called this, in the trial's folder."""
        if not self._is_called:
            raise ConfigurationError(
                "make left out the folder or the callbacks that it was given; wanted the "
                "sk.Training of a trial, made with them and the backend"
            )

    def is_raised(self) -> bool:
        """Return True once the trial is to stop."""
        return self.is_there or self._signals.is_raised()

    def is_urgent(self) -> bool:
        """Return True if little time is left then."""
        return self._signals.is_urgent()

    def at_start(self, run):
        """Note where the trial begins, after it has taken the state of another. Collective."""
        self.model = run.model
        self.step, source = run.model.step_number, self._order.source
        own = trial_folder(self._folder, self._order.trial.number)
        self._is_called = Path(run.folder).resolve() == own.resolve()
        self.check_called()
        check_run(run.settings.run, self._order.until)
        self.has_patience = run.settings.run.patience is not None
        if source is not None and source[0] == self.step:
            places = stored_places(trial_folder(self._folder, source[1]))
            run.model.load_model(places, checkpoint=self.step)

    def after_step(self, step, loss):
        """Note the step."""
        self.step = step


@dataclass(frozen=True)
class TrialGroup:
    """The ranks that train a trial at a time.

    leader   on its first rank: its end of the line to the desk, or the desk; None on the others
    make     how the training of a trial is made
    """

    backend: CommunicationBackend
    leader: Line | LeaderDesk | None
    make: Make
    folder: Path
    signals: StopSignals

    def work(self) -> None:
        """Train until there is no order left. Collective over the group."""
        report = Report(-1)
        while (order := self._next_order(report)) is not END:
            report = self._train(order)
        if isinstance(self.leader, Line):
            self.leader.send(END)
            self.leader.close()

    def _next_order(self, report: Report) -> Assignment | None:
        """Report, and return the next order, whenever it comes. Collective."""
        self._send(report)
        pause, is_told = 0.001, report.is_told
        while True:
            if not is_told and agree(self.backend, self.signals.is_raised()):
                is_told = True
                self._send(Report(-1, is_told=True))
            found = [] if self.leader is None else list(self.leader.look())
            found = self.backend.broadcast_object(found)
            if found:
                return found[0]
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _send(self, report: Report) -> None:
        if self.leader is not None:
            self.leader.send(report)

    def _train(self, order: Assignment) -> Report:
        """Follow an order; an error ends the trial and no more. Collective.

        Errors: those after which ranks are no longer in step, and what is no Exception.
        """
        fault = caught = None
        report = Report(order.trial.number)
        ranks = self.backend.split(0)
        assert ranks is not None
        place = TrialPlace(order, self.folder, self.signals)
        try:
            report = self._trained(place, order.trial, ranks)
        except Exception as error:
            if isinstance(error, CommunicationError) and not isinstance(error, PeerError):
                raise
            fault, caught = (isinstance(error, PeerError), describe_error(error)), error
        left = numpy.zeros(self.backend.world_size, numpy.uint8)
        if not hear_all(self.backend, left, is_patient=caught is None) and caught is not None:
            raise caught  # the others wait for this rank within the trial
        told = self.backend.all_gather_object((fault, place.model is None))
        faults = [each for each, _ in told if each is not None]
        if len(faults) in (0, ranks.world_size):  # else it is no longer known where the others are
            if not any(is_missing for _, is_missing in told):
                _close(place.model)
            ranks.close()
        return replace(report, error=min(faults)[1]) if faults else report

    def _trained(self, place: TrialPlace, trial: Trial, ranks: CommunicationBackend) -> Report:
        folder = trial_folder(self.folder, trial.number)
        with collectively(ranks):
            training = self.make(
                dict(trial.settings),
                folder=folder,
                backend=ranks,
                callbacks=[place, *([self.leader] if isinstance(self.leader, LeaderDesk) else [])],
            )
            folder.mkdir(parents=True, exist_ok=True)
        with open(os.devnull, "w") as nowhere:  # its lines are in its own logs
            result = training.run_among(place, nowhere)
        place.check_called()
        with collectively(ranks):
            records = [] if ranks.rank else read_metrics(folder / "metrics.jsonl")
        curves = {}
        for name, points in curves_of(records).items():
            last_of_steps = [*dict(points).items()]
            curves[name] = numpy.array(last_of_steps, numpy.float64)
        return Report(
            trial.number,
            result.steps,
            loss_of(records, place.has_patience),
            is_over=not result.is_interrupted,
            is_told=result.is_interrupted and not place.is_there,
            curves=curves,
        )


def _close(model) -> None:
    """Close the model of a trial; a checkpoint that could not be written is one of its errors."""
    try:
        model.close()
    except (ShardkitError, OSError):
        model.close()


def loss_of(records: list[dict], has_patience: bool) -> float | None:
    """Return the loss of the checkpoint that is taken: of the best, or of the last validation; None
    if that was NaN.
    """
    losses = [record[_LOSS] for record in records if _LOSS in record]
    if has_patience:
        return min((loss for loss in losses if loss is not None), default=None)
    return losses[-1] if losses else None
