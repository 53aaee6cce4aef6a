"""A whole run with its failures: how often to save, what share of the time goes into steps, and
what it costs.

    compute | save | compute | save | comp x restart | compute | save ...
                                     ^ lost          ^ goes on from the last checkpoint

Failures come at random, independent of what was before (exponential times between them).

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22 (2006); the first-order interval is J. W. Young's (1974).
"""

from dataclasses import dataclass
from math import exp, expm1, sqrt

from ..arguments import is_number
from ..errors import ConfigurationError


@dataclass(frozen=True)
class Interruptions:
    """What stands in the way of a run's steps.

    failure_seconds      between two failures of the job, on average
    checkpoint_seconds   that the steps wait for a checkpoint
    restart_seconds      from a failure until steps go on

    Errors: ConfigurationError on a figure that is not finite, or negative, or no time between
    failures or for a checkpoint.
    """

    failure_seconds: float
    checkpoint_seconds: float
    restart_seconds: float = 0.0

    def __post_init__(self):
        for name, least in (("failure", True), ("checkpoint", True), ("restart", False)):
            value = getattr(self, f"{name}_seconds")
            if not (is_number(value, above=0) if least else is_number(value, at_least=0)):
                wanted = "above 0" if least else "at least 0"
                raise ConfigurationError(
                    f"{name}_seconds = {value!r}; wanted a finite number, {wanted}"
                )

    def best_interval(self) -> float:
        """Return the seconds of steps between two checkpoints that lose the least (Daly)."""
        ratio = self.checkpoint_seconds / (2 * self.failure_seconds)
        if ratio >= 1:
            return self.failure_seconds
        first = sqrt(2 * self.checkpoint_seconds * self.failure_seconds)
        return first * (1 + sqrt(ratio) / 3 + ratio / 9) - self.checkpoint_seconds

    def useful_share(self, interval: float) -> float:
        """Return the expected share of the time that goes into steps which count (Daly).

        interval   seconds of steps between two checkpoints, above 0
        """
        mean = self.failure_seconds
        parts = (interval + self.checkpoint_seconds) / mean
        if parts > 700:  # the exponential would be above all floats: no checkpoint is ever reached
            return 0.0
        return interval / (mean * exp(min(self.restart_seconds / mean, 700)) * expm1(parts))


def interruptions_of(cluster, devices: int, checkpoint_seconds: float) -> Interruptions | None:
    """Return those of a job on this hardware; None if its file does not say how often it fails, or
    how fast checkpoints are written.
    """
    if not cluster.failure_hours or not checkpoint_seconds:
        return None
    between = 3600 * cluster.failure_hours / devices
    return Interruptions(between, checkpoint_seconds, cluster.restart_seconds)
