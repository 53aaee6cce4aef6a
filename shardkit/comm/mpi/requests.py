"""Requests of an MPI library as handles, how a rank waits for them, and its errors as ours.

An MPI library waits by asking again and again. Where ranks share cores, they sleep between two
questions.
"""

import time

from ...errors import CommunicationError
from ..operations import Handle

TRY_CHECKED = "try again with SHARDKIT_CHECK=1, which names the rank that makes another call"
SHORTEST_NAP, SHORT_NAP = 2e-5, 5e-4  # seconds
LONGEST_NAP = 2e-2
NAP_SHARE = 0.01  # of what a wait has lasted: naps beyond the short one are no longer


class MPIErrors:
    """Context manager that turns an error of the MPI library into a CommunicationError.

    progress   names the call under way
    look       of an MPIChannel: it knows better than the library why a call fails
    """

    def __init__(self, mpi, progress, look=None):
        self._mpi, self._progress = mpi, progress
        self._look = look

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, self._mpi.Exception):
            if self._look is not None:
                self._look(at_once=True)
            raise CommunicationError(
                f"{self._progress.current}: MPI says: {error}; if a message was truncated, two "
                f"ranks disagree about its size: {TRY_CHECKED}"
            ) from error


class RequestsHandle(Handle):
    """Requests of an MPIChannel that complete together.

    expected   (source, buffer) that each of the first requests must fill exactly
    holds      whose memory the requests use, where they know only its address: kept for as long
               as the handle
    """

    def __init__(self, channel, requests, expected, holds=None):
        self._channel = channel
        self._requests = requests
        self._expected = expected
        self._holds = holds
        self._statuses = [channel.mpi.Status() for _ in requests]

    def wait(self):
        with self._channel.errors:
            wait_all(self._channel, self._requests, self._statuses)
        self._check_sizes()

    def test(self):
        with self._channel.errors:
            is_complete = self._channel.mpi.Request.Testall(self._requests, self._statuses)
        if is_complete:
            self._check_sizes()
        return is_complete

    def _check_sizes(self):
        for (source, buffer), status in zip(self._expected, self._statuses):
            got = status.Get_count(self._channel.mpi.BYTE)
            if got != buffer.nbytes:
                world_ranks = self._channel.members.world_ranks
                sender = world_ranks[source]
                receiver = world_ranks[self._channel.rank]
                raise CommunicationError(
                    f"rank {sender} sent rank {receiver} {got} bytes, but that expected "
                    f"{buffer.nbytes}; the two disagree about its size"
                )


def wait_all(channel, requests, statuses=None) -> None:
    """Wait until all requests of an MPIChannel are complete."""
    if channel.shares_cores:
        wait_asleep(channel, requests, statuses)
    elif channel.look is None:
        channel.mpi.Request.Waitall(requests, statuses)
    else:
        while not channel.mpi.Request.Testall(requests, statuses):
            channel.look()


def wait_asleep(channel, requests, statuses=None) -> None:
    """Wait until all are complete, asleep: others may need the core, to compile for minutes."""
    slept = 0.0
    seconds = SHORTEST_NAP
    while not channel.mpi.Request.Testall(requests, statuses):
        if channel.look is not None:
            channel.look()
        time.sleep(seconds)
        slept += seconds
        seconds = min(2 * seconds, max(SHORT_NAP, NAP_SHARE * slept), LONGEST_NAP)


def meet_asleep(channel) -> None:
    """Wait until all ranks of an MPIChannel have come, where they share cores. Collective."""
    if channel.shares_cores:
        wait_all(channel, [channel.communicator.Ibarrier()])


def spans_of(array, limit: int) -> list:
    """Return views of at most so many elements that cover the array; one if it is empty."""
    if array.size <= limit:
        return [array]
    return [array[start : start + limit] for start in range(0, array.size, limit)]
