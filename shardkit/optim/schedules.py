"""Learning rates as frozen functions of the step number, counted from 0.

All grow linearly from peak / warmup_steps to peak over the warm-up. Constant stays there; the
others go down from step `warmup_steps` on, reach peak * floor at step `decay_steps`, and stay at
that. Pure functions: a resumed run needs no state of its own.
"""

import math
from dataclasses import dataclass

from ..arguments import is_integer, is_number, require


@dataclass(frozen=True)
class Constant:
    """`peak` after the warm-up."""

    peak: float
    warmup_steps: int = 0

    def __post_init__(self):
        require(is_number(self.peak, at_least=0), "peak", self.peak, "a finite number, at least 0")
        require(
            is_integer(self.warmup_steps, at_least=0),
            "warmup_steps",
            self.warmup_steps,
            "an integer, at least 0",
        )

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self._after_warmup(step)

    def _after_warmup(self, step: int) -> float:
        return self.peak


@dataclass(frozen=True)
class Linear(Constant):
    """Straight down to peak * floor, which is 0 unless `floor` says otherwise."""

    decay_steps: int = 0  # has no default that would do: see __post_init__
    floor: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        require(
            is_integer(self.decay_steps, at_least=self.warmup_steps + 1),
            "decay_steps",
            self.decay_steps,
            f"the number of the step where the rate has come down, counted from 0: an integer above warmup_steps = "
            f"{self.warmup_steps}",
        )
        require(
            is_number(self.floor, at_least=0) and self.floor <= 1,
            "floor",
            self.floor,
            "the last rate as a part of the peak, from 0 to 1",
        )

    def _after_warmup(self, step):
        part = (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        return self.peak * (self.floor + (1 - self.floor) * self._shape(min(part, 1.0)))

    def _shape(self, part: float) -> float:
        """What is left of the way down at this part of it, in [0, 1]."""
        return 1.0 - part


@dataclass(frozen=True)
class Cosine(Linear):
    """Half a cosine down to peak * floor, which is 0 unless `floor` says otherwise (arXiv
    1608.03983, without restarts).

    As torch.optim.lr_scheduler.CosineAnnealingLR with T_max = decay_steps and eta_min = peak *
    floor until its first end.
    """

    def _shape(self, part):
        return 0.5 * (1.0 + math.cos(math.pi * part))
