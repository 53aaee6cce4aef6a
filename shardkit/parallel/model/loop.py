"""The loop of a run: its steps, what is due after each, and the vote that may end it.

    batch --> vote --> step --> callbacks --> due: report? validate? save? --> the next batch
                |                                       |
                '--> StopVoted: all ranks leave         '--> patience, callbacks
                     before the same step

A run of `shardkit train` (train/loop.py) and an optimize() (optimizing.py) are courses of it.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from ...comm.failure.ballot import Ballot
from ...errors import StopVoted
from .callback import Callback
from .patience import Patience
from .sharded_model import ShardedModel, parts_of


class Course(Protocol):
    """The steps of a run, and what is due between them. Methods are collective."""

    @property
    def is_over(self) -> bool:
        """Return True where no step is left. No communication."""

    def step(self) -> float:
        """Take the next step; return its loss. Errors: StopVoted, on all ranks."""

    def after_step(self, loss: float) -> None:
        """Do what is due after a step."""


class RunLoop:
    """The loop of one run.

    patience    counts validations, and ends the run when it is over
    questions   of the ballot before each step, beside it: {name: function () -> bool}
    """

    def __init__(
        self,
        model: ShardedModel,
        callbacks: Callback,
        patience: Patience,
        **questions: Callable[[], bool],
    ):
        self._model, self._callbacks, self.patience = model, callbacks, patience
        self._ballot = Ballot(**questions, patience=patience.is_over)
        self.train_loss: float | None = None  # of the last step
        self.validation_loss: float | None = None  # of the last validation

    def go(self, course: Course) -> StopVoted | None:
        """Take the steps that are left; return the vote that ended them before. Collective."""
        with parts_of(self._model).engine.voting(self._ballot):
            while not course.is_over:
                try:
                    self.train_loss = course.step()
                except StopVoted as vote:
                    return vote
                self._callbacks.after_step(self._model.step_number, self.train_loss)
                course.after_step(self.train_loss)
        return None

    def go_on_after(self, losses: Iterable[float]) -> None:
        """Count the validations before this loop, of a run that goes on."""
        for loss in losses:
            self.patience.note(loss)

    def judge(self, loss: float, values: dict[str, float]) -> None:
        """Count a validation, and tell of what it measured."""
        self.validation_loss = loss
        self.patience.note(loss)
        self._callbacks.after_validation(self._model.step_number, values)
