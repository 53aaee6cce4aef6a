"""What carries the verbs of a group, on flat host arrays.

    CommunicationBackend        checks, parts of arrays, GPU memory, traffic, the ledger
        holds a Channel
            ThreadChannel       ranks are threads of one process            threads/channel.py
            MPIChannel          messages of an MPI library                  mpi/channel.py
            SharedMemoryChannel memory of one node                          node/channel.py
            LevelsChannel       the memory of nodes, messages between them  node/levels.py
            ComparedChannel     around another one: calls are compared      compared.py

A collective is planned, and then called or begun:

    verb             arguments
    barrier
    all_reduce       array, op
    broadcast        array, root
    all_gather       send, receive, counts
    reduce_scatter   send, receive, counts, op
    scatter, gather  send, receive, root, counts
    all_to_all       send, receive, counts to send, to receive, starts to send, to receive

Arrays are NumPy's, 1-D and contiguous; counts and starts are lists of elements, one per rank;
roots, tags and counts have been checked. AVERAGE is a SUM for a channel; the backend divides. The
`send` of all_gather and gather, and `receive` of scatter, may be the own slice of the other array.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable

import numpy

from .operations import Handle, SeveralHandles


class ArrayMemory:
    """Where the arrays of a group lie; node/node.py has the kind that ranks have in common.

    heap        where they should lie: an object with empty(shape, dtype); None: anywhere
    is_shared   all ranks see each other's memory
    address     function (array) -> address of its first byte; None: as NumPy tells it
    """

    def __init__(self, heap=None, *, is_shared: bool = False, address=None):
        self.heap, self.is_shared = heap, is_shared
        self.address = address or _address

    def common(self, size: int, dtype):
        """Return an array [size] that all ranks see, or None on all of them. Collective."""
        return None


def _address(array) -> int:
    return array.ctypes.data


class ChannelCall(metaclass=ABCMeta):
    """A collective with its arguments, planned. Calling it, and beginning it, is collective."""

    @abstractmethod
    def __call__(self) -> None:
        """Make the call: once on the arrays as they are now."""

    @abstractmethod
    def begin(self) -> Handle:
        """Begin it, to be awaited; no other call on the arrays meanwhile."""


class Channel(metaclass=ABCMeta):
    """One rank's end.

    rank, size      this rank in the group, and the number of ranks
    memory          of the arrays that it takes
    communicator    of mpi4py, or None
    levels          the Levels of its nodes, if it has some, else None
    """

    communicator = levels = None

    def __init__(self, rank: int, size: int, memory: ArrayMemory):
        self.rank, self.size = rank, size
        self.memory = memory

    @abstractmethod
    def plan(self, verb: str, *arguments) -> ChannelCall:
        """Return a collective with its arguments; code that it needs is loaded now.

        No communication.
        """

    def run(self, verb: str, *arguments) -> None:
        """Make a collective call that is made once."""
        self.plan(verb, *arguments)()

    def noted_calls(self, group) -> "NotedCalls":
        """Return the verbs that the channel makes with their notes for this group.

        group   its Verbs, whose renew_noted() the channel calls when there are more
        """
        return NotedCalls()

    def adds_in_tree_order(self, num_bytes: int, dtype) -> bool:
        """Return True if sums of such arrays are added as the tree of ordered.py."""
        return False

    @abstractmethod
    def split(self, color: int | None, key: int):
        """Return this rank's place in the group of its color; None for color None. Collective."""

    @abstractmethod
    def isend(self, array, destination, tag) -> Handle: ...

    @abstractmethod
    def irecv(self, array, source, tag) -> Handle: ...

    def exchange(self, outgoing, incoming, tag) -> Handle:
        """Begin messages to and from several ranks, as one handle; lists of (rank, array)."""
        return SeveralHandles(
            [self.irecv(array, rank, tag) for rank, array in incoming]
            + [self.isend(array, rank, tag) for rank, array in outgoing]
        )

    def close(self) -> None:
        """Free what the channel holds; no verb follows. Collective."""


