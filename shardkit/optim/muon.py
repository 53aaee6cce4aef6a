"""Muon: momentum whose matrices are made orthogonal, for the hidden matrices of a model.

    gradient --momentum--> direction --Newton-Schulz--> update --lr, decay--> parameter
             each element            a whole matrix            each element

The step in the middle needs a whole matrix, so a rule of this kind has three parts, which the owner
of a span calls one after another (parallel/data/matrices.py). Embeddings, heads, norms and biases
get another rule:

    others = sk.ParameterGroup("embedding.*", "head.*", "*norm*", "*.bias", rule=sk.AdamW(lr=3e-3))
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.Muon(lr=0.02), parameter_groups=(others,)
    )
"""

from dataclasses import dataclass
from math import sqrt
from typing import Protocol, runtime_checkable

from ..annotations import Array
from ..arguments import is_integer, is_number, require
from ..array import fresh, products
from ..array.backend import xp_of
from ..array.reference.chunks import spans
from .rules import LearningRate, Rule, Scheduled

_ADJUSTMENTS = ("original", "match_rms_adamw")
_MOST_STEPS = 100


@runtime_checkable
class MatrixRule(Rule, Protocol):
    """A rule that needs each matrix whole between two parts that work element by element.

    update() takes what of_matrix() returned in place of gradients.
    """

    def begin(self, gradients, state: dict, directions, gradient_scale: float = 1.0) -> None:
        """Write the directions of a span, and update its state.

        Parameters
        ----------
        gradients, directions
            [n], of one dtype; gradients are not written to.
        state
            {name: [n]}, of the same dtype.
        """

    def of_matrix(self, direction):
        """Return the update of a matrix, an array of its own. direction: [rows, columns]."""


def matrix_rule_of(rule) -> MatrixRule | None:
    """Return the rule, or the one inside of it (sk.EMA), that needs whole matrices; None if none
    does.
    """
    while rule is not None and not isinstance(rule, MatrixRule):
        rule = getattr(rule, "rule", None)
    return rule


@dataclass(frozen=True)
class Muon(Scheduled):
    """p -= lr * (scale * orthogonal(momentum) + weight_decay * p); as torch.optim.Muon, which
    makes matrices orthogonal in bfloat16, and this in the dtype of the parameters.

    Parameters
    ----------
    lr, weight_decay
        Learning rate, or a schedule of it (sk.schedules), and weight decay: at least 0.
    momentum
        Share of the momentum that is kept.
    nesterov
        Look ahead by one step.
    ns_coefficients
        Of one Newton-Schulz step: a x + b (x x') x + c (x x')^2 x.
    eps
        The least norm that a matrix is divided by.
    ns_steps
        How many such steps, below 100.
    adjust_lr_fn
        Scale by the shape: "original" (None): sqrt(max(1, rows / columns)); "match_rms_adamw": 0.2
        sqrt(max(rows, columns)), for learning rates of AdamW.

    Notes
    -----
    It takes parameters of two dims alone, and none that is cut over the tensor axis.

    References
    ----------
    Jordan et al. (2024), kellerjordan.github.io/posts/muon; arXiv 2502.16982 for the second scale.
    """

    lr: LearningRate = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None
    state_names = ("matrix_momentum",)

    def check(self) -> None:
        super().check()
        given = self.ns_coefficients
        are_three = isinstance(given, tuple) and len(given) == 3 and all(map(is_number, given))
        require(are_three, "ns_coefficients", given, "a tuple of three finite numbers")
        is_count = is_integer(self.ns_steps, at_least=0) and self.ns_steps < _MOST_STEPS
        require(is_count, "ns_steps", self.ns_steps, f"an integer from 0 to below {_MOST_STEPS}")
        require(
            self.adjust_lr_fn in (None, *_ADJUSTMENTS),
            "adjust_lr_fn",
            self.adjust_lr_fn,
            f"None or one of {', '.join(_ADJUSTMENTS)}",
        )

    def begin(
        self,
        gradients: Array,
        state: dict[str, Array],
        directions: Array,
        gradient_scale: float = 1.0,
    ) -> None:
        """Write the directions of a span, and update its momentum: see MatrixRule."""
        velocity = state["matrix_momentum"]
        for span in spans(velocity):
            gradient = gradients[span] * velocity.dtype.type(gradient_scale)
            velocity[span] += (1.0 - self.momentum) * (gradient - velocity[span])
            if self.nesterov:
                directions[span] = gradient + self.momentum * (velocity[span] - gradient)
            else:
                directions[span] = velocity[span]

    def of_matrix(self, direction: Array) -> Array:
        """Return the update of a matrix [rows, columns]: see MatrixRule."""
        num_rows, num_columns = direction.shape
        is_tall = num_rows > num_columns
        x = fresh.copy(direction.T if is_tall else direction)  # [fewer, more]
        x /= xp_of(x).maximum(xp_of(x).sqrt((x * x).sum()), x.dtype.type(self.eps))
        a, b, c = self.ns_coefficients
        for _ in range(self.ns_steps):
            gram = products.matmul(x, x.T)
            polynomial = b * gram + c * products.matmul(gram, gram)
            x = a * x + products.matmul(polynomial, x)
        x *= self._scale(num_rows, num_columns)
        return fresh.copy(x.T) if is_tall else x

    def _scale(self, num_rows: int, num_columns: int) -> float:
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * sqrt(max(num_rows, num_columns))
        return sqrt(max(1.0, num_rows / num_columns))

    def _kernel(self, step):
        return _move, self._constants("weight_decay")


def _move(parameters, updates, _momentum, *, weight_decay, lr, gradient_scale):
    """Apply the updates of matrices to a span."""
    for span in spans(parameters):
        parameters[span] *= 1.0 - lr * weight_decay
        parameters[span] -= (lr * gradient_scale) * updates[span]
