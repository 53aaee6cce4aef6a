"""Settings of the pipeline axis: the order of micro-batches, and where stages begin."""

from dataclasses import dataclass

from ...schedule.catalog import ORDERS
from ...settings import setting

BALANCES = ("compute", "parameters", "uniform")
OF_RUNS = (*BALANCES, "measured")  # where blocks can be tried


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """How a model is cut into stages, and in which order they take micro-batches.

    stage_balance   in Python also the cost of each block, in any unit (balance.py)
    """

    schedule: str = setting("1f1b", "order of micro-batches", known=ORDERS)
    virtual_stages: int | None = setting(
        None, "stages on each pipeline rank; none: what the schedule runs", "stages", minimum=1
    )
    stage_balance: str | tuple[float, ...] = setting(
        "compute",
        "what makes pipeline stages equal; measured: seconds of each block, tried on rank 0",
        known=OF_RUNS,
        minimum=0,
        unplanned="the plan's own blocks_per_stage cut the stages",
    )
    blocks_per_stage: tuple[int, ...] | None = setting(
        None,
        "blocks of each pipeline stage, such as [2,2,1,1]; none: balanced",
        "blocks",
        minimum=1,
    )
