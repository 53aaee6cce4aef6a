"""A group of one rank: what its verbs do to GPU arrays are copies within GPU memory, or nothing."""

from ..operations import CompleteHandle, CopiedHandle

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


class AloneRoad:
    """The verbs but messages to itself. The sum over one rank is what it has, in any order."""

    def __init__(self, copies):
        self._copies = copies

    def takes(self, verb, num_bytes, dtype, op):
        return verb in _VERBS

    def adds_in_tree_order(self, array):
        return True

    def all_reduce(self, port, op):
        return CompleteHandle()

    broadcast = all_reduce

    def all_to_all(self, outgoing, incoming):
        source, target, itemsize = outgoing.port, incoming.port, outgoing.port.dtype.itemsize
        from_, to = (
            source.address + outgoing.starts[0] * itemsize,
            target.address + incoming.starts[0] * itemsize,
        )
        if from_ == to:
            return CompleteHandle()
        source.settle()
        target.settle()
        self._copies.begin_within(to, from_, outgoing.counts[0] * itemsize)
        return CopiedHandle(self._copies.copied())

    def all_gather(self, own, whole):
        return self.all_to_all(own, whole)

    def reduce_scatter(self, whole, own, op):
        return self.all_to_all(whole, own)

    def close(self):
        """Nothing is held."""
