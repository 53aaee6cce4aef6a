"""A rank that runs out of memory while it computes, or whose block raises, goes on with zeros.

    rank 0    F  F  F  B  W ...                    all ranks vote at the end of the step:
    rank 1    F  out of memory, zeros, zeros ...   nobody takes it, all raise what rank 1 met

The others wait for its messages, so it goes through the rest of the program without computing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from ...array.device import Device
from ...errors import (
    CommunicationError,
    DeviceMemoryError,
    OutOfMemoryError,
    PeerError,
    ShardkitError,
)
from ...schedule.actions import COMPUTE, Action, Kind
from .inputs import Inputs, Results

BLOCK_ERRORS = (ShardkitError, ValueError, TypeError, LookupError, ArithmeticError)


@dataclass(frozen=True)
class Shortage:
    """Wraps an executor.

    executor        executes while all is well
    of_zeros        executes the rest after a failure: its table has rows of flow.table_of_zeros
    rank            in the mesh, for the message
    agrees_on       error -> whether no rank that computes with this one is in the midst of it
    """

    executor: Any
    of_zeros: Any
    flow: Any
    device: Device
    rank: int
    agrees_on: Callable[[Exception], bool]

    def execute(self, actions: tuple[Action, ...], inputs: Inputs, results: Results) -> None:
        """Execute the actions; from a failure on, with zeros, and say so in results.failure.

        The caller must ask all ranks before the results are used. Errors, on this rank alone:
        OutOfMemoryError, or the block's own, where it cannot go on.
        """
        remaining = iter(actions)
        executor = self.executor
        while True:
            try:
                return executor.execute(remaining, inputs, results)
            except (MemoryError, *BLOCK_ERRORS) as error:
                action = actions[len(actions) - length_hint(remaining) - 1]
                place = f"{action} of step {inputs.update.number}"
                failure = described(error, self.rank, place, self.device)
                if not self._can_go_on(action, error):
                    raise failure
                results.failure = failure
                self.flow.clear()
            executor = self.of_zeros

    def _can_go_on(self, action: Action, error: Exception) -> bool:
        """Return whether no other rank is in the midst of this action, and zeros will do for it.

        They will not for a WEIGHT whose gradient buffer could not be had.
        """
        if isinstance(error, CommunicationError) and not isinstance(error, PeerError):
            return False
        is_unopened = action.kind is Kind.WEIGHT and action is not self.flow.opened
        return action.kind in COMPUTE and not is_unopened and self.agrees_on(error)


def described(error: Exception, rank: int, place: str, device: Device) -> Exception:
    """Return the error; a lack of memory as one that says where, and what to do."""
    if not isinstance(error, MemoryError) or isinstance(error, OutOfMemoryError):
        return error
    told = OutOfMemoryError(describe_shortage(rank, place, error, device))
    told.__cause__ = error
    return told


def describe_shortage(rank: int, place: str, error: MemoryError, device: Device) -> str:
    """Return one sentence: which rank, where, the bytes it asked for and has, and what to do."""
    if isinstance(error, DeviceMemoryError):
        asked = error.asked
    else:
        asked = str(error) or "the system gave none"
    return (
        f"rank {rank} ran out of memory in {place}: {asked.rstrip('.')}; {device.memory_text()}; "
        "use smaller micro-batches, activation checkpointing, a policy that shards more, or more "
        "ranks"
    )
