"""Optimizer rules: frozen values that update a 1-D span of parameters in place.

    @rule("sgd", settings={"weight_decay": "weight_decay"})
    @dataclass(frozen=True)
    class SGD(Scheduled):
        state_names = ()                    arrays that the rule keeps for each span
        def _kernel(self, step): ...        its kernel, and what that takes of the rule

A rule sees no names, no shapes and no ranks: the owner of elements [start, stop) of the flat
parameters passes that span of parameters, gradients and state. Every rule here works element by
element, so the result does not depend on how the parameters are cut; muon.py has one that needs
whole matrices. A new rule is one such class and its test: settings, checkpoints and `shardkit plan`
learn from the class what it takes and keeps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Protocol, Self, runtime_checkable

from ..annotations import Array
from ..arguments import is_number, require
from ..array import kernels
from ..errors import ConfigurationError
from ..habits import refuse
from ..plain import unboxed
from ..refusal import check_made

LearningRate = float | Callable[[int], float]

RULES: dict[str, type] = {}  # by the names that settings use; filled by `rule`

_OF_ADAM = {name: name for name in ("beta1", "beta2", "weight_decay")}
_RATE = "a finite number, at least 0"
_PARAMETERS = list, tuple, dict, Iterator  # what PyTorch's optimizers are given


def rule(name: str, *, settings: dict[str, str]):
    """Enter a class of rules into RULES under this name.

    settings   {argument of the class: setting of the section `optimizer` that it gets}
    """

    def enter(cls):
        cls.settings = settings
        RULES[name] = cls
        return cls

    return enter


@runtime_checkable
class Rule(Protocol):
    """What sharded models need of an optimizer.

    Attributes
    ----------
    state_names
        One array each, as long as the span and of its dtype, zero at first.
    """

    @property
    def state_names(self) -> tuple[str, ...]: ...

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

        Parameters
        ----------
        parameters, gradients
            [n], of one dtype.
        state
            {name: [n]}, of the same dtype.
        learning_rate
            Replaces the rule's own.
        gradient_scale
            Factor of every gradient, for clipping; gradients are not written to.
        """


def is_learning_rate(value) -> bool:
    """Return True for a finite number that is not negative; 0 is allowed, as in torch.optim."""
    return is_number(value, at_least=0)


_SHARE = partial(is_number, at_least=0, below=1), "a number from 0 to below 1"
# {field of a rule: what holds for it, and in words}
_CONSTANTS: dict[str, tuple[Callable[..., bool], str]] = {
    **dict.fromkeys(("momentum", "beta", "beta1", "beta2"), _SHARE),
    "weight_decay": (is_learning_rate, _RATE),
    "eps": (partial(is_number, above=0), "a finite number above 0"),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
}


@dataclass(frozen=True)
class Scheduled:
    """A rule with a learning rate that may change from step to step.

    Parameters
    ----------
    lr
        Learning rate: a number of at least 0, or a function of the step number, which counts from
        0: see sk.schedules.
    """

    refusal: ClassVar[ConfigurationError | None] = None  # see check_made
    state_names = tuple[str, ...]()  # no ClassVar, which a Rule may not have, and no field
    lr: LearningRate = 0.01

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a new one. Errors: TypeError on what PyTorch's optimizers take, with ours."""
        if any(isinstance(one, _PARAMETERS) or hasattr(one, "parameters") for one in args[:1]):
            raise TypeError(
                f"{cls.__name__} was given a model or parameters; a rule has none: write "
                f"{cls.__name__}(lr=1e-3), and give it to sk.ShardingConfiguration(backend, "
                "optimizer=...)"
            )
        if "learning_rate" in kwargs:
            raise TypeError(f"{cls.__name__} has no argument 'learning_rate'; here it is lr")
        return object.__new__(cls)

    def __post_init__(self, betas: Sequence[float] | None = None) -> None:
        def check() -> None:
            if betas is not None:
                self._take(betas)
            self.check()

        check_made(self, check)

    def _take(self, betas) -> None:
        """Set beta1 and beta2, of which PyTorch's betas are both."""
        is_pair = isinstance(betas, (list, tuple)) and len(betas) == 2
        require(is_pair, "betas", betas, "two numbers, in place of beta1 and beta2")
        for name, beta in zip(("beta1", "beta2"), betas):
            is_default = getattr(self, name) == getattr(type(self), name)
            require(is_default, "betas", betas, f"either betas or {name}")
            object.__setattr__(self, name, unboxed(beta))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            refuse("Rule", self, name)

    def check(self) -> None:
        """Raise ConfigurationError on a constant that the rule does not take."""
        require(
            is_learning_rate(self.lr) or callable(self.lr) and not isinstance(self.lr, type),
            "lr",
            self.lr,
            f"{_RATE}, or a function of the step number: schedules.Cosine(1e-3, decay_steps=1000)",
        )
        for name in (field.name for field in fields(self) if field.name in _CONSTANTS):
            (holds, wanted), value = _CONSTANTS[name], getattr(self, name)
            require(holds(value), name, value, wanted)

    def rate(self, step: int, override: float | None = None) -> float:
        """Return the learning rate of step number `step`, counted from 1.

        Raises
        ------
        ConfigurationError
            If the schedule returns something else.
        """
        if self.refusal is not None:
            raise self.refusal
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

    def update(
        self,
        parameters: Array,
        gradients: Array,
        state: dict[str, Array],
        step: int,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
    ) -> None:
        """Apply step number `step` to a span, in place: see Rule."""
        kernel, constants = self._kernel(step)
        arrays = [state[name] for name in self.state_names]
        rate = self.rate(step, learning_rate)
        how = {"lr": rate, "gradient_scale": gradient_scale}
        kernel(parameters, gradients, *arrays, **constants, **how)

    def _kernel(self, step: int) -> tuple[Callable, dict]:
        """Return the kernel of the rule, and its constants in this step, by their names."""
        raise NotImplementedError

    def _constants(self, *names: str) -> dict:
        return {name: getattr(self, name) for name in names}


