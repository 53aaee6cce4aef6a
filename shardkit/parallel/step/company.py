"""Errors of ranks that compute layers together, and may wait for each other in the midst of it.

    rank 0   F of micro-batch 1, done  ---- 0 --->    every rank knows of the others: an error of
    rank 1   F of micro-batch 1, fails <--- 1 ----    one is one of all

A rank that fails sends a byte to each of the others, and waits for theirs, which no collective of a
layer takes for its own. Where ranks have other parts of samples, one may fail for what it alone has
in its part: there all tell each other after the first unit of the model and after the loss.
"""

import time
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy

from ...array.device import Device
from ...comm.backend import CommunicationBackend
from ...comm.checks import MAX_TAG
from ...comm.failure.agreement import raise_together
from ...errors import CommunicationError, PeerError
from .shortage import BLOCK_ERRORS, described

PATIENCE_SECONDS = 10.0  # of a rank that failed, for others that may wait for it elsewhere
_POLL_SECONDS = 1e-3
_NOTHING = nullcontext()


class Company:
    """The ranks that compute each action together with this one.

    group    all of them
    rank     in the mesh, and device: for what is said of its memory
    """

    def __init__(self, group: CommunicationBackend, rank: int, device: Device):
        self._group = group
        self._rank, self._device = rank, device
        self._others = [rank for rank in range(group.world_size) if rank != group.rank]
        self._has_failed = numpy.zeros(group.world_size, numpy.uint8)
        self._common: Exception | None = None

    def agrees_on(self, error: Exception) -> bool:
        """Return whether no rank waits for this one in what it computes: there are no others, or
        all of them raised this error, or one that says so. It is forgotten, with what it holds.
        """
        common, self._common = self._common, None
        return not self._others or error is common

    def at(self, place: str, *, tells: bool) -> AbstractContextManager:
        """Inside, what is computed; an error of all ranks, or if they tell each other of one, is
        raised on all at the end. Collective if they do.

        Errors: as raise_together(). A rank raises its own alone if the others have not told theirs
        for as long as it has patience: they wait for it in a layer.
        """
        return self._together(place, tells) if self._others else _NOTHING

    @contextmanager
    def _together(self, place, tells):
        error = None
        try:
            yield
        except (MemoryError, *BLOCK_ERRORS) as caught:
            if isinstance(caught, CommunicationError) and not isinstance(caught, PeerError):
                raise
            error = described(caught, self._rank, place, self._device)
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
        own = self._has_failed[self._group.rank :][:1]
        own[0] = has_failed
        handles = [
            self._group.irecv(self._has_failed[rank : rank + 1], rank, MAX_TAG)
            for rank in self._others
        ]
        handles += [self._group.isend(own, rank, MAX_TAG) for rank in self._others]
        if has_failed and not _come_in_time(handles):
            return False
        for handle in handles:
            handle.wait()
        return True


def _come_in_time(handles) -> bool:
    """Return whether all messages have come before patience ends."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not all([handle.test() for handle in handles]):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True
