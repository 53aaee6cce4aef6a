"""The shared-memory channel: the verbs of a group whose ranks are all on one node."""

from functools import partial
from typing import Any

from ..channel import ArrayMemory, NotedCalls, ShortCall, WrappedChannel, bytes_of
from ..operations import COMPILED_VERBS, ReductionOperation
from .mailbox import ALL_REDUCE, REDUCE_SCATTER, START
from .noted import PARTS, Loops, NotedLoops, load

SMALL_BYTES = 8192
CALLS_BEFORE_OPENING = 100
SUM_OF_RANKS = ReductionOperation.SUM


class NodeMemory(ArrayMemory):
    """The heaps of a node, which all ranks of a group there see.

    messages   channel of the same ranks
    """

    def __init__(self, node, messages):
        super().__init__(node.heap, is_shared=True, address=messages.memory.address)
        self._node, self._messages = node, messages

    def common(self, size, dtype):
        messages = self._messages
        messages.plan("barrier")()  # a guest does not wait for a lost rank there, but below
        ranks = messages.members.world_ranks
        return self._node.common(messages.communicator, ranks, size, dtype)


class SharedMemoryChannel(WrappedChannel):
    """Verbs in the memory of a node, around the messages of the same ranks, which do the rest.

    messages     the channel inside
    loops        of the verbs that are done here
    table        what they know of the group
    node         of this rank: its heap, and arrays that ranks have in common
    forget       function () that is called by close(); collective, since neighbors may still look
                 at this rank's mailbox
    small_bytes  arrays of up to so many bytes do not open the memory; the same on all ranks
    calls_before_opening   so many small calls go through messages first

    The loops take arrays of every size: they need as long as an MPI library for the smallest, and a
    twentieth where ranks share cores. But they load Numba, so the memory opens with the first large
    array or after some calls with small ones: a short program need not wait for that. Where the one
    ends and the other begins is fixed, not measured: they add in different orders, and a second run
    has the bits of the first.
    """

    def __init__(
        self,
        messages,
        table,
        node,
        forget,
        *,
        small_bytes: int = SMALL_BYTES,
        calls_before_opening: int = CALLS_BEFORE_OPENING,
    ):
        super().__init__(messages)
        self.memory = NodeMemory(node, messages)
        self.loops = Loops(table, messages)
        self.small_bytes = small_bytes
        self._forget = forget
        self._group: Any = None  # whose verbs this channel carries: Verbs
        self._num_calls_left = calls_before_opening
        self.is_open = calls_before_opening <= 0  # to calls of all sizes

    def close(self):
        self._forget()
        self._forget, self.memory = None, self.inside.memory  # the heap goes at once, if unused
        super().close()

    def plan(self, verb, *arguments):
        if verb not in PARTS:
            return self.inside.plan(verb, *arguments)
        if self._num_calls_left <= self._weight(bytes_of(arguments)):
            load(verb)
        way = partial(self._take, COMPILED_VERBS.index(verb), *PARTS[verb](*arguments))
        return ShortCall(way, self.inside, verb, arguments)

    def adds_in_tree_order(self, num_bytes, dtype):
        is_large = num_bytes > self.small_bytes
        return (self.is_open or is_large) and self.loops.adds(dtype, SUM_OF_RANKS)

    def noted_calls(self, group):
        self._group = group
        return NotedLoops(group, self.loops) if self.is_open else NotedCalls()

    def _weight(self, num_bytes: int) -> int:
        """Return how many of the calls before the memory opens such a one counts for."""
        return 1 if num_bytes <= self.small_bytes else CALLS_BEFORE_OPENING

    def _opens(self, num_bytes: int) -> bool:
        """Return True if the memory takes a call that is made now, of a group's first ones.

        All ranks make the same calls, so it opens for all of them in the same one.
        """
        self._num_calls_left -= self._weight(num_bytes)
        self.is_open = self._num_calls_left <= 0
        if self.is_open and self._group is not None:
            self._group.renew_noted(self)
        return self.is_open

    def _take(self, verb: int, arrays, option, counts) -> bool:
        """Make a call; False, and nothing was done, if it goes through messages."""
        if not (self.is_open or self._opens(bytes_of(arrays))):
            return False
        if verb in (ALL_REDUCE, REDUCE_SCATTER) and not self.loops.adds(arrays[0].dtype, option):
            return False
        self.loops.finish(verb, arrays, option, START, counts)
        return True
