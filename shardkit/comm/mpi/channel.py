"""The channel over an MPI library, through mpi4py's buffer calls.

Pieces of all_to_all and of large scatters use a tag of their own, so that they never match messages
of users. Counts beyond `count_limit` elements, which one MPI call cannot take, go in several calls.
Whether they do depends on what all ranks of the call know.
"""

import time
import zlib

import numpy

from ...errors import CommunicationError
from ..channel import SIGNATURES, Channel
from ..checks import PIECE_TAG, pieces_of
from ..compared import Members, difference
from ..operations import ReductionOperation
from .requests import MPIErrors, RequestsHandle

INT_MAX = 2**31 - 1
COMPARED_CALLS = 100  # of each group, from the first: a script that is wrong is wrong there
NOT_BLOCKING = ("split", "iall_reduce", "iall_gather", "ireduce_scatter")
SHORTEST_NAP, LONGEST_NAP = 2e-5, 5e-4  # seconds


class MPIChannel(Channel):
    """One rank's end of a communicator, which is this channel's own.

    members        who is in the group
    progress       names the call under way, for messages
    shares_cores   True if some node has more ranks than cores; the same on all ranks. An MPI
                   library waits by asking again and again, which keeps the core from those that are
                   waited for; so ranks meet asleep before they go there
    is_compared    a wrapper compares calls, and thereby meets asleep, before they arrive here
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
        self.is_compared = False
        self.errors = MPIErrors(mpi, progress)
        self.address = mpi.Get_address  # in an eighth of the time that NumPy takes to tell
        self._ops = {
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

    # ---- collectives -----------------------------------------------------------------------------

    def barrier(self):
        with self.errors:
            if self.shares_cores and not self.is_compared:
                self.compare("barrier", ())
            self.communicator.Barrier()

    def all_reduce(self, array, op):
        with self.errors:
            if self.shares_cores and not self.is_compared:
                self.compare("all_reduce", (array, op))
            if array.size <= self.count_limit:
                return self.communicator.Allreduce(self.mpi.IN_PLACE, array, self._ops[op])
            for span in self._spans(array):
                self.communicator.Allreduce(self.mpi.IN_PLACE, span, self._ops[op])

    def broadcast(self, array, root):
        with self.errors:
            if self.shares_cores and not self.is_compared:
                self.compare("broadcast", (array, root))
            for span in self._spans(array):
                self.communicator.Bcast(span, root)

    def all_gather(self, send, receive, counts):
        own = self._put_own(send, receive, counts)
        with self.errors:
            if self.shares_cores and not self.is_compared:
                self.compare("all_gather", (send, receive, counts))
            if sum(counts) > self.count_limit:  # every owner broadcasts its slice
                for owner, piece in enumerate(own):
                    self.broadcast(piece, owner)
            elif _are_equal(counts):
                self.communicator.Allgather(self.mpi.IN_PLACE, receive)
            else:
                self.communicator.Allgatherv(self.mpi.IN_PLACE, [receive, counts])

    def reduce_scatter(self, send, receive, counts, op):
        with self.errors:
            if self.shares_cores and not self.is_compared:
                self.compare("reduce_scatter", (send, receive, counts, op))
            if sum(counts) <= self.count_limit:
                return self.communicator.Reduce_scatter(send, receive, counts, self._ops[op])
            # beyond the limit every slice is reduced to its owner
            for owner, piece in enumerate(pieces_of(send, counts)):
                for span, into in zip(
                    self._spans(piece), self._spans(receive if owner == self.rank else piece)
                ):
                    self.communicator.Reduce(
                        span, into if owner == self.rank else None, self._ops[op], owner
                    )

    def scatter(self, send, receive, root, counts):
        if self.rank != root:
            return self.exchange([], [(root, receive)], PIECE_TAG).wait()
        pieces = pieces_of(send, counts)
        self._copy_unless_same(pieces[root], receive)
        others = [(rank, piece) for rank, piece in enumerate(pieces) if rank != root]
        self.exchange(others, [], PIECE_TAG).wait()

    def gather(self, send, receive, root, counts):
        if self.rank != root:
            return self.exchange([(root, send)], [], PIECE_TAG).wait()
        pieces = pieces_of(receive, counts)
        self._copy_unless_same(send, pieces[root])
        others = [(rank, piece) for rank, piece in enumerate(pieces) if rank != root]
        self.exchange([], others, PIECE_TAG).wait()

    def all_to_all(self, send, receive, send_counts, receive_counts, send_starts, receive_starts):
        outgoing = pieces_of(send, send_counts, send_starts)
        incoming = pieces_of(receive, receive_counts, receive_starts)
        incoming[self.rank][...] = outgoing[self.rank]
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self.exchange(
            [(rank, outgoing[rank]) for rank in others],
            [(rank, incoming[rank]) for rank in reversed(others)],
            PIECE_TAG,
        ).wait()

    def exchange(self, outgoing, incoming, tag):
        with self.errors:
            spans = [
                (rank, span)
                for rank, array in incoming
                for span in self._spans(array)
                if array.size
            ]
            requests = [self.communicator.Irecv(span, rank, tag) for rank, span in spans]
            requests += [
                self.communicator.Isend(span, rank, tag)
                for rank, array in outgoing
                for span in self._spans(array)
                if array.size
            ]
            return RequestsHandle(self, requests, spans)

    # ---- between two ranks -----------------------------------------------------------------------

    def isend(self, array, destination, tag):
        with self.errors:
            return RequestsHandle(
                self,
                [self.communicator.Isend(span, destination, tag) for span in self._spans(array)],
                [],
            )

    def irecv(self, array, source, tag):
        with self.errors:
            spans = [(source, span) for span in self._spans(array)]
            return RequestsHandle(
                self, [self.communicator.Irecv(span, source, tag) for _, span in spans], spans
            )

    # ---- non-blocking collectives ----------------------------------------------------------------

    def iall_reduce(self, array, op):
        with self.errors:
            return RequestsHandle(
                self,
                [
                    self.communicator.Iallreduce(self.mpi.IN_PLACE, span, self._ops[op])
                    for span in self._spans(array)
                ],
                [],
            )

    def iall_gather(self, send, receive, counts):
        own = self._put_own(send, receive, counts)
        with self.errors:
            if sum(counts) <= self.count_limit:
                return RequestsHandle(
                    self, [self.communicator.Iallgatherv(self.mpi.IN_PLACE, [receive, counts])], []
                )
            return RequestsHandle(
                self,
                [
                    self.communicator.Ibcast(span, owner)
                    for owner, piece in enumerate(own)
                    for span in self._spans(piece)
                ],
                [],
            )

    def ireduce_scatter(self, send, receive, counts, op):
        with self.errors:
            if sum(counts) <= self.count_limit:
                return RequestsHandle(
                    self,
                    [self.communicator.Ireduce_scatter(send, receive, counts, self._ops[op])],
                    [],
                )
            requests = []
            for owner, piece in enumerate(pieces_of(send, counts)):
                for span, into in zip(
                    self._spans(piece), self._spans(receive if owner == self.rank else piece)
                ):
                    requests.append(
                        self.communicator.Ireduce(
                            span, into if owner == self.rank else None, self._ops[op], owner
                        )
                    )
            return RequestsHandle(self, requests, [])

    # ---- before a collective ---------------------------------------------------------------------

    def compare(self, verb, arguments) -> None:
        """Check that all ranks call the same. Collective; a message of 16 bytes; waits asleep.

        An MPI library may answer ranks that differ with wrong numbers, or by ending the job with
        words of its own.
        Errors, on all ranks: CommunicationError if they make different calls.
        """
        text = SIGNATURES[verb](*arguments)
        number = zlib.crc32(text.encode())
        largest = numpy.array([number, -number], numpy.int64)
        with self.errors:
            request = self.communicator.Iallreduce(self.mpi.IN_PLACE, largest, self.mpi.MAX)
            self.wait_all([request])
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
        seconds = SHORTEST_NAP
        while not self.mpi.Request.Testall(requests, statuses):
            time.sleep(seconds)
            seconds = min(2 * seconds, LONGEST_NAP)

    # ---- pieces and errors -----------------------------------------------------------------------

    def _spans(self, array):
        """Yield views of at most count_limit elements that cover the array; one if it is empty."""
        for start in range(0, max(array.size, 1), self.count_limit):
            yield array[start : start + self.count_limit]

    def _put_own(self, send, receive, counts):
        """Return the slices of `receive`, with this rank's own in its place."""
        pieces = pieces_of(receive, counts)
        self._copy_unless_same(send, pieces[self.rank])
        return pieces

    def _copy_unless_same(self, source, target):
        if source.size and self.address(source) != self.address(target):
            target[...] = source


class FirstCalls:
    """Compares the first blocking calls of a group: later ones are not worth a message each.

    done   function () that is called after the last of them
    """

    def __init__(self, messages: MPIChannel, done):
        self._messages, self._done = messages, done
        self._num_left = COMPARED_CALLS
        messages.is_compared = True

    def compare(self, verb, arguments) -> None:
        """Compare one call. Errors, on all ranks: CommunicationError if they differ."""
        if verb in NOT_BLOCKING:
            return
        self._num_left -= 1
        if self._num_left == 0:
            self._messages.is_compared = False
            self._done()
        self._messages.compare(verb, arguments)


def _are_equal(counts):
    return len(set(counts)) == 1