@rule("sgd", settings={"weight_decay": "weight_decay"})
@dataclass(frozen=True, kw_only=True)
class SGD(Scheduled):
    """p -= lr * (g + weight_decay * p); with momentum the rule Momentum, as torch.optim.SGD.

    All but lr is given by name: PyTorch has momentum in second place.

    Parameters
    ----------
    lr, weight_decay
        Learning rate, or a schedule of it (sk.schedules), and weight decay: at least 0.
    momentum
        From 0 to below 1; above 0 the rule is that of Momentum.
    nesterov
        As of Momentum.
    """

    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False

    def check(self) -> None:
        super().check()
        require(
            self.momentum > 0 or not self.nesterov,
            "nesterov",
            self.nesterov,
            "False where momentum = 0: there is none to look ahead with",
        )
        if self.momentum:
            object.__setattr__(self, "state_names", Momentum.state_names)

    def _kernel(self, step):
        if not self.momentum:
            return kernels.sgd, self._constants("weight_decay")
        constants = {"beta": self.momentum}
        return kernels.momentum, constants | self._constants("nesterov", "weight_decay")


@rule("momentum", settings={"beta": "momentum", "weight_decay": "weight_decay"})
@dataclass(frozen=True)
class Momentum(Scheduled):
    """v = beta * v + g; p -= lr * v, or lr * (g + beta * v) with nesterov: as torch.optim.SGD.

    Weight decay is added to the gradient.

    Parameters
    ----------
    lr, weight_decay
        Learning rate, or a schedule of it (sk.schedules), and weight decay: at least 0.
    beta
        Share of the velocity that is kept, from 0 to below 1.
    nesterov
        Look ahead by one step.
    """

    beta: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    state_names = ("velocity",)

    def check(self) -> None:
        super().check()
        require(
            self.beta > 0 or not self.nesterov,
            "nesterov",
            self.nesterov,
            "False where beta = 0: there is no momentum to look ahead with",
        )

    def _kernel(self, step):
        return kernels.momentum, self._constants("beta", "nesterov", "weight_decay")


@rule("adam", settings=_OF_ADAM)
@dataclass(frozen=True)
class Adam(Scheduled):
    """Adam (arXiv 1412.6980); weight decay is added to the gradient.

    Parameters
    ----------
    lr, weight_decay
        Learning rate, or a schedule of it (sk.schedules), and weight decay: at least 0.
    beta1, beta2
        Shares of the running means of the gradient and of its square that are kept, from 0 to below
        1.
    eps
        Added to the root of the second.
    betas
        (beta1, beta2), as in PyTorch.
    """

    lr: LearningRate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    betas: InitVar[Sequence[float] | None] = None
    state_names = ("first_moment", "second_moment")
    decoupled: ClassVar[bool] = False

    def _kernel(self, step):
        names = ("beta1", "beta2", "eps", "weight_decay", "decoupled")
        return kernels.adam, {"step": step, **self._constants(*names)}


@rule("adamw", settings=_OF_ADAM)
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv 1711.05101); as torch.optim.AdamW."""

    weight_decay: float = 0.01
    decoupled: ClassVar[bool] = True


@rule("lion", settings=_OF_ADAM)
@dataclass(frozen=True)
class Lion(Scheduled):
    """The sign of a running mean of gradients, with decoupled weight decay (arXiv 2302.06675).

    A learning rate three to ten times smaller than AdamW's, and as much more weight decay.

    Parameters
    ----------
    lr, weight_decay
        Learning rate, or a schedule of it (sk.schedules), and weight decay: at least 0.
    beta1, beta2
        Shares of the running mean that are kept: in the sign that is taken, and in the mean itself.
    betas
        (beta1, beta2), as in PyTorch.
    """

    lr: LearningRate = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    betas: InitVar[Sequence[float] | None] = None
    state_names = ("first_moment",)

    def _kernel(self, step):
        return kernels.lion, self._constants("beta1", "beta2", "weight_decay")
