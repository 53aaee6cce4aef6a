"""The verbs on MPI, through mpi4py's buffer calls.

Two channels, so that nothing can be mixed up: the verbs talk on a duplicate of the user's
communicator; pieces of all_to_all and of large scatters use a tag of their own on it.

Counts beyond `count_limit` elements, which one MPI call cannot take, go in several calls ("large
road"). The decision depends on what all ranks of the call know, so they take the same road.
"""

import time
import zlib

import numpy

from ...errors import CommunicationError
from ..backend import CommunicationBackend
from ..checked import SIGNATURES, difference
from ..checks import MAX_TAG, pieces_of
from ..operations import Handle, ReductionOperation

PIECE_TAG = MAX_TAG + 1
INT_MAX = 2**31 - 1
COMPARED_CALLS = 100  # of each group, from the first: a script that is wrong is wrong there
TRY_CHECKED = "try again with SHARDKIT_CHECK=1, which names the rank that makes another call"
SHORTEST_NAP, LONGEST_NAP = 2e-5, 5e-4  # seconds


class MPIVerbs(CommunicationBackend):
    """A backend whose verbs go to a communicator, which is made later: initialize() or split() sets
    _comm.

    shares_cores  True if some node has more ranks than cores; the same on all ranks. An MPI library
                  waits by asking again and again, which keeps the core from those that are waited
                  for; so ranks meet asleep before they go there.
    """

    count_limit = INT_MAX
    shares_cores = False

    def __init__(self, mpi, rank: int, world_size: int):
        super().__init__(rank, world_size)
        self._mpi, self._comm = mpi, None
        self._num_compared = 0
        self._failures = _MPIErrors(self)
        self._address = mpi.Get_address  # in an eighth of the time that NumPy takes to tell
        self._ops = {
            ReductionOperation.SUM: mpi.SUM,
            ReductionOperation.AVERAGE: mpi.SUM,
            ReductionOperation.PRODUCT: mpi.PROD,
            ReductionOperation.MIN: mpi.MIN,
            ReductionOperation.MAX: mpi.MAX,
        }

    # ---- collectives -----------------------------------------------------------------------------

    def _barrier(self):
        with self._errors():
            self._meet("_barrier")
            self._comm.Barrier()

    def _all_reduce(self, array, op):
        with self._errors():
            self._meet("_all_reduce", array, op)
            for span in self._spans(array):
                self._comm.Allreduce(self._mpi.IN_PLACE, span, self._ops[op])

    def _broadcast(self, array, root):
        with self._errors():
            self._meet("_broadcast", array, root)
            for span in self._spans(array):
                self._comm.Bcast(span, root)

    def _all_gather(self, send, receive, counts):
        own = self._put_own(send, receive, counts)
        with self._errors():
            self._meet("_all_gather", send, receive, counts)
            if sum(counts) > self.count_limit:  # large road: every owner broadcasts its slice
                for owner, piece in enumerate(own):
                    self._broadcast(piece, owner)
            elif _are_equal(counts):
                self._comm.Allgather(self._mpi.IN_PLACE, receive)
            else:
                self._comm.Allgatherv(self._mpi.IN_PLACE, [receive, counts])

    def _reduce_scatter(self, send, receive, counts, op):
        with self._errors():
            self._meet("_reduce_scatter", send, receive, counts, op)
            if sum(counts) <= self.count_limit:
                return self._comm.Reduce_scatter(send, receive, counts, self._ops[op])
            for owner, piece in enumerate(
                pieces_of(send, counts)
            ):  # large road: reduce every slice to its owner
                for span, into in zip(
                    self._spans(piece), self._spans(receive if owner == self.rank else piece)
                ):
                    self._comm.Reduce(
                        span, into if owner == self.rank else None, self._ops[op], owner
                    )

    def _scatter(self, send, receive, root, counts):
        self._compare_early("_scatter", send, receive, root, counts)
        if self.rank != root:
            return self._transfer([], [(root, receive)])
        pieces = pieces_of(send, counts)
        self._copy_unless_same(pieces[root], receive)
        self._transfer([(rank, piece) for rank, piece in enumerate(pieces) if rank != root], [])

    def _gather(self, send, receive, root, counts):
        self._compare_early("_gather", send, receive, root, counts)
        if self.rank != root:
            return self._transfer([(root, send)], [])
        pieces = pieces_of(receive, counts)
        self._copy_unless_same(send, pieces[root])
        self._transfer([], [(rank, piece) for rank, piece in enumerate(pieces) if rank != root])

    def _all_to_all(self, send, receive, send_counts, receive_counts, send_starts, receive_starts):
        self._compare_early("_all_to_all", send, receive, send_counts, receive_counts)
        outgoing, incoming = (
            pieces_of(send, send_counts, send_starts),
            pieces_of(receive, receive_counts, receive_starts),
        )
        incoming[self.rank][...] = outgoing[self.rank]
        others = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]
        self._transfer(
            [(rank, outgoing[rank]) for rank in others],
            [(rank, incoming[rank]) for rank in reversed(others)],
        )

    def _transfer(self, outgoing, incoming):
        self._begin_exchange(outgoing, incoming, PIECE_TAG).wait()

    def _begin_exchange(self, outgoing, incoming, tag):
        with self._errors():
            spans = [(rank, span) for rank, array in incoming for span in self._messages(array)]
            requests = [self._comm.Irecv(span, rank, tag) for rank, span in spans]
            requests += [
                self._comm.Isend(span, rank, tag)
                for rank, array in outgoing
                for span in self._messages(array)
            ]
            return _RequestsHandle(self, requests, spans)

    # ---- between two ranks -----------------------------------------------------------------------

    def _send(self, array, destination, tag):
        self._isend(array, destination, tag).wait()

    def _receive(self, array, source, tag):
        self._irecv(array, source, tag).wait()

    def _isend(self, array, destination, tag):
        with self._errors():
            return _RequestsHandle(
                self, [self._comm.Isend(span, destination, tag) for span in self._spans(array)], []
            )

    def _irecv(self, array, source, tag):
        with self._errors():
            spans = [(source, span) for span in self._spans(array)]
            return _RequestsHandle(
                self, [self._comm.Irecv(span, source, tag) for _, span in spans], spans
            )

    # ---- non-blocking collectives ----------------------------------------------------------------

    def _iall_reduce(self, array, op):
        with self._errors():
            return _RequestsHandle(
                self,
                [
                    self._comm.Iallreduce(self._mpi.IN_PLACE, span, self._ops[op])
                    for span in self._spans(array)
                ],
                [],
            )

    def _iall_gather(self, send, receive, counts):
        own = self._put_own(send, receive, counts)
        with self._errors():
            if sum(counts) <= self.count_limit:
                return _RequestsHandle(
                    self, [self._comm.Iallgatherv(self._mpi.IN_PLACE, [receive, counts])], []
                )
            return _RequestsHandle(
                self,
                [
                    self._comm.Ibcast(span, owner)
                    for owner, piece in enumerate(own)
                    for span in self._spans(piece)
                ],
                [],
            )

    def _ireduce_scatter(self, send, receive, counts, op):
        with self._errors():
            if sum(counts) <= self.count_limit:
                return _RequestsHandle(
                    self, [self._comm.Ireduce_scatter(send, receive, counts, self._ops[op])], []
                )
            requests = []
            for owner, piece in enumerate(pieces_of(send, counts)):
                for span, into in zip(
                    self._spans(piece), self._spans(receive if owner == self.rank else piece)
                ):
                    requests.append(
                        self._comm.Ireduce(
                            span, into if owner == self.rank else None, self._ops[op], owner
                        )
                    )
            return _RequestsHandle(self, requests, [])

    # ---- before a collective ---------------------------------------------------------------------

    def _meet(self, verb, *arguments):
        """Where ranks share cores, return when all have come, and have compared what they call
        unless they did before.
        """
        if self.shares_cores and not self._is_early:
            self._compare(verb, arguments)

    @property
    def _is_early(self) -> bool:
        return self._num_compared < COMPARED_CALLS

    def _compare_early(self, verb, *arguments):
        """Compare the first calls of this group: later ones are not worth a message each, unless in
        checked mode.
        """
        if self._is_early:
            with self._errors():
                self._compare(verb, arguments)

    def _compare(self, verb, arguments):
        """Errors, on all ranks: CommunicationError if they make different calls. One message of 16
        bytes; waits asleep.

        An MPI library may answer ranks that differ with wrong numbers, or by ending the job with
        words of its own.
        """
        self._num_compared += 1
        text = SIGNATURES[verb](*arguments)
        number = zlib.crc32(text.encode())
        largest = numpy.array([number, -number], numpy.int64)
        self._wait_all([self._comm.Iallreduce(self._mpi.IN_PLACE, largest, self._mpi.MAX)])
        if largest[0] != -largest[1]:
            raise CommunicationError(difference(self._comm.allgather(text), self))

    # ---- waiting ---------------------------------------------------------------------------------

    def _meet_asleep(self):
        """Where ranks share cores, return when all have come."""
        if self.shares_cores:
            self._wait_all([self._comm.Ibarrier()])

    def _wait_all(self, requests, statuses=None):
        """Return when all are complete."""
        if not self.shares_cores:
            return self._mpi.Request.Waitall(requests, statuses)
        seconds = SHORTEST_NAP
        while not self._mpi.Request.Testall(requests, statuses):
            time.sleep(seconds)
            seconds = min(2 * seconds, LONGEST_NAP)

    # ---- pieces and errors -----------------------------------------------------------------------

    def _spans(self, array):
        """Views of at most count_limit elements that cover the array; one empty view if it is
        empty.
        """
        for start in range(0, max(array.size, 1), self.count_limit):
            yield array[start : start + self.count_limit]

    def _messages(self, array):
        return self._spans(array) if array.size else ()

    def _put_own(self, send, receive, counts):
        """The slices of `receive`, with this rank's own in its place."""
        pieces = pieces_of(receive, counts)
        self._copy_unless_same(send, pieces[self.rank])
        return pieces

    def _copy_unless_same(self, source, target):
        if source.size and self._address(source) != self._address(target):
            target[...] = source

    def _errors(self):
        return self._failures


