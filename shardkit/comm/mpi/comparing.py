"""Calls of a group over MPI, compared before an MPI library gets them.

A library may answer ranks that differ with wrong numbers, or by ending the job with words of its
own. The first calls of a group are compared, and all of them where ranks share cores, since these
meet asleep in the comparison.
"""

import zlib
from collections.abc import Callable

import numpy

from ...errors import CommunicationError
from ..channel import signature
from ..compared import difference
from .requests import wait_asleep

COMPARED_CALLS = 100  # of each group, from the first: a script that is wrong is wrong there


class MPIComparison:
    """What the ranks of an MPIChannel are about to call."""

    def __init__(self, channel):
        self._channel = channel
        self._num_first_left = 0  # first calls, which a wrapper compares before they come here
        self._end_first = _nothing

    def begin_first(self, end: Callable[[], None]) -> None:
        """Begin with the first calls of the group; end() is called after the last of them."""
        self._num_first_left, self._end_first = COMPARED_CALLS, end

    def compare_first(self, verb: str, arguments: tuple, begins: bool) -> None:
        """Compare one of the first blocking calls: later ones are not worth a message each.

        Errors, on all ranks: CommunicationError if they differ.
        """
        if begins or verb == "split":
            return
        self._num_first_left -= 1
        if self._num_first_left == 0:
            self._end_first()
        self.compare(verb, arguments)

    def meet(self, verb: str, arguments: tuple) -> None:
        """Let ranks that share cores meet asleep before a collective of the library. Collective."""
        if self._channel.shares_cores and not self._num_first_left:
            self.compare(verb, arguments)

    def compare(self, verb: str, arguments: tuple) -> None:
        """Check that all ranks call the same. Collective; a message of 16 bytes; waits asleep.

        Errors, on all ranks: CommunicationError if they make different calls.
        """
        channel, communicator = self._channel, self._channel.communicator
        text = signature(verb, arguments)
        number = zlib.crc32(text.encode())
        largest = numpy.array([number, -number], numpy.int64)
        with channel.errors:
            request = communicator.Iallreduce(channel.mpi.IN_PLACE, largest, channel.mpi.MAX)
            wait_asleep(channel, [request])
            if largest[0] != -largest[1]:
                raise CommunicationError(difference(communicator.allgather(text), channel.members))


def _nothing():
    """Do nothing: no first calls have begun."""