class NotedCalls:
    """Verbs of a group that a channel makes with all that belongs to them: record, count, bytes.

    Each is a function that returns False, and has done nothing, if the group must make the call;
    here all do so. Arguments: array and op, array and root, send and receive, these and op.
    """

    barrier = all_reduce = broadcast = all_gather = reduce_scatter = staticmethod(
        lambda *arguments: False
    )

    def bind(self, verb: str, arguments: tuple, site: int) -> tuple | None:
        """Return a call as two functions, () -> stage and (stage) -> bool; None: it is not made.

        The first makes it, and returns 0; or else the second goes on with it, and returns False if
        nothing was done.
        arguments   as for Channel.plan(); slices are equal
        site        number of the place that is recorded as its caller
        """
        return None

    def close(self) -> None:
        """Make no calls from now on, also none that were bound."""


class WrappedChannel(Channel):
    """A channel around another one, which does all; a wrapper overrides some of it."""

    def __init__(self, inside: Channel):
        super().__init__(inside.rank, inside.size, inside.memory)
        self.inside = inside
        self.communicator = inside.communicator
        self.levels = inside.levels

    def plan(self, verb, *arguments):
        return self.inside.plan(verb, *arguments)

    def adds_in_tree_order(self, num_bytes, dtype):
        return self.inside.adds_in_tree_order(num_bytes, dtype)

    def split(self, color, key):
        return self.inside.split(color, key)

    def isend(self, array, destination, tag):
        return self.inside.isend(array, destination, tag)

    def irecv(self, array, source, tag):
        return self.inside.irecv(array, source, tag)

    def exchange(self, outgoing, incoming, tag):
        return self.inside.exchange(outgoing, incoming, tag)

    def close(self):
        self.inside.close()


class ShortCall(ChannelCall):
    """A call that goes another way than through the channel inside, if that takes it.

    way      function () -> bool; False, and nothing was done: the channel inside makes the call
    inside   that channel; it begins every call that is begun
    """

    def __init__(self, way: Callable[[], bool], inside: Channel, verb: str, arguments: tuple):
        self._way, self._inside = way, inside
        self._verb, self._arguments = verb, arguments

    def __call__(self):
        if not self._way():
            self._inside.run(self._verb, *self._arguments)

    def begin(self):
        return self._inside.plan(self._verb, *self._arguments).begin()


def bytes_of(arguments) -> int:
    """Return the bytes of the largest array among the arguments of a verb; 0 if there is none."""
    return max((a.nbytes for a in arguments if isinstance(a, numpy.ndarray)), default=0)


def counts_text(counts) -> str:
    """Return counts for a signature: short when they are equal, as they mostly are."""
    return f"{len(counts)} x {counts[0]}" if len(set(counts)) == 1 else str(counts)


_SIGNATURES = {
    "barrier": lambda: "barrier",
    "all_reduce": lambda array, op: f"all_reduce({op.value}, {array.size} {array.dtype})",
    "broadcast": lambda array, root: f"broadcast(root {root}, {array.size} {array.dtype})",
    "all_gather": lambda send, receive, counts: (
        f"all_gather({counts_text(counts)} {receive.dtype})"
    ),
    "reduce_scatter": lambda send, receive, counts, op: (
        f"reduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})"
    ),
    "scatter": lambda send, receive, root, counts: (
        f"scatter(root {root}, {counts_text(counts)} {receive.dtype})"
    ),
    "gather": lambda send, receive, root, counts: (
        f"gather(root {root}, {counts_text(counts)} {send.dtype})"
    ),
    "all_to_all": lambda send, *rest: f"all_to_all({send.dtype})",
    "split": lambda color, key: "split",
}


def signature(verb: str, arguments: tuple, *, begins: bool = False) -> str:
    """Return what all ranks of a call must pass alike, as text; begins: the call is begun."""
    return ("i" if begins else "") + _SIGNATURES[verb](*arguments)
