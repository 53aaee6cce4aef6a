"""The channel over an MPI library, through mpi4py's buffer calls.

collectives.py has the collectives. Counts beyond `count_limit` elements, which one MPI call cannot
take, go in several calls. Whether they do depends on what all ranks of the call know.
"""

import time
import zlib

import numpy

from ...errors import CommunicationError
from ..channel import Channel, signature
from ..compared import Members, difference
from ..operations import ReductionOperation
from .collectives import COLLECTIVES
from .requests import MPIErrors, RequestsHandle

INT_MAX = 2**31 - 1
COMPARED_CALLS = 100  # of each group, from the first: a script that is wrong is wrong there
SHORTEST_NAP, SHORT_NAP = 2e-5, 5e-4  # seconds
LONGEST_NAP = 2e-2
NAP_SHARE = 0.01  # of what a wait has lasted: naps beyond the short one are no longer


class MPIChannel(Channel):
    """One rank's end of a communicator, which is this channel's own.

    members        who is in the group
    progress       names the call under way, for messages
    shares_cores   True if some node has more ranks than cores; the same on all ranks. An MPI
                   library waits by asking again and again, which keeps the core from those that are
                   waited for; so ranks meet asleep before they go there
    """

    def __init__(
        self,
        mpi,
        communicator,
        members: Members,
        progress,
        *,
        shares_cores: bool,
        count_limit=INT_MAX,
    ):
        super().__init__(communicator.rank, communicator.size)
        self.mpi, self.communicator = mpi, communicator
        self.members, self.progress = members, progress
        self.shares_cores, self.count_limit = shares_cores, count_limit
        self._others_compare = False
        self.errors = MPIErrors(mpi, progress)
        self.address = mpi.Get_address  # in an eighth of the time that NumPy takes to tell
        self.operations = {
            ReductionOperation.SUM: mpi.SUM,
            ReductionOperation.AVERAGE: mpi.SUM,
            ReductionOperation.PRODUCT: mpi.PROD,
            ReductionOperation.MIN: mpi.MIN,
            ReductionOperation.MAX: mpi.MAX,
        }

    def of_part(self, communicator, key: str) -> "MPIChannel":
        """Return a channel for some ranks of this one, over a communicator of theirs."""
        places = communicator.group.Translate_ranks(
            range(communicator.size), self.communicator.group
        )
        world_ranks = tuple(self.members.world_ranks[place] for place in places)
        return MPIChannel(
            self.mpi,
            communicator,
            Members(key, world_ranks),
            self.progress,
            shares_cores=self.shares_cores,
            count_limit=self.count_limit,
        )

    def split(self, color, key):
        """Return a communicator, or None."""
        part = self.communicator.Split(self.mpi.UNDEFINED if color is None else color, key)
        return None if part == self.mpi.COMM_NULL else part

    def close(self):
        self.communicator.Free()

    def plan(self, verb, *arguments):
        return COLLECTIVES[verb](self, verb, arguments)

    def exchange(self, outgoing, incoming, tag):
        with self.errors:
            spans = [
                (rank, span) for rank, array in incoming for span in self.spans(array) if array.size
            ]
            requests = [self.communicator.Irecv(span, rank, tag) for rank, span in spans]
            requests += [
                self.communicator.Isend(span, rank, tag)
                for rank, array in outgoing
                for span in self.spans(array)
                if array.size
            ]
            return RequestsHandle(self, requests, spans)

    # ---- between two ranks -----------------------------------------------------------------------

    def isend(self, array, destination, tag):
        with self.errors:
            return RequestsHandle(
                self,
                [self.communicator.Isend(span, destination, tag) for span in self.spans(array)],
                [],
            )

    def irecv(self, array, source, tag):
        with self.errors:
            spans = [(source, span) for span in self.spans(array)]
            return RequestsHandle(
                self, [self.communicator.Irecv(span, source, tag) for _, span in spans], spans
            )

    # ---- before a collective ---------------------------------------------------------------------

    def let_others_compare(self, others: bool) -> None:
        """Note whether a wrapper compares calls, and thereby meets asleep, before they come here.

        Else ranks that share cores do it here.
        """
        self._others_compare = others

    @property
    def compares_calls(self) -> bool:
        """True if ranks must meet asleep here before a collective."""
        return self.shares_cores and not self._others_compare

    def compare(self, verb: str, arguments: tuple) -> None:
        """Check that all ranks call the same. Collective; a message of 16 bytes; waits asleep.

        An MPI library may answer ranks that differ with wrong numbers, or by ending the job with
        words of its own.
        Errors, on all ranks: CommunicationError if they make different calls.
        """
        text = signature(verb, arguments)
        number = zlib.crc32(text.encode())
        largest = numpy.array([number, -number], numpy.int64)
        with self.errors:
            request = self.communicator.Iallreduce(self.mpi.IN_PLACE, largest, self.mpi.MAX)
            self._wait_asleep([request])
            if largest[0] != -largest[1]:
                raise CommunicationError(
                    difference(self.communicator.allgather(text), self.members)
                )

    def probe(self) -> None:
        """Let MPI make progress."""
        with self.errors:
            self.communicator.Iprobe()

    # ---- waiting ---------------------------------------------------------------------------------

    def meet_asleep(self):
        """Wait until all have come, where ranks share cores."""
        if self.shares_cores:
            self.wait_all([self.communicator.Ibarrier()])

    def wait_all(self, requests, statuses=None):
        """Wait until all are complete."""
        if not self.shares_cores:
            return self.mpi.Request.Waitall(requests, statuses)
        self._wait_asleep(requests, statuses)

    def _wait_asleep(self, requests, statuses=None):
        """Wait until all are complete, asleep: others may need the core, to compile for minutes."""
        slept = 0.0
        seconds = SHORTEST_NAP
        while not self.mpi.Request.Testall(requests, statuses):
            time.sleep(seconds)
            slept += seconds
            seconds = min(2 * seconds, max(SHORT_NAP, NAP_SHARE * slept), LONGEST_NAP)

    def spans(self, array) -> list:
        """Return views of at most count_limit elements that cover the array; one if it is empty."""
        if array.size <= self.count_limit:
            return [array]
        starts = range(0, array.size, self.count_limit)
        return [array[start : start + self.count_limit] for start in starts]


class FirstCalls:
    """Compares the first blocking calls of a group: later ones are not worth a message each.

    done   function () that is called after the last of them
    """

    def __init__(self, messages: MPIChannel, done):
        self._messages, self._done = messages, done
        self._num_left = COMPARED_CALLS
        messages.let_others_compare(True)

    def compare(self, verb: str, arguments: tuple, begins: bool) -> None:
        """Compare one call. Errors, on all ranks: CommunicationError if they differ."""
        if begins or verb == "split":
            return
        self._num_left -= 1
        if self._num_left == 0:
            self._messages.let_others_compare(False)
            self._done()
        self._messages.compare(verb, arguments)
