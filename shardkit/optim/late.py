"""Rules whose state is younger than the run: a checkpoint is continued under another rule.

steps of the run     1  2  3  4  5  6
moments              .  .  .  .  1  2       since = 4: corrected for their bias as in steps 1 and 2
learning rate        1  2  3  4  5  6       goes on
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .rules import Rule


@runtime_checkable
class RatedRule(Rule, Protocol):
    """A rule whose learning rate does not depend on the age of its state."""

    def rate(self, step: int, override: float | None = None) -> float:
        """Return the learning rate of step number `step`, from 1 on, or `override` if given."""


@dataclass(frozen=True)
class LateRule:
    """A rule, on state that was zero after `since` steps."""

    rule: RatedRule
    since: int

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the rule's state."""
        return self.rule.state_names

    def update(self, parameters, gradients, state, step, learning_rate=None, gradient_scale=1.0):
        """Apply the rule by the age of its state and the learning rate of step number `step`."""
        self.rule.update(
            parameters,
            gradients,
            state,
            step - self.since,
            self.rule.rate(step, learning_rate),
            gradient_scale,
        )


def on_state_since(rule: Any, since: int) -> Rule:
    """Return the rule for state that was zero after `since` steps: itself if that is none."""
    return LateRule(rule, since) if since else rule
