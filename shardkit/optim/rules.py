"""Optimizer rules: frozen values that update a 1-D span of parameters in place.

A rule sees no names, no shapes and no ranks: whoever owns elements [start, stop) of the flat
parameters passes that span of parameters, gradients and state. Every rule works element by element,
so the result does not depend on how the parameters are cut.
"""

from dataclasses import dataclass
from typing import Callable, ClassVar, Protocol, runtime_checkable

from ..arguments import is_number, require
from ..array import kernels

LearningRate = float | Callable[[int], float]

_RATE = "a finite number, at least 0"


@runtime_checkable
class Rule(Protocol):
    """What the sharded models need of an optimizer."""

    state_names: ClassVar[
        tuple[str, ...]
    ]  # one zero-initialized array per name, as long as the span

    def update(
        self,
        parameters,
        gradients,
        state: dict,
        step: int,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
    ) -> None:
        """Apply step number `step` (the first is 1) to this span, in place.

        parameters, gradients  [n] same dtype     state  {name: [n] same dtype}
        learning_rate          overrides the rule's own
        gradient_scale         each gradient counts times this: the factor of clipping; gradients
                               are not written to
        """


def is_learning_rate(value) -> bool:
    """True for what a rule can multiply with: 0, which changes nothing, is one, as in
    torch.optim.
    """
    return is_number(value, at_least=0)


def _require_weight_decay(weight_decay) -> None:
    require(
        is_number(weight_decay, at_least=0),
        "weight_decay",
        weight_decay,
        "a finite number, at least 0",
    )


def _require_share(name: str, value) -> None:
    """Errors: ConfigurationError unless the value can be the share of a running mean that is
    kept.
    """
    require(is_number(value, at_least=0, below=1), name, value, "a number from 0 to below 1")


@dataclass(frozen=True)
class _Scheduled:
    """A learning rate that is a number or a function of the step number (0 for the first step)."""

    lr: LearningRate = 0.01

    def __post_init__(self):
        require(
            is_learning_rate(self.lr) or callable(self.lr) and not isinstance(self.lr, type),
            "lr",
            self.lr,
            f"{_RATE}, or a function of the step number such as Cosine(1e-3, decay_steps=1000)",
        )

    def rate(self, step: int, override: float | None = None) -> float:
        """The learning rate of step number `step`, counted from 1. Errors: ConfigurationError if a
        function gives none.
        """
        if override is not None:
            return override
        if not callable(self.lr):
            return self.lr
        rate = self.lr(step - 1)
        require(
            is_learning_rate(rate),
            f"the learning rate of step {step}, lr({step - 1}) of {self.lr!r},",
            rate,
            _RATE,
        )
        return rate


@dataclass(frozen=True)
class SGD(_Scheduled):
    """p -= lr * (g + weight_decay * p)."""

    weight_decay: float = 0.0
    state_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        super().__post_init__()
        _require_weight_decay(self.weight_decay)

    def update(self, parameters, gradients, state, step, learning_rate=None, gradient_scale=1.0):
        kernels.sgd(
            parameters,
            gradients,
            lr=self.rate(step, learning_rate),
            weight_decay=self.weight_decay,
            gradient_scale=gradient_scale,
        )


@dataclass(frozen=True)
class Momentum(_Scheduled):
    """v = beta * v + g; p -= lr * v (or, with nesterov, lr * (g + beta * v)). As torch.optim.SGD
    with momentum.
    """

    beta: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    state_names: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self):
        super().__post_init__()
        _require_share("beta", self.beta)
        require(isinstance(self.nesterov, bool), "nesterov", self.nesterov, "True or False")
        require(
            self.beta > 0 or not self.nesterov,
            "nesterov",
            self.nesterov,
            "False where beta = 0: there is no momentum to look ahead with",
        )
        _require_weight_decay(self.weight_decay)

    def update(self, parameters, gradients, state, step, learning_rate=None, gradient_scale=1.0):
        kernels.momentum(
            parameters,
            gradients,
            state["velocity"],
            lr=self.rate(step, learning_rate),
            beta=self.beta,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            gradient_scale=gradient_scale,
        )


@dataclass(frozen=True)
class Adam(_Scheduled):
    """Adam (arXiv 1412.6980); weight decay is added to the gradient."""

    lr: LearningRate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    state_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    decoupled: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        _require_share("beta1", self.beta1)
        _require_share("beta2", self.beta2)
        require(is_number(self.eps, above=0), "eps", self.eps, "a finite number above 0")
        _require_weight_decay(self.weight_decay)

    def update(self, parameters, gradients, state, step, learning_rate=None, gradient_scale=1.0):
        kernels.adam(
            parameters,
            gradients,
            state["first_moment"],
            state["second_moment"],
            step=step,
            lr=self.rate(step, learning_rate),
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
            gradient_scale=gradient_scale,
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv 1711.05101); as torch.optim.AdamW."""

    weight_decay: float = 0.01
    decoupled: ClassVar[bool] = True


RULES = {"adamw": AdamW, "adam": Adam, "momentum": Momentum, "sgd": SGD}  # as settings call them
