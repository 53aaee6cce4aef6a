"""A group of one rank: copies, or nothing. No message is sent but to itself.

AloneChannel      of host arrays, around the channel that carries such messages
AloneTransport    of GPU arrays
"""

from .channel import WrappedChannel
from .operations import CompleteHandle

_VERBS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "iall_reduce",
    "iall_gather",
    "ireduce_scatter",
)


class AloneChannel(WrappedChannel):
    """All verbs but messages to itself. A sum over one rank is what it has, in any order."""

    def adds_in_tree_order(self, num_bytes, dtype):
        return True

    def barrier(self):
        pass

    def all_reduce(self, array, op):
        pass

    def broadcast(self, array, root):
        pass

    def all_gather(self, send, receive, counts):
        receive[...] = send

    def reduce_scatter(self, send, receive, counts, op):
        receive[...] = send

    def scatter(self, send, receive, root, counts):
        receive[...] = send

    def gather(self, send, receive, root, counts):
        receive[...] = send

    def all_to_all(self, send, receive, send_counts, receive_counts, send_starts, receive_starts):
        (count,), (source,), (target,) = send_counts, send_starts, receive_starts
        receive[target : target + count] = send[source : source + count]

    def iall_reduce(self, array, op):
        return CompleteHandle()

    def iall_gather(self, send, receive, counts):
        receive[...] = send
        return CompleteHandle()

    def ireduce_scatter(self, send, receive, counts, op):
        receive[...] = send
        return CompleteHandle()


class AloneTransport:
    """All verbs but messages to itself. A sum over one rank is what it has, in any order.

    group   whose staging has what copies bytes within GPU memory
    """

    def __init__(self, group):
        self._group = group

    def takes(self, verb, num_bytes, dtype, op):
        return verb in _VERBS

    def adds_in_tree_order(self, array):
        return True

    def all_reduce(self, port, op):
        return CompleteHandle()

    broadcast = all_reduce

    def all_to_all(self, outgoing, incoming):
        source, target = outgoing.port, incoming.port
        itemsize = source.dtype.itemsize
        from_ = source.address + outgoing.starts[0] * itemsize
        to = target.address + incoming.starts[0] * itemsize
        if from_ == to:
            return CompleteHandle()
        num_bytes = outgoing.counts[0] * itemsize
        return self._group.staging.copies.copy_in_order(to, from_, num_bytes, source, target)

    def all_gather(self, own, whole):
        return self.all_to_all(own, whole)

    def reduce_scatter(self, whole, own, op):
        return self.all_to_all(whole, own)

    def iall_reduce(self, port, op):
        return self.all_reduce(port, op), None

    def iall_gather(self, own, whole):
        return self.all_to_all(own, whole), None

    def ireduce_scatter(self, whole, own, op):
        return self.all_to_all(whole, own), None

    def close(self):
        """Do nothing: nothing is held."""
