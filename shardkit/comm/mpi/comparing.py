"""Calls of a group over MPI, compared before an MPI library gets them.

A library may answer ranks that differ with wrong numbers, or by ending the job with words of its
own. The first calls of a group are compared, and all of them where ranks share cores, since these
meet asleep in the comparison.
"""

import zlib

import numpy

from ...errors import CommunicationError
from ..channel import signature
from ..compared import difference
from .requests import wait_all

COMPARED_CALLS = 100  # of each group, from the first: a script that is wrong is wrong there


class Comparison:
    """What the ranks of a channel are about to call.

    is_elsewhere   True while a wrapper compares calls before they come to the channel, so that
                   ranks have met asleep
    """

    def __init__(self, channel):
        self._channel = channel
        self.is_elsewhere = False

    def meet(self, verb: str, arguments: tuple) -> None:
        """Let ranks that share cores meet asleep before a collective of the library. Collective."""
        if self._channel.shares_cores and not self.is_elsewhere:
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
            wait_all(channel, [request])
            if largest[0] != -largest[1]:
                raise CommunicationError(difference(communicator.allgather(text), channel.members))


class FirstCalls:
    """Compares the first blocking calls of a group: later ones are not worth a message each.

    done   function () that is called after the last of them
    """

    def __init__(self, comparison: Comparison, done):
        self._comparison, self._done = comparison, done
        self._num_left = COMPARED_CALLS
        comparison.is_elsewhere = True

    def compare(self, verb: str, arguments: tuple, begins: bool) -> None:
        """Compare one call. Errors, on all ranks: CommunicationError if they differ."""
        if begins or verb == "split":
            return
        self._num_left -= 1
        if self._num_left == 0:
            self._comparison.is_elsewhere = False
            self._done()
        self._comparison.compare(verb, arguments)
