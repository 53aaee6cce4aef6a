"""How much work each block of a model is, and where the stages of a pipeline begin.

    "compute"       elements of the weights in matrix products: estimates time, the default
    "parameters"    elements of all parameters, an estimate of the memory
    "uniform"       every block counts the same
    (3.1, 9.4, ...) a cost for each block, in any unit: measure_blocks() gives seconds

or by hand: blocks_per_stage = (3, 2, 2, 1).
"""

import copy
import time
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import by_first
from ...errors import ConfigurationError, StagesError
from ...layout.cuts import balanced_stages
from ...nn.autograd import Tensor, backward_inputs
from ...nn.buffer import unobserved
from ...nn.context import ForwardContext, forward_context
from ...nn.init import Fill
from ...nn.loss import as_loss
from ...nn.module import Module, Parameter, blocks_of, members_of
from ...nn.trees import (
    arrays_of,
    as_tensors,
    backward_through,
    entering,
    given_arrays,
    gradients_of,
)
from ..data.partition import UnitPlan
from .settings import BALANCES


def stage_ranges(
    units: list[UnitPlan],
    num_stages: int,
    balance: "str | Sequence[float]" = "compute",
    blocks_per_stage: Sequence[int] | None = None,
) -> list[range]:
    """Return the units of each stage: contiguous ranges, none empty.

    blocks_per_stage   by hand; the balance is not looked at then
    Errors: StagesError if there are fewer units than stages, or a stage by hand would cut a unit;
    ConfigurationError on costs or counts that are not those of the model's blocks.
    """
    if num_stages > 1:
        _check_chain(units, num_stages)
    if blocks_per_stage is not None:
        return _by_hand(units, num_stages, tuple(blocks_per_stage))
    return balanced_stages(unit_costs(units, balance), num_stages)


def _check_chain(units: list[UnitPlan], num_stages: int):
    """Raise StagesError if the model is a single module that says no blocks."""
    blocks = [block for unit in units for block in unit.blocks]
    if len(blocks) == 1 and [inner for _, inner in blocks_of(blocks[0])] == blocks:
        name = type(blocks[0]).__name__
        raise StagesError(
            f"{name} has no method blocks(), so it is one block, which a pipeline of {num_stages} "
            "stages cannot cut. If it is a chain of modules, each of which takes what the one "
            "before it returns, say them in this order: def blocks(self): return [(name, module), "
            "...]; else leave the pipeline out and shard over data or tensor ranks"
        )


def unit_costs(units: list[UnitPlan], balance: "str | Sequence[float]") -> list[float]:
    """Return the cost of each unit under this balance."""
    if balance == "parameters":
        return [unit.num_elements for unit in units]
    if balance == "uniform":
        return [len(unit.blocks) for unit in units]
    if balance == "compute":
        return [sum(multiplied_elements(block) for block in unit.blocks) for unit in units]
    num_blocks = sum(len(unit.blocks) for unit in units)
    if isinstance(balance, str) or len(balance) != num_blocks or any(cost < 0 for cost in balance):
        raise ConfigurationError(
            f"stage_balance = {balance!r}; wanted {', '.join(map(repr, BALANCES))}, or "
            f"{num_blocks} costs >= 0, one for each block of the model"
        )
    costs = iter(balance)
    return [sum(next(costs) for _ in unit.blocks) for unit in units]


def multiplied_elements(block: Module) -> int:
    """Return the elements of the matrices that the block multiplies with.

    Tables that are looked up do not count; of matrices that are cut, the largest part does.
    """
    return sum(weight.planned_size for weight in multiplied_weights(block) if weight.ndim == 2)


def multiplied_weights(block: Module) -> list[Parameter]:
    """Return the matrices that the block multiplies with, and its kernels of windows."""
    return [
        member
        for module in block.named_modules().values()
        if not module.is_table
        for member in members_of(module).values()
        if isinstance(member, Parameter) and member.ndim >= 2
    ]


def measure_blocks(
    model: Module,
    x: Any,
    y: Any,
    backend: CommunicationBackend,
    *,
    loss: Any = None,
    repeats: int = 3,
) -> tuple[float, ...]:
    """Return the seconds of each block's forward and backward on this batch.

    The median of `repeats`, as rank 0 measured them.

    Collective over `backend`: the same figures on all ranks, for
    ShardingConfiguration(stage_balance=...).

    Parameters
    ----------
    model
        Not sharded yet; a copy of it is run.
    x, y
        One micro-batch.
    backend
        Rank 0 of it measures, the others get the figures.
    loss
        As in the configuration; None: the model's own.
    repeats
        Of which the median counts.

    Notes
    -----
    Errors, on all ranks: those of the model's forward on this batch.
    """

    def seconds() -> tuple[float, ...]:
        copied = copy.deepcopy(model).finish(0)
        criterion = as_loss(loss or model.loss)
        for parameter in copied.parameters():
            if parameter.awaits_values:  # it takes as long with any others
                parameter.init = Fill(0.0)
        runs = [_seconds_per_block(copied, criterion, x, y) for _ in range(repeats + 1)]
        return tuple(map(median, zip(*runs[1:])))  # the first one warms up

    return by_first(backend, seconds)


def _seconds_per_block(model, criterion, x, y) -> list[float]:
    """Run one forward and backward, block by block, on the whole model in this process."""
    blocks = [block for _, block in blocks_of(model)]
    x = entering(given_arrays(x), model.parameters()[0].dtype)
    inputs = []
    outputs = []
    seconds = [0.0] * len(blocks)
    with forward_context(ForwardContext(training=True, observer=unobserved)):
        for number, block in enumerate(blocks):
            began = time.perf_counter()
            inputs.append(as_tensors(x, takes_gradient=True))
            outputs.append(block(inputs[-1]))
            if block is blocks[-1]:
                outputs[-1] = criterion.total(outputs[-1], y)
            seconds[number] += time.perf_counter() - began
            x = arrays_of(outputs[-1])
    gradient = None
    for number in reversed(range(len(blocks))):
        began = time.perf_counter()
        backward = backward_inputs if isinstance(outputs[number], Tensor) else backward_through
        backward(outputs[number], gradient).run()
        seconds[number] += time.perf_counter() - began
        gradient = gradients_of(inputs[number])
    return seconds


def _by_hand(units, num_stages, blocks_per_stage) -> list[range]:
    num_blocks = sum(len(unit.blocks) for unit in units)
    if (
        len(blocks_per_stage) != num_stages
        or sum(blocks_per_stage) != num_blocks
        or min(blocks_per_stage) < 1
    ):
        raise ConfigurationError(
            f"blocks_per_stage = {blocks_per_stage} gives {sum(blocks_per_stage)} blocks to "
            f"{len(blocks_per_stage)} stages; wanted {num_blocks} blocks for {num_stages} stages, "
            "at least one each"
        )
    # In blocks.
    ends = [0, *accumulate(len(unit.blocks) for unit in units)]
    starts = [sum(blocks_per_stage[:stage]) for stage in range(num_stages)] + [num_blocks]
    cut = next((start for start in starts if start not in ends), None)
    if cut is not None:
        raise StagesError(
            f"blocks_per_stage = {blocks_per_stage} begins a stage at block {cut}, inside a unit "
            f"of merged blocks; units begin at blocks {', '.join(map(str, ends[:-1]))}: use one of "
            "these, or a smaller minimum_parameter_group_size"
        )
    return [range(ends.index(start), ends.index(stop)) for start, stop in zip(starts, starts[1:])]
