"""What a run whose samples are a stream does after each step, for the other side."""

from typing import Any

from ..parallel.model.callback import Callback


class CouplingCallback(Callback):
    """Publish the model, send step and loss, and let checkpoints say how far the stream was read.

    Parameters
    ----------
    coupled
        The Coupled of this rank.
    publish_every
        Steps between two models for predict(); 0: none.

    Notes
    -----
    It stands behind callbacks that publish by themselves: from its after_step on, a solver rank
    that waits for a first model without which it puts nothing is refused.
    """

    on_all_ranks = True

    def __init__(self, coupled: Any, publish_every: int) -> None:
        self._coupled, self._publish_every = coupled, publish_every
        self._run: Any = None

    def at_start(self, run: Any) -> None:
        self._run = run
        self._coupled.go_on_from(run.model)

    def after_step(self, step: int, loss: float) -> None:
        model, position = self._run.model, self._run.stream.position
        self._coupled.steer(step=step, loss=loss)
        if self._publish_every and step % self._publish_every == 0:
            self._coupled.publish(model)
        self._coupled.note_in(model, position.of_step(step))  # trained, and published
