"""The channel between ranks that are threads: bring what you have, wait for the others."""

from ..channel import ArrayMemory, Channel, ChannelCall, signature
from ..collectives import combine
from ..operations import Handle
from .rendezvous import Environment, Group, Wait


class ThreadChannel(Channel):
    """One thread's end of a group of an environment. Calls are compared always."""

    def __init__(self, group: Group, rank: int):
        super().__init__(rank, len(group.world_ranks), ArrayMemory(is_shared=True))
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

    def plan(self, verb, *arguments):
        return _MeetingCall(self._arrive, verb, arguments)

    def isend(self, array, destination, tag):
        message = self._group.post(self.rank, destination, tag, array, is_send=True)
        return _WaitHandle(self._group.environment, message)

    def irecv(self, array, source, tag):
        message = self._group.post(source, self.rank, tag, array, is_send=False)
        return _WaitHandle(self._group.environment, message)


class _MeetingCall(ChannelCall):
    """A collective for which all threads meet; the last one does it for all.

    arrive   function (signature, what this rank brings, what is done) -> handle of the meeting
    """

    def __init__(self, arrive, verb: str, arguments: tuple):
        self._arrive, self._verb, self._arguments = arrive, verb, arguments

    def __call__(self):
        self._meet(begins=False).wait()

    def begin(self):
        return self._meet(begins=True)

    def _meet(self, *, begins: bool):
        combined, num_brought = combine.COLLECTIVES[self._verb]
        brought, rest = self._arguments[:num_brought], self._arguments[num_brought:]
        text = signature(self._verb, self._arguments, begins=begins)
        return self._arrive(text, brought, lambda given: combined(given, *rest))


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
