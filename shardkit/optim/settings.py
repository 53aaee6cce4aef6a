"""The section `optimizer`, and the rule that it describes."""

from dataclasses import dataclass, fields

from ..errors import ConfigurationError
from ..settings import fixed, setting
from .average import EMA
from .groups import ParameterGroup
from .rules import RULES
from .schedules import SCHEDULES

_OTHER_RATES = "the learning rate of each step is that of the new schedule"
_OTHER_RULE = "the rule goes on with it, on the state that is there"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The update rule and its learning rate."""

    name: str = fixed(
        "its checkpoints hold the state of that rule", "adamw", "update rule", among=RULES
    )
    learning_rate: float = setting(
        3e-3,
        "highest learning rate, after the warm-up",
        above=0.0,
        is_common=True,
        at_resume=_OTHER_RATES,
    )
    warmup_steps: int = setting(
        20, "steps of linear warm-up", "steps", minimum=0, at_resume=_OTHER_RATES
    )
    decay: str = setting(
        "cosine",
        "how the learning rate falls after the warm-up",
        among=SCHEDULES,
        at_resume=_OTHER_RATES,
    )
    decay_part: float | None = setting(
        None,
        "part of decay_steps, at their end, in which wsd falls; none: 0.2",
        above=0.0,
        maximum=1.0,
        at_resume=_OTHER_RATES,
    )
    decay_steps: int | None = setting(
        None,
        "step at which the learning rate reaches its floor; none: run.steps of the first start",
        "steps",
        minimum=1,
        at_resume=_OTHER_RATES,
    )
    floor: float = setting(
        0.1,
        "last learning rate as a part of the highest",
        minimum=0.0,
        maximum=1.0,
        at_resume=_OTHER_RATES,
    )
    weight_decay: float = setting(
        0.01, "weight decay; decoupled for adamw", minimum=0.0, at_resume=_OTHER_RULE
    )
    decayed: str = setting(
        "matrices",
        "what decays: all parameters, or those of two dims and more, but no norms and biases",
        among=("matrices", "all"),
        at_resume=_OTHER_RULE,
    )
    momentum: float = setting(
        0.9, "beta of the momentum rule", minimum=0.0, below=1.0, at_resume=_OTHER_RULE
    )
    beta1: float = setting(
        0.9, "beta1 of adam, adamw and lion", minimum=0.0, below=1.0, at_resume=_OTHER_RULE
    )
    beta2: float = setting(
        0.95, "beta2 of adam, adamw and lion", minimum=0.0, below=1.0, at_resume=_OTHER_RULE
    )
    ema_decay: float | None = setting(
        None,
        "decay of a moving average of the weights, kept for evaluate --averaged; none: no average",
        above=0.0,
        below=1.0,
        at_resume="the average goes on with it, or begins or ends with the weights as they are",
    )
    max_gradient_norm: float | None = setting(
        1.0,
        "the gradient is scaled down to this norm; none: never",
        above=0.0,
        at_resume="gradients of the steps from here on are scaled by it",
    )

    def groups(self, model) -> tuple[ParameterGroup, ...]:
        """Return the groups of a model's parameters for which the rule is another."""
        parameters = model.named_parameters().items()
        spared = [name for name, parameter in parameters if parameter.ndim < 2]
        if self.decayed == "all" or not self.weight_decay or not spared:
            return ()
        return (ParameterGroup(*spared, weight_decay=0.0),)

    def rule(self):
        """Return the rule with its learning-rate schedule.

        Errors: ConfigurationError on a decay_part that the schedule does not take.
        """
        schedule = SCHEDULES[self.decay]
        own = {} if self.decay_part is None else {"decay_part": self.decay_part}
        if own.keys() - {each.name for each in fields(schedule)}:
            raise ConfigurationError(
                f"optimizer.decay_part = {self.decay_part} goes with optimizer.decay = 'wsd', not "
                f"with {self.decay!r}; leave it out"
            )
        rate = schedule.of_settings(
            self.learning_rate, self.warmup_steps, self.decay_steps or 0, self.floor, **own
        )
        cls = RULES[self.name]
        rule = cls(lr=rate, **{name: getattr(self, key) for name, key in cls.settings.items()})
        return rule if self.ema_decay is None else EMA(rule, self.ema_decay)
