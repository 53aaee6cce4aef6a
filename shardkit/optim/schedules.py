"""Learning rates as frozen functions of the step number, counted from 0.

All grow linearly from peak / warmup_steps to peak over the warm-up, then go from peak to peak * floor until `decay_steps`
and stay there. Pure functions: a resumed run needs no state of its own.
"""
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """`peak` after the warm-up."""

    peak: float
    warmup_steps: int = 0
    decay_steps: int = 0
    floor: float = 1.0

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        part = (step - self.warmup_steps) / max(1, self.decay_steps - self.warmup_steps)
        return self.peak * (self.floor + (1 - self.floor) * self._shape(min(part, 1.0)))

    def _shape(self, part: float) -> float:
        """What is left of the way down at this part of it, in [0, 1]."""
        return 1.0


@dataclass(frozen=True)
class Linear(Constant):
    """Straight down to the floor."""

    def _shape(self, part):
        return 1.0 - part


@dataclass(frozen=True)
class Cosine(Constant):
    """Half a cosine down to the floor (arXiv 1608.03983, without restarts)."""

    def _shape(self, part):
        return 0.5 * (1.0 + math.cos(math.pi * part))
