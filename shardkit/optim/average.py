"""EMA: an exponential moving average of the weights, beside any rule.

    sk.EMA(sk.AdamW(lr=1e-3), decay=0.999)

    step        1                 2
    weights     w0 --rule--> w1   w1 --rule--> w2
    average     w0 ---------> a1  a1 ---------> a2      a += (1 - decay) * (w - a)

The average is one more array of the rule's state: each rank keeps it for the elements that it
updates, nothing is sent for it, and checkpoints reshard it. Under half floats it averages the
master weights. Source: Polyak and Juditsky (1992), as used for instance in arXiv 2006.11239.
"""

from dataclasses import dataclass

from ..annotations import Array
from ..arguments import is_number, require
from ..array.reference.chunks import spans
from ..refusal import check_made
from .late import RatedRule

AVERAGE = "average"  # the state that holds averaged weights, also in checkpoints


@dataclass(frozen=True)
class EMA:
    """A rule, and the moving average of the weights that it makes.

    Parameters
    ----------
    rule
        Any rule with rate(): SGD, Momentum, Adam, AdamW or one's own, that keeps no average.
    decay
        Of the average, above 0 and below 1: 0.999 looks back about 1000 steps.
    """

    rule: RatedRule
    decay: float = 0.999

    def __post_init__(self) -> None:
        check_made(self, self._check)

    def _check(self):
        require(
            isinstance(self.rule, RatedRule) and AVERAGE not in self.rule.state_names,
            "EMA with rule",
            self.rule,
            "a rule with update() and rate() that keeps no average itself",
        )
        is_decay = is_number(self.decay, above=0, below=1)
        require(is_decay, "EMA with decay", self.decay, "a number above 0 and below 1")

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the rule's state, and of the average."""
        return (*self.rule.state_names, AVERAGE)

    def rate(self, step: int, override: float | None = None) -> float:
        """Return the rule's learning rate of step number `step`.

        Parameters
        ----------
        step
            Counted from 1.
        override
            Replaces the rule's own rate; None: nothing does.
        """
        return self.rule.rate(step, override)

    def update(
        self,
        parameters: Array,
        gradients: Array,
        state: dict[str, Array],
        step: int,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
    ) -> None:
        """Apply the rule, and let the average follow the new weights, in place."""
        average = state[AVERAGE]
        if step == 1:
            average[...] = parameters
        self.rule.update(parameters, gradients, state, step, learning_rate, gradient_scale)
        weight = 1.0 - self.decay
        for span in spans(average):
            average[span] += weight * (parameters[span] - average[span])
