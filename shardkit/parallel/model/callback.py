"""Callbacks: what others do at the points of a run where something has happened.

    class Print(sk.Callback):
        def after_validation(self, step, values):
            print(step, values["validation_loss"])

    sk.Training(..., callbacks=[Print()])         # or optimizer.optimize(..., callbacks=[Print()])

The lines and the curve of a run are callbacks themselves (train/progress.py).
"""

from collections.abc import Iterable
from typing import Any


class Callback:
    """What may be done at the points of a run; each method does nothing unless it is overridden.

    Attributes
    ----------
    on_all_ranks
        False: rank 0 alone calls it. True: every rank does, at the same points but for
        after_checkpoint, which a rank calls when it notices that the files are there.
    values
        {name: number}: validation_loss, train_loss, learning_rate, metrics, ...

    Notes
    -----
    A method that raises on one rank ends the job. None may communicate, but at_start, after_step,
    after_report, after_validation and at_end where on_all_ranks is True.
    """

    on_all_ranks = False

    def at_start(self, run: Any) -> None:
        """Before the first step. run.model and run.folder are there; in a training also run.task
        and run.settings.

        Parameters
        ----------
        run
            An object with model and folder.
        """

    def after_step(self, step: int, loss: float) -> None:
        """After each step; the loss is the mean of its global batch before the step, or NaN.

        Parameters
        ----------
        step, loss
            Steps taken, and in the unit of the loss.
        """

    def after_report(self, step: int, values: dict[str, Any]) -> None:
        """After each run.report_every steps.

        Parameters
        ----------
        step, values
            Steps taken, and {name: number}.
        """

    def after_validation(self, step: int, values: dict[str, Any]) -> None:
        """After each validation.

        Parameters
        ----------
        step, values
            Steps taken, and {name: number}.
        """

    def after_checkpoint(self, step: int, folder: str) -> None:
        """After a checkpoint is on disk and valid.

        Parameters
        ----------
        step, folder
            Of the checkpoint.
        """

    def at_end(self, result: Any) -> None:
        """After the last step, of a run that was interrupted too; result is a RunResult.

        Parameters
        ----------
        result
            What the run returns.
        """


class Callbacks(Callback):
    """Several callbacks as one: those that this rank calls, in their order."""

    on_all_ranks = True

    def __init__(self, callbacks: Iterable[Callback], is_first: bool):
        self._own = [each for each in callbacks if is_first or each.on_all_ranks]

    def at_start(self, run):
        for each in self._own:
            each.at_start(run)

    def after_step(self, step, loss):
        for each in self._own:
            each.after_step(step, loss)

    def after_report(self, step, values):
        for each in self._own:
            each.after_report(step, values)

    def after_validation(self, step, values):
        for each in self._own:
            each.after_validation(step, values)

    def after_checkpoint(self, step, folder):
        for each in self._own:
            each.after_checkpoint(step, folder)

    def at_end(self, result):
        for each in self._own:
            each.at_end(result)
