"""Each collective of a channel as calls of an MPI library, which are made or begun.

    LibraryCall    copies of this rank, then collectives of the library: Allreduce, or Iallreduce if
                   the call is begun
    PiecesCall     copies of this rank, then messages with pieces to and from the others

Pieces have a tag of their own, so that they never match messages of users.
"""

from ..channel import ChannelCall
from ..checks import PIECE_TAG, pieces_of
from ..operations import ReductionOperation
from .requests import RequestsHandle, spans_of, wait_all

LARGE_BYTES = 65536
_OPERATIONS = {  # names in mpi4py
    ReductionOperation.SUM: "SUM",
    ReductionOperation.AVERAGE: "SUM",
    ReductionOperation.PRODUCT: "PROD",
    ReductionOperation.MIN: "MIN",
    ReductionOperation.MAX: "MAX",
}


class LibraryCall(ChannelCall):
    """Collectives of the library, one after the other.

    copies   (source, target): this rank's elements that change their place
    calls    (name of a communicator's method, its arguments)
    """

    def __init__(self, channel, verb, arguments, copies, calls):
        self._channel, self._verb, self._arguments = channel, verb, arguments
        self._copies, self._calls = copies, calls

    def __call__(self):
        copy(self._copies)
        channel = self._channel
        with channel.errors:
            channel.comparison.meet(self._verb, self._arguments)
            for name, arguments in self._calls:
                getattr(channel.communicator, name)(*arguments)

    def begin(self):
        copy(self._copies)
        communicator = self._channel.communicator
        with self._channel.errors:
            requests = [
                getattr(communicator, f"I{name.lower()}")(*arguments)
                for name, arguments in self._calls
            ]
            return RequestsHandle(self._channel, requests, [])


class InterruptibleCall(ChannelCall):
    """A call of the library for which the wait can end by an error: others may be lost.

    inside      a LibraryCall
    num_bytes   that it carries, the same on all ranks: large ones are made when all have come,
                since libraries take twice as long for what is begun
    """

    def __init__(self, channel, inside: LibraryCall, num_bytes: int):
        self._channel, self._inside = channel, inside
        self._is_large = num_bytes >= LARGE_BYTES

    def __call__(self):
        if not self._is_large:
            return self.begin().wait()
        with self._channel.errors:
            wait_all(self._channel, [self._channel.communicator.Ibarrier()])
        self._inside()

    def begin(self):
        return self._inside.begin()


class PiecesCall(ChannelCall):
    """Messages with pieces.

    outgoing, incoming   (rank, piece) of the other ranks
    """

    def __init__(self, channel, copies, outgoing, incoming):
        self._channel, self._copies = channel, copies
        self._outgoing, self._incoming = outgoing, incoming

    def __call__(self):
        self.begin().wait()

    def begin(self):
        copy(self._copies)
        return self._channel.exchange(self._outgoing, self._incoming, PIECE_TAG)


def copy(copies) -> None:
    """Copy each source to its target."""
    for source, target in copies:
        target[...] = source


def moved(channel, source, target) -> list[tuple]:
    """Return the copy of a source to its target; none if it is there, or empty."""
    address = channel.memory.address
    is_there = not source.size or address(source) == address(target)
    return [] if is_there else [(source, target)]


# ---- collectives of the library: copies and calls ------------------------------------------------


def _barrier(channel):
    return [], [("Barrier", ())]


def _all_reduce(channel, array, op):
    combine = getattr(channel.mpi, _OPERATIONS[op])
    return [], [
        ("Allreduce", (channel.mpi.IN_PLACE, span, combine))
        for span in spans_of(array, channel.count_limit)
    ]


def _broadcast(channel, array, root):
    return [], [("Bcast", (span, root)) for span in spans_of(array, channel.count_limit)]


def _all_gather(channel, send, receive, counts):
    slices = pieces_of(receive, counts)
    if sum(counts) > channel.count_limit:  # every owner broadcasts its slice
        calls = [
            ("Bcast", (span, owner))
            for owner, piece in enumerate(slices)
            for span in spans_of(piece, channel.count_limit)
        ]
    elif len(set(counts)) == 1:
        calls = [("Allgather", (channel.mpi.IN_PLACE, receive))]
    else:
        calls = [("Allgatherv", (channel.mpi.IN_PLACE, [receive, counts]))]
    return moved(channel, send, slices[channel.rank]), calls


def _reduce_scatter(channel, send, receive, counts, op):
    combine = getattr(channel.mpi, _OPERATIONS[op])
    if sum(counts) <= channel.count_limit:
        return [], [("Reduce_scatter", (send, receive, counts, combine))]
    return [], [  # every slice is reduced to its owner
        ("Reduce", (span, into if owner == channel.rank else None, combine, owner))
        for owner, piece in enumerate(pieces_of(send, counts))
        for span, into in zip(
            spans_of(piece, channel.count_limit),
            spans_of(receive if owner == channel.rank else piece, channel.count_limit),
        )
    ]


# ---- messages: copies, what goes to others, and what comes from them -----------------------------


def _scatter(channel, send, receive, root, counts):
    if channel.rank != root:
        return [], [], [(root, receive)]
    pieces = pieces_of(send, counts)
    return moved(channel, pieces[root], receive), _but(root, pieces), []


def _gather(channel, send, receive, root, counts):
    if channel.rank != root:
        return [], [(root, send)], []
    pieces = pieces_of(receive, counts)
    return moved(channel, send, pieces[root]), [], _but(root, pieces)


def _but(rank, pieces) -> list[tuple]:
    """Return the pieces of all other ranks, with these."""
    return [(other, piece) for other, piece in enumerate(pieces) if other != rank]


def _all_to_all(channel, send, receive, send_counts, receive_counts, send_starts, receive_starts):
    outgoing = pieces_of(send, send_counts, send_starts)
    incoming = pieces_of(receive, receive_counts, receive_starts)
    others = [(channel.rank + step) % channel.size for step in range(1, channel.size)]
    return (
        [(outgoing[channel.rank], incoming[channel.rank])],
        [(rank, outgoing[rank]) for rank in others],
        [(rank, incoming[rank]) for rank in reversed(others)],
    )


OF_LIBRARY = {
    "barrier": _barrier,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}
OF_MESSAGES = {"scatter": _scatter, "gather": _gather, "all_to_all": _all_to_all}
