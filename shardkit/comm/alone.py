"""A group of one rank: copies, or nothing. No message is sent but to itself.

AloneChannel      of host arrays, around the channel that carries such messages
AloneCalls        its verbs on plain arrays: nobody waits for them, so no record of them is kept
AloneTransport    of GPU arrays
"""

from functools import partial

from .channel import ChannelCall, NotedCalls, WrappedChannel
from .checks import PLAIN
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

    def plan(self, verb, *arguments):
        return AloneCall(verb, arguments)

    def noted_calls(self, group):
        return AloneCalls(group)

    def adds_in_tree_order(self, num_bytes, dtype):
        return True


class AloneCalls(NotedCalls):
    """The verbs of one group, counted and not recorded.

    group   its Verbs
    """

    def __init__(self, group):
        self._group = group
        self.all_reduce = partial(self._make, "all_reduce")
        self.broadcast = partial(self._make, "broadcast")

    def barrier(self):
        return True

    def all_gather(self, send, receive):
        return self._make("all_gather", send, receive, None)

    def reduce_scatter(self, send, receive, op, in_place):
        return self._make("reduce_scatter", send, receive, None, op, in_place)

    def _make(self, verb, *arguments):
        plain = PLAIN[verb](self._group, *arguments)
        if plain is None:
            return False
        passed, _, sent = plain
        _MOVES.get(verb, _leave)(*passed)
        self._group.traffic.add(verb, sent)
        return True


class AloneCall(ChannelCall):
    """A collective of one rank: it moves what it has to where it should be."""

    def __init__(self, verb: str, arguments: tuple):
        self._move, self._arguments = _MOVES.get(verb, _leave), arguments

    def __call__(self):
        self._move(*self._arguments)

    def begin(self):
        self()
        return CompleteHandle()


def _leave(*arguments):
    """Leave the array as it is."""


def _copy(send, receive, *rest):
    receive[...] = send


def _copy_piece(send, receive, send_counts, receive_counts, send_starts, receive_starts):
    (count,), (source,), (target,) = send_counts, send_starts, receive_starts
    receive[target : target + count] = send[source : source + count]


_MOVES = {
    **dict.fromkeys(("all_gather", "reduce_scatter", "scatter", "gather"), _copy),
    "all_to_all": _copy_piece,
}


class AloneTransport:
    """All verbs but messages to itself. A sum over one rank is what it has, in any order.

    group   whose staging has what copies bytes within GPU memory
    """

    def __init__(self, group):
        self._group = group

    def takes(self, verb, num_bytes, dtype, op):
        return verb in _VERBS

    def adds_in_tree_order(self, num_bytes, dtype):
        return True

    def make(self, verb, *parts):
        if verb in ("all_reduce", "broadcast"):
            return CompleteHandle()
        outgoing, incoming = parts[:2]
        source, target = outgoing.port, incoming.port
        itemsize = source.dtype.itemsize
        from_ = source.address + outgoing.starts[0] * itemsize
        to = target.address + incoming.starts[0] * itemsize
        if from_ == to:
            return CompleteHandle()
        num_bytes = outgoing.counts[0] * itemsize
        return self._group.staging.copies.copy_in_order(to, from_, num_bytes, source, target)

    def begin(self, verb, *parts):
        return self.make(verb, *parts), None

    def close(self):
        """Do nothing: nothing is held."""
