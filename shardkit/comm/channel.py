"""What carries the verbs of a group: a few of them, on flat host arrays.

    CommunicationBackend        checks, parts of arrays, GPU memory, traffic, the ledger
        holds a Channel
            ThreadChannel       ranks are threads of one process            threads/channel.py
            MPIChannel          messages of an MPI library                  mpi/channel.py
            SharedMemoryChannel memory of one node                          node/channel.py
            LevelsChannel       the memory of nodes, messages between them  node/levels.py
            ComparedChannel     around another one: calls are compared      compared.py

Arrays are NumPy's, 1-D and contiguous; counts and starts are lists of elements, one per rank;
roots, tags and counts have been checked. AVERAGE is a SUM for a channel; the backend divides. The
`send` of all_gather and gather, and `receive` of scatter, may be the own slice of the other array.
"""

from abc import ABCMeta, abstractmethod

from .operations import Handle, SeveralHandles


class Channel(metaclass=ABCMeta):
    """One rank's end.

    rank, size      this rank in the group, and the number of ranks
    communicator    of mpi4py, or None
    heap            where arrays should lie: an object with empty(shape, dtype); None: anywhere
    shares_memory   all ranks see each other's memory
    levels          the LevelsChannel, if there is one, else None
    """

    communicator = heap = levels = None
    shares_memory = False

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def address(self, array) -> int:
        """Return the address of the first byte of the array."""
        return array.ctypes.data

    def adds_in_tree_order(self, num_bytes: int, dtype) -> bool:
        """Return True if sums of such arrays are added as the tree of ordered.py."""
        return False

    def serve(self, group) -> None:
        """Give the group's verbs a short road (node/quick.py), now or later, if there is one."""

    def load(self, verb: str, num_bytes: int, dtype=None) -> None:
        """Load the code of a call that comes next, before it begins and others wait in it.

        num_bytes, dtype   of an array of this rank, if the verb has one
        """

    def common(self, size: int, dtype):
        """Return an array [size] that all ranks see, or None on all of them. Collective."""
        return None

    @abstractmethod
    def split(self, color: int | None, key: int):
        """Return this rank's place in the group of its color; None for color None. Collective."""

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def all_reduce(self, array, op) -> None: ...

    @abstractmethod
    def broadcast(self, array, root) -> None: ...

    @abstractmethod
    def all_gather(self, send, receive, counts) -> None: ...

    @abstractmethod
    def reduce_scatter(self, send, receive, counts, op) -> None: ...

    @abstractmethod
    def scatter(self, send, receive, root, counts) -> None: ...

    @abstractmethod
    def gather(self, send, receive, root, counts) -> None: ...

    @abstractmethod
    def all_to_all(
        self, send, receive, send_counts, receive_counts, send_starts, receive_starts
    ) -> None: ...

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

    @abstractmethod
    def iall_reduce(self, array, op) -> Handle: ...

    @abstractmethod
    def iall_gather(self, send, receive, counts) -> Handle: ...

    @abstractmethod
    def ireduce_scatter(self, send, receive, counts, op) -> Handle: ...

    def close(self) -> None:
        """Free what the channel holds; no verb follows. Collective."""


class WrappedChannel(Channel):
    """A channel around another one, which does every verb; a wrapper overrides some of them."""

    def __init__(self, inside: Channel):
        super().__init__(inside.rank, inside.size)
        self.inside = inside
        self.communicator = inside.communicator
        self.heap = inside.heap
        self.levels = inside.levels
        self.shares_memory = inside.shares_memory
        self.address = inside.address

    def adds_in_tree_order(self, num_bytes, dtype):
        return self.inside.adds_in_tree_order(num_bytes, dtype)

    def load(self, verb, num_bytes, dtype=None):
        self.inside.load(verb, num_bytes, dtype)

    def common(self, size, dtype):
        return self.inside.common(size, dtype)

    def split(self, color, key):
        return self.inside.split(color, key)

    def barrier(self):
        self.inside.barrier()

    def all_reduce(self, array, op):
        self.inside.all_reduce(array, op)

    def broadcast(self, array, root):
        self.inside.broadcast(array, root)

    def all_gather(self, send, receive, counts):
        self.inside.all_gather(send, receive, counts)

    def reduce_scatter(self, send, receive, counts, op):
        self.inside.reduce_scatter(send, receive, counts, op)

    def scatter(self, send, receive, root, counts):
        self.inside.scatter(send, receive, root, counts)

    def gather(self, send, receive, root, counts):
        self.inside.gather(send, receive, root, counts)

    def all_to_all(self, *arguments):
        self.inside.all_to_all(*arguments)

    def isend(self, array, destination, tag):
        return self.inside.isend(array, destination, tag)

    def irecv(self, array, source, tag):
        return self.inside.irecv(array, source, tag)

    def exchange(self, outgoing, incoming, tag):
        return self.inside.exchange(outgoing, incoming, tag)

    def iall_reduce(self, array, op):
        return self.inside.iall_reduce(array, op)

    def iall_gather(self, send, receive, counts):
        return self.inside.iall_gather(send, receive, counts)

    def ireduce_scatter(self, send, receive, counts, op):
        return self.inside.ireduce_scatter(send, receive, counts, op)

    def close(self):
        self.inside.close()


def counts_text(counts) -> str:
    """Return counts for a signature: short when they are equal, as they mostly are."""
    return f"{len(counts)} x {counts[0]}" if len(set(counts)) == 1 else str(counts)


# What all ranks of a call must pass alike, as text, from the arguments of the verb.
SIGNATURES = {
    "barrier": lambda: "barrier",
    "all_reduce": lambda array, op: f"all_reduce({op.value}, {array.size} {array.dtype})",
    "iall_reduce": lambda array, op: f"iall_reduce({op.value}, {array.size} {array.dtype})",
    "broadcast": lambda array, root: f"broadcast(root {root}, {array.size} {array.dtype})",
    "all_gather": lambda send, receive, counts: (
        f"all_gather({counts_text(counts)} {receive.dtype})"
    ),
    "iall_gather": lambda send, receive, counts: (
        f"iall_gather({counts_text(counts)} {receive.dtype})"
    ),
    "reduce_scatter": lambda send, receive, counts, op: (
        f"reduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})"
    ),
    "ireduce_scatter": lambda send, receive, counts, op: (
        f"ireduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})"
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
