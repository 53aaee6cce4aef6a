"""Learning-rate schedules: frozen functions of the step number, counted from 0.

    rule = AdamW(lr=schedules.Cosine(1e-3, warmup_steps=100, decay_steps=1000))

All grow linearly from peak / warmup_steps to peak during the warm-up. Constant stays there; the
others fall, reach peak * floor at step `decay_steps`, and stay there. Linear and Cosine fall from
step `warmup_steps` on, WarmupStableDecay in the last part of the steps alone.
Being pure functions, they have no state that a resumed run would need.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arguments import is_integer, is_number, require
from ..errors import ConfigurationError
from ..refusal import check_made

__all__ = ["Constant", "Cosine", "Linear", "SCHEDULES", "Schedule", "WarmupStableDecay"]

SCHEDULES: dict[str, type["Schedule"]] = {}  # by the names that settings use


def _schedule(name: str):
    """Enter a class of schedules into SCHEDULES under this name."""

    def enter(cls):
        SCHEDULES[name] = cls
        return cls

    return enter


@dataclass(frozen=True)
class Schedule(ABC):
    """A warm-up to `peak`, and what a subclass lets the rate do afterwards.

    Parameters
    ----------
    peak
        The rate at the end of the warm-up, at least 0.
    warmup_steps
        In which the rate rises in a straight line to the peak.
    """

    refusal: ClassVar[ConfigurationError | None] = None  # see check_made
    peak: float
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_made(self, self.check)

    def check(self) -> None:
        """Raise ConfigurationError on a number that the schedule does not take."""
        require(is_number(self.peak, at_least=0), "peak", self.peak, "a finite number, at least 0")
        require(
            is_integer(self.warmup_steps, at_least=0),
            "warmup_steps",
            self.warmup_steps,
            "an integer, at least 0",
        )

    @classmethod
    def of_settings(
        cls, peak: float, warmup_steps: int, decay_steps: int, floor: float, **own: float
    ) -> Self:
        """Return the schedule for the section `optimizer` of the settings.

        Parameters
        ----------
        own
            What one kind of schedule takes alone.

        Notes
        -----
        Where the warm-up is not over by decay_steps, the floor follows it directly.
        """
        arguments: dict[str, Any] = {
            "decay_steps": max(decay_steps, warmup_steps + 1),
            "floor": floor,
        }
        return cls(peak, warmup_steps, **arguments, **own)

    def __call__(self, step: int) -> float:
        if self.refusal is not None:
            raise self.refusal
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self._after_warmup(step)

    @abstractmethod
    def _after_warmup(self, step: int) -> float:
        """Return the rate of a step after the warm-up."""


@_schedule("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """`peak` after the warm-up."""

    @classmethod
    def of_settings(
        cls, peak: float, warmup_steps: int, decay_steps: int, floor: float, **own: float
    ) -> Self:
        return cls(peak, warmup_steps)

    def _after_warmup(self, step):
        return self.peak


@_schedule("linear")
@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line down to peak * floor.

    Parameters
    ----------
    decay_steps
        Number of the step, counted from 0, at which the floor is reached; above warmup_steps.
    floor
        The last rate as a share of the peak.
    """

    decay_steps: int = 0  # must be given: check() refuses the default
    floor: float = 0.0

    def check(self) -> None:
        super().check()
        require(
            is_integer(self.decay_steps, at_least=self.warmup_steps + 1),
            "decay_steps",
            self.decay_steps,
            "the number of the step where the rate has come down, counted from 0: an integer "
            f"above warmup_steps = {self.warmup_steps}",
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
        """Return how much of the fall is left after this part of the time, from 1 to 0."""
        return 1.0 - part


@_schedule("cosine")
@dataclass(frozen=True)
class Cosine(Linear):
    """Half a cosine down to peak * floor (arXiv 1608.03983, without restarts).

    Equal to torch.optim.lr_scheduler.CosineAnnealingLR with T_max = decay_steps and
    eta_min = peak * floor, up to its first minimum.

    Examples
    --------
    >>> rate = sk.schedules.Cosine(1.0, warmup_steps=2, decay_steps=6)
    >>> [round(rate(step), 2) for step in range(7)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0]
    """

    def _shape(self, part):
        return 0.5 * (1.0 + math.cos(math.pi * part))


@_schedule("wsd")
@dataclass(frozen=True)
class WarmupStableDecay(Linear):
    """`peak` for most of the steps, then a straight line down to peak * floor.

    Parameters
    ----------
    decay_part
        Of decay_steps that the fall takes, above 0 and at most 1; it begins after the warm-up at
        the earliest.

    Notes
    -----
    To train longer, go on from a checkpoint before the fall, with another decay_steps: the rates
    until then are the same.

    References
    ----------
    MiniCPM (arXiv 2404.06395).
    """

    decay_part: float = 0.2

    def check(self) -> None:
        super().check()
        require(
            is_number(self.decay_part, above=0) and self.decay_part <= 1,
            "decay_part",
            self.decay_part,
            "the part of decay_steps in which the rate falls, above 0 and at most 1",
        )

    @property
    def first_falling_step(self) -> int:
        """The last step with the whole rate; it falls from the next one on."""
        begin = round(self.decay_steps * (1 - self.decay_part))
        return min(max(begin, self.warmup_steps), self.decay_steps - 1)

    def _after_warmup(self, step):
        begin = self.first_falling_step
        part = (step - begin) / (self.decay_steps - begin)
        left = self._shape(min(max(part, 0.0), 1.0))
        return self.peak * (self.floor + (1 - self.floor) * left)
