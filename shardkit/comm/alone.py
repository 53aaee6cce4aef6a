"""The GPU arrays of a group of one rank: copies within GPU memory, or nothing."""

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
