"""What goes into one run of a program, and what comes out of it."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...nn.context import ForwardContext


class MicroBatch(NamedTuple):
    """The part of a batch that goes through the units together; y is None for predictions."""

    x: Any
    y: Any
    context: ForwardContext


@dataclass
class Results:
    """What comes out of one run of a program, on this rank.

    losses          {micro-batch: sum over its items}; arrays on a GPU until votes.fetch()
    parts           {micro-batch: {name: part of such a sum}} of a loss that has some; as losses
    predictions     {micro-batch: output of the last unit}
    gradient_norm   before clipping; None if nothing asked for it
    failure         what went wrong while this rank computed; the rest of the program then went on
                    with zeros
    """

    losses: dict[int, Any] = field(default_factory=dict)
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    predictions: dict[int, Any] = field(default_factory=dict)
    gradient_norm: float | None = None
    failure: Exception | None = None


class Update(NamedTuple):
    """What CLIP and STEP are given.

    number          of the optimization step, the first is 1
    learning_rate   overrides the rule's own
    clip_factor     every gradient is multiplied by it
    is_good         False if this rank knows that the step must not be taken; CLIP tells all ranks
    computed        what came out with the gradients: CLIP judges its losses, and fetches them;
                    None: with none
    """

    number: int = 1
    learning_rate: float | None = None
    clip_factor: float = 1.0
    is_good: bool = True
    computed: Results | None = None


class Inputs(NamedTuple):
    """What goes into one run of a program.

    loss            a Loss, or None for predictions
    form            equal, on all ranks, for batches of the same shapes and dtypes everywhere
    loss_scale      the gradient of the loss to begin with; gradient_scale takes it out again
    gradient_scale  of the sum of gradients when it is reduced: 1 / items of the global batch
    first_gradient  number of micro-batch 0 among all whose gradients are being summed
    """

    micro_batches: tuple[MicroBatch, ...] = ()
    loss: Any = None
    form: bytes = b""
    loss_scale: float = 1.0
    gradient_scale: float = 1.0
    first_gradient: int = 0
    update: Update = Update()
