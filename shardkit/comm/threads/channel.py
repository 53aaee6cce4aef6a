"""The channel between ranks that are threads: bring what you have, wait for the others."""

from ..channel import SIGNATURES, Channel
from ..collectives import combine
from ..operations import Handle
from .rendezvous import Environment, Group, Wait


class ThreadChannel(Channel):
    """One thread's end of a group of an environment. Calls are compared always."""

    shares_memory = True

    def __init__(self, group: Group, rank: int):
        super().__init__(rank, len(group.world_ranks))
        self._group = group
        self._num_collectives = 0

    def _arrive(self, signature, given, work):
        self._num_collectives += 1
        meeting = self._group.arrive(self.rank, self._num_collectives, signature, given, work)
        return _WaitHandle(self._group.environment, meeting)

    def split(self, color, key):
        """Return (group, rank in it), or None."""

        def work(given):
            members = combine.split(given)
            world_ranks = self._group.world_ranks
            groups = {
                tuple(m): Group(self._group.environment, tuple(world_ranks[r] for r in m))
                for m in members
                if m
            }
            return [
                (groups[tuple(m)], m.index(rank)) if m else None for rank, m in enumerate(members)
            ]

        handle = self._arrive("split", (color, key), work)
        handle.wait()
        return handle.waited.results[self.rank]

    def barrier(self):
        self._arrive(SIGNATURES["barrier"](), None, lambda given: None).wait()

    def all_reduce(self, array, op):
        signature = SIGNATURES["all_reduce"](array, op)
        self._arrive(signature, array, lambda given: combine.all_reduce(given, op)).wait()

    def iall_reduce(self, array, op):
        signature = SIGNATURES["iall_reduce"](array, op)
        return self._arrive(signature, array, lambda given: combine.all_reduce(given, op))

    def broadcast(self, array, root):
        signature = SIGNATURES["broadcast"](array, root)
        self._arrive(signature, array, lambda given: combine.broadcast(given, root)).wait()

    def all_gather(self, send, receive, counts):
        self._all_gather("all_gather", send, receive, counts).wait()

    def iall_gather(self, send, receive, counts):
        return self._all_gather("iall_gather", send, receive, counts)

    def _all_gather(self, name, send, receive, counts):
        signature = SIGNATURES[name](send, receive, counts)
        return self._arrive(
            signature, (send, receive), lambda given: combine.all_gather(given, counts)
        )

    def reduce_scatter(self, send, receive, counts, op):
        self._reduce_scatter("reduce_scatter", send, receive, counts, op).wait()

    def ireduce_scatter(self, send, receive, counts, op):
        return self._reduce_scatter("ireduce_scatter", send, receive, counts, op)

    def _reduce_scatter(self, name, send, receive, counts, op):
        signature = SIGNATURES[name](send, receive, counts, op)
        return self._arrive(
            signature, (send, receive), lambda given: combine.reduce_scatter(given, counts, op)
        )

    def scatter(self, send, receive, root, counts):
        signature = SIGNATURES["scatter"](send, receive, root, counts)
        self._arrive(
            signature, (send, receive), lambda given: combine.scatter(given, root, counts)
        ).wait()

    def gather(self, send, receive, root, counts):
        signature = SIGNATURES["gather"](send, receive, root, counts)
        self._arrive(
            signature, (send, receive), lambda given: combine.gather(given, root, counts)
        ).wait()

    def all_to_all(self, send, receive, send_counts, receive_counts, send_starts, receive_starts):
        given = (send, receive, send_counts, receive_counts, send_starts, receive_starts)
        self._arrive(SIGNATURES["all_to_all"](send), given, combine.all_to_all).wait()

    def isend(self, array, destination, tag):
        message = self._group.post(self.rank, destination, tag, array, is_send=True)
        return _WaitHandle(self._group.environment, message)

    def irecv(self, array, source, tag):
        message = self._group.post(source, self.rank, tag, array, is_send=False)
        return _WaitHandle(self._group.environment, message)


class _WaitHandle(Handle):
    """The handle of a meeting or message."""

    def __init__(self, environment: Environment, waited: Wait):
        self._environment, self.waited = environment, waited

    def wait(self):
        self._environment.wait(self.waited)

    def test(self):
        if self.waited.done.is_set():
            self._environment.wait(self.waited)  # raises if it failed
        return self.waited.done.is_set()