class _MPIErrors:
    """Context manager: an error of the MPI library as a CommunicationError that names the verb."""

    def __init__(self, backend):
        self._backend = backend

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, self._backend._mpi.Exception):
            raise CommunicationError(
                f"{self._backend.progress.current}: MPI says: {error}; if a message was truncated, two "
                f"ranks disagree about its size: {TRY_CHECKED}"
            ) from error


class _RequestsHandle(Handle):
    """Requests that complete together; `expected`: (source, buffer) that each of the first requests
    must fill exactly.
    """

    def __init__(self, backend, requests, expected):
        self._backend, self._requests, self._expected = backend, requests, expected
        self._statuses = [backend._mpi.Status() for _ in requests]

    def wait(self):
        with self._backend._errors():
            self._backend._wait_all(self._requests, self._statuses)
        self._check_sizes()

    def test(self):
        with self._backend._errors():
            is_complete = self._backend._mpi.Request.Testall(self._requests, self._statuses)
        if is_complete:
            self._check_sizes()
        return is_complete

    def _check_sizes(self):
        for (source, buffer), status in zip(self._expected, self._statuses):
            got = status.Get_count(self._backend._mpi.BYTE)
            if got != buffer.nbytes:
                sender, receiver = (
                    self._backend.world_ranks[rank] for rank in (source, self._backend.rank)
                )
                raise CommunicationError(
                    f"rank {sender} sent rank {receiver} {got} bytes, but that expected {buffer.nbytes}; "
                    "the two disagree about its size"
                )


def _are_equal(counts):
    return len(set(counts)) == 1
