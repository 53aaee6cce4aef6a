"""The channel over an MPI library, through mpi4py's buffer calls.

collectives.py has the collectives. Counts beyond `count_limit` elements, which one MPI call cannot
take, go in several calls. Whether they do depends on what all ranks of the call know.
"""

from collections.abc import Callable

from ..channel import ArrayMemory, Channel, bytes_of
from ..compared import Members
from ..ranks import compact
from .collectives import OF_LIBRARY, OF_MESSAGES, InterruptibleCall, LibraryCall, PiecesCall
from .comparing import MPIComparison
from .requests import MPIErrors, RequestsHandle, spans_of

INT_MAX = 2**31 - 1


class MPIChannel(Channel):
    """One rank's end of a communicator, which is this channel's own.

    members        who is in the group
    progress       names the call under way, for messages
    comparison     of collectives of the library, before they are called
    shares_cores   True if some node has more ranks than cores; the same on all ranks. An MPI
                   library waits by asking again and again, which keeps the core from those that are
                   waited for; so ranks meet asleep before they go there
    look           function () that is called while this rank waits, and raises if it waits for a
                   lost one; None: this rank waits inside of the library, which nobody interrupts
    """

    def __init__(
        self,
        mpi,
        communicator,
        members: Members,
        progress,
        *,
        shares_cores: bool,
        look: Callable[..., None] | None = None,
        count_limit=INT_MAX,
    ):
        # Get_address takes an eighth of the time that NumPy takes to tell
        memory = ArrayMemory(address=mpi.Get_address)
        super().__init__(communicator.rank, communicator.size, memory)
        self.mpi, self.communicator = mpi, communicator
        self.members, self.progress = members, progress
        self.shares_cores, self.count_limit = shares_cores, count_limit
        self.look = look
        self.errors = MPIErrors(mpi, progress, look)
        self.comparison = MPIComparison(self)

    def of_part(self, communicator, key: str) -> "MPIChannel":
        """Return a channel for some ranks of this one, over a communicator of theirs."""
        places = communicator.group.Translate_ranks(
            range(communicator.size), self.communicator.group
        )
        world_ranks = compact([self.members.world_ranks[place] for place in places])
        return MPIChannel(
            self.mpi,
            communicator,
            Members(key, world_ranks),
            self.progress,
            shares_cores=self.shares_cores,
            look=self.look,
            count_limit=self.count_limit,
        )

    def split(self, color, key):
        """Return a communicator, or None."""
        if self.look is not None:  # the library waits for ranks that never come
            self.plan("barrier")()
        part = self.communicator.Split(self.mpi.UNDEFINED if color is None else color, key)
        return None if part == self.mpi.COMM_NULL else part

    def close(self):
        self.communicator.Free()

    def plan(self, verb, *arguments):
        if verb in OF_MESSAGES:
            return PiecesCall(self, *OF_MESSAGES[verb](self, *arguments))
        call = LibraryCall(self, verb, arguments, *OF_LIBRARY[verb](self, *arguments))
        if self.look is None:
            return call
        return InterruptibleCall(self, call, bytes_of(arguments))

    def exchange(self, outgoing, incoming, tag):
        with self.errors:
            spans = self._spans(incoming)
            requests = [self.communicator.Irecv(span, rank, tag) for rank, span in spans]
            for rank, span in self._spans(outgoing):
                requests.append(self.communicator.Isend(span, rank, tag))
            return RequestsHandle(self, requests, spans)

    def _spans(self, pieces) -> list[tuple]:
        """Return (rank, elements of one message) of pieces (rank, array) that are not empty."""
        return [
            (rank, span)
            for rank, array in pieces
            for span in spans_of(array, self.count_limit)
            if array.size
        ]

    # ---- between two ranks -----------------------------------------------------------------------

    def isend(self, array, destination, tag):
        with self.errors:
            return RequestsHandle(
                self,
                [
                    self.communicator.Isend(span, destination, tag)
                    for span in spans_of(array, self.count_limit)
                ],
                [],
            )

    def irecv(self, array, source, tag):
        with self.errors:
            spans = [(source, span) for span in spans_of(array, self.count_limit)]
            return RequestsHandle(
                self, [self.communicator.Irecv(span, source, tag) for _, span in spans], spans
            )

    def probe(self) -> None:
        """Let MPI make progress."""
        with self.errors:
            self.communicator.Iprobe()
        if self.look is not None:
            self.look()
