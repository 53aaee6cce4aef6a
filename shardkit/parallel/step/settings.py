"""Settings of a step: what is computed in which dtype, and what is kept for the backward."""

from dataclasses import dataclass
from math import log2

from ...array.dtypes import COMPUTE_DTYPES, FLOAT8
from ...settings import fixed, setting


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What blocks compute in, from float32 master weights (numerics.py).

    Gradients and the optimizer's moments stay float32. The loss scale is for float16 only.
    """

    activation_checkpointing: bool = setting(
        False, "keep only block inputs and run each block again in the backward pass"
    )
    compute_dtype: str | None = setting(
        None,
        "what blocks compute in, from float32 master weights; none: the dtype of the model; float8 "
        "is for `shardkit plan --software mixed`",
        among=(*COMPUTE_DTYPES, FLOAT8),
        spelled={"model": None},
    )
    residual_dtype: str | None = setting(
        None,
        "what branches of transformer blocks are added to, under a compute_dtype of half floats; "
        "none: that",
        among=("float32",),
        unplanned="keeps what branches are added to in twice the bytes",
    )
    initial_loss_scale: float | None = fixed(
        "the scale continues from its last value",
        None,
        "loss scale of float16 at the start, a power of two; none: 1024",
        above=0.0,
        holds=lambda scale: log2(scale).is_integer(),
        wanted="a power of two, or None",
    )
    loss_scale_interval: int | None = setting(
        None,
        "good steps in a row that double the loss scale of float16; none: 2000",
        "steps",
        minimum=1,
    )
