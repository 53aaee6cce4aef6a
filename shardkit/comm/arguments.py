"""From the arguments of a verb to checked ports and parts; the half of a verb that never
communicates.
"""

from functools import partial

import numpy

from ..errors import CommunicationError
from . import checks
from .gpu.staging import Part
from .operations import FinishedHandle, Handle, ReductionOperation
from .ports import open_port

_LONGEST = ReductionOperation.MAX


class UnderWay:
    """Context manager around a verb that has begun; gives what it was made with. contextlib costs a
    microsecond.
    """

    __slots__ = ("_progress", "_given")

    def __init__(self, progress, given=None):
        self._progress, self._given = progress, given

    def __enter__(self):
        return self._given

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self._progress.end()
        else:
            self._progress.fail()


class Arguments:
    """Mixed into CommunicationBackend. Everything here is local, except `_longest_anywhere` on GPU
    arrays.
    """

    def _verb(self, name: str) -> "UnderWay":
        """Around every collective verb: the backend must be alive, and `progress` knows what this
        rank is doing.
        """
        self._check_alive(name)
        self.progress.begin_collective(name, self.group_key, self.world_ranks)
        return UnderWay(self.progress)

    def _message_verb(self, name: str, what: str, peer: int, tag: int) -> "UnderWay":
        """Around every verb between two ranks, which is given the checked peer and tag."""
        self._check_alive(name)
        peer, tag = checks.check_rank(what, peer, self.world_size), checks.check_tag(tag)
        self.progress.begin_message(name, self.group_key, (self.world_ranks[peer],))
        return UnderWay(self.progress, (peer, tag))

    def _handle(self, carrier, finish=None) -> Handle:
        """The public handle of the verb under way."""
        return FinishedHandle(carrier, finish, partial(self._waiting, self.progress.current))

    def _waiting(self, call) -> "UnderWay":
        self._check_alive(f"wait for {call.verb}")
        self.progress.resume(call)
        return UnderWay(self.progress)

    def _check_alive(self, name):
        if not self.is_initialized:
            raise CommunicationError(
                f"{name} on a backend that is not initialized; call initialize() first, on all ranks, "
                "and no verb after shutdown()"
            )

    def _port(self, what, array, *, writes=False):
        port = open_port(what, array, self.staging, writes=writes)
        self.progress.describe(port.dtype, port.size)
        return port

    def _reduction_port(self, what, array, op, *, writes=False):
        port = open_port(what, array, self.staging, writes=writes, reduces=True)
        checks.check_operation(op, port.dtype)
        self.progress.describe(port.dtype, port.size)
        return port

    def _all_gather_parts(self, send, receive, counts):
        """(this rank's slice, all slices) for an all_gather."""
        own, whole = self._port("send", send), self._port("receive", receive, writes=True)
        checks.check_same_dtype(own, whole)
        counts = checks.check_counts("counts", counts, whole.size, self.world_size)
        checks.check_own_count("send", own.size, counts, self.rank)
        starts = checks.starts_of(counts)
        checks.check_apart(own, whole, starts[self.rank])
        return one_part(own), Part(whole, counts, starts)

    def _reduce_scatter_parts(self, send, receive, counts, op, in_place=False):
        """(all slices, this rank's slice) for a reduce_scatter."""
        whole, own = (
            self._reduction_port("send", send, op),
            self._reduction_port("receive", receive, op, writes=True),
        )
        checks.check_same_dtype(whole, own)
        counts = checks.check_counts("counts", counts, whole.size, self.world_size)
        checks.check_own_count("receive", own.size, counts, self.rank)
        starts = checks.starts_of(counts)
        checks.check_apart(own, whole, starts[self.rank] if in_place else None)
        return Part(whole, counts, starts), one_part(own)

    def _rooted_parts(self, whole_name, whole, own_name, own, root, counts):
        """(all slices, this rank's slice) for a scatter or gather; only the root has the whole."""
        counts = [own.size] * self.world_size if counts is None else counts
        size = whole.size if self.rank == root else sum(counts)
        counts = checks.check_counts(f"{whole_name} counts", counts, size, self.world_size)
        checks.check_own_count(own_name, own.size, counts, self.rank)
        checks.check_same_dtype(whole, own)
        starts = checks.starts_of(counts)
        checks.check_apart(own, whole, starts[self.rank])
        return Part(whole, counts, starts), one_part(own)

    def _all_to_all_parts(
        self, send, receive, send_counts, receive_counts, send_displacements, receive_displacements
    ):
        """(what goes to each rank, what comes from each rank) for an all_to_all."""
        source, target = self._port("send", send), self._port("receive", receive, writes=True)
        checks.check_same_dtype(source, target)
        checks.check_apart(source, target)
        n, me = self.world_size, self.rank
        outgoing = Part(
            source, *checks.check_pieces("send", send_counts, send_displacements, source.size, n)
        )
        incoming = Part(
            target,
            *checks.check_pieces("receive", receive_counts, receive_displacements, target.size, n),
        )
        if outgoing.counts[me] != incoming.counts[me]:
            raise ValueError(
                f"rank {me} sends itself {outgoing.counts[me]} elements but expects {incoming.counts[me]}"
            )
        return outgoing, incoming

    def _longest_anywhere(self, outgoing, incoming) -> int:
        """The longest piece of this rank, or of any rank if the pieces go through windows, which
        all must go through.
        """
        longest = max(outgoing.counts + incoming.counts)
        if outgoing.port.host is not None and incoming.port.host is not None:
            return longest
        agreed = numpy.array([longest], numpy.int64)
        self._all_reduce(agreed, _LONGEST)
        return int(agreed[0])

    def _scale(self, host, op) -> None:
        """Turn a sum into the average, if that is what was asked for."""
        if op is ReductionOperation.AVERAGE:
            numpy.divide(host, self.world_size, out=host)

    # ---- bytes sent, by the formulas of Traffic --------------------------------------------------

    def _count_all_reduce(self, num_bytes):
        self.traffic.add("all_reduce", 2 * (self._world_size - 1) * num_bytes // self._world_size)

    def _count_all_gather(self, num_bytes):
        self.traffic.add("all_gather", (self._world_size - 1) * num_bytes)

    def _count_pieces(self, verb, parts):
        """Every other rank its piece."""
        self.traffic.add(
            verb, (sum(parts.counts) - parts.counts[self.rank]) * parts.port.wire.itemsize
        )

    def _count_if(self, verb, sends, num_bytes):
        self.traffic.add(verb, num_bytes if sends else 0)


def one_part(port) -> Part:
    """The whole array as one piece."""
    return Part(port, [port.size], [0])


def unstage(port, host) -> None:
    """Bring back what a non-blocking verb left in its scratch; nothing to do on the direct road."""
    if port.host is None:
        port.begin_store([(0, host)])()


def with_starts(run):
    """Adapt run(send, receive, counts, counts, starts, starts) to Staging.exchange."""
    return lambda s, r, out, into: run(s, r, out.counts, into.counts, out.starts, into.starts)
