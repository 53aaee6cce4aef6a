"""A rank that runs out of memory while it computes, or whose block raises, goes on with zeros.

    rank 0    F  F  F  B  W ...                    all ranks vote at the end of the step:
    rank 1    F  out of memory, zeros, zeros ...   nobody takes it, all raise what rank 1 met

The others wait for its messages, so it goes through the rest of the program without computing.

Ranks that compute layers together may wait for each other in the midst of it:

    rank 0   F of micro-batch 1, done  ---- 0 --->    every rank knows of the others: an error of
    rank 1   F of micro-batch 1, fails <--- 1 ----    one is one of all

A rank that fails sends a byte to each of the others, and waits for theirs, which no collective of a
layer takes for its own. Where ranks have other parts of samples, one may fail for what it alone has
in its part: there all tell each other after the first unit of the model and after the loss.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import numpy

from ...array.device import Device
from ...comm.checks import MAX_TAG
from ...comm.failure.agreement import raise_together
from ...comm.mesh import Mesh
from ...errors import (
    CommunicationError,
    DeviceMemoryError,
    OutOfMemoryError,
    PeerError,
    ShardkitError,
)
from ...layout.axes import TOGETHER, Held, apart
from ...schedule.actions import COMPUTE, Action, Kind
from .inputs import Inputs, Results

PATIENCE_SECONDS = 10.0  # of a rank that failed, for others that may wait for it elsewhere
_POLL_SECONDS = 1e-3
_NOTHING = nullcontext()
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
                results.failure = self._judged(error, action, inputs)
            executor = self.of_zeros

    def _judged(self, error, action, inputs) -> Exception:
        """Return the failure with which this rank goes on; or raise it."""
        place = f"{action} of step {inputs.update.number}"
        failure = described(error, self.rank, place, self.device)
        if not self._can_go_on(action, error):
            raise failure
        self.flow.clear()
        return failure

    def _can_go_on(self, action: Action, error: Exception) -> bool:
        """Return whether no other rank is in the midst of this action, and zeros will do for it.

        They will not for a WEIGHT whose gradient buffer could not be had.
        """
        if isinstance(error, CommunicationError) and not isinstance(error, PeerError):
            return False
        is_unopened = action.kind is Kind.WEIGHT and action is not self.flow.opened
        return action.kind in COMPUTE and not is_unopened and self.agrees_on(error)


class Company:
    """The ranks that compute each action together with this one.

    mesh              on which those are the ranks of TOGETHER
    device            of this rank, for what is said of its memory
    shares_samples    they have other parts of samples
    """

    def __init__(self, mesh: Mesh, device: Device):
        self._group = group = mesh.group(TOGETHER)
        self.shares_samples = any(mesh.size(axis) > 1 for axis in apart(Held.PARTS))
        self._rank, self._device = mesh.rank, device
        self._others = [rank for rank in range(group.world_size) if rank != group.rank]
        self._has_failed = numpy.zeros(group.world_size, numpy.uint8)
        self._common: Exception | None = None

    def agrees_on(self, error: Exception) -> bool:
        """Return whether no rank waits for this one in what it computes: there are no others, or
        all of them raised this error, or one that says so. It is forgotten, with what it holds.
        """
        common, self._common = self._common, None
        return not self._others or error is common

    def at(self, what: str, inputs: Inputs, *, tells: bool) -> AbstractContextManager:
        """Inside, what is computed; an error of all ranks, or if they tell each other of one, is
        raised on all at the end. Collective if they do.

        Errors: as raise_together(). A rank raises its own alone if the others have not told theirs
        for as long as it has patience: they wait for it in a layer.
        """
        return self._together(what, inputs, tells) if self._others else _NOTHING

    @contextmanager
    def _together(self, what, inputs, tells):
        error = None
        try:
            yield
        except (MemoryError, *BLOCK_ERRORS) as caught:
            if isinstance(caught, CommunicationError) and not isinstance(caught, PeerError):
                raise
            error = described(
                caught, self._rank, f"{what} of step {inputs.update.number}", self._device
            )
        if error is None and not tells:
            return
        if not self._tell(error is not None):
            raise error
        if not self._has_failed.any():
            return
        try:
            raise_together(self._group, error)
        except Exception as common:
            self._common = common
            raise

    def _tell(self, has_failed: bool) -> bool:
        """Tell the others, and hear of them; return whether they were heard in time."""
        self._has_failed[self._group.rank] = has_failed
        return hear_all(self._group, self._has_failed, is_patient=not has_failed)


def hear_all(group, told: numpy.ndarray, *, is_patient: bool) -> bool:
    """Send this rank's element of `told` [ranks] to all others, and take theirs; return whether
    they have come. One that is not patient waits PATIENCE_SECONDS for them. Collective.
    """
    others = [rank for rank in range(told.size) if rank != group.rank]
    handles = [group.irecv(told[rank : rank + 1], rank, MAX_TAG) for rank in others]
    own = told[group.rank :][:1]
    handles += [group.isend(own, rank, MAX_TAG) for rank in others]
    if not is_patient and not _come_in_time(handles):
        return False
    for handle in handles:
        handle.wait()
    return True


def _come_in_time(handles) -> bool:
    until = time.monotonic() + PATIENCE_SECONDS
    while not all([handle.test() for handle in handles]):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


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
