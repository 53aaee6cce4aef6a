"""Patience: how long a run waits for a better validation before it ends early.

    loss     3.0   2.8   2.4   2.3   2.5       minimum_improvement = 0.5, patience = 2
    best     3.0         2.4                   what the next ones are compared with
    waited    0     1     0     1     2        over

Keras and Lightning call the two patience and min_delta.
"""

from collections.abc import Iterable
from math import inf


class Patience:
    """A limit on the validations in a row without improvement.

    patience              validations; None: endless
    losses                of the validations so far
    minimum_improvement   a loss improves the best before if it is lower by more than this; NaN
                          never does
    """

    def __init__(
        self, patience: int | None, losses: Iterable[float] = (), minimum_improvement: float = 0.0
    ):
        self.limit, self._minimum = patience, minimum_improvement
        self._best = inf
        self.waited = 0  # validations since the last that improved
        for loss in losses:
            self.note(loss)

    def note(self, loss: float) -> None:
        """Record a validation."""
        improves = loss < self._best - self._minimum
        self._best, self.waited = (loss, 0) if improves else (self._best, self.waited + 1)

    def is_over(self) -> bool:
        """Return True if the run should end."""
        return self.limit is not None and self.waited >= self.limit

    def __str__(self) -> str:
        margin = f" by more than {self._minimum:g}" if self._minimum else ""
        return f"{self.limit} validations without a lower loss{margin}"
