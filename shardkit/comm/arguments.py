"""From the arguments of a verb to checked ports and parts; the half of a verb that never talks."""

from . import checks
from .ports import NoPort, open_port
from .staging import Pieces


class Arguments:
    """Opens ports on the arrays of one group's verbs, and checks that they fit.

    group   whose rank, size, staging and progress count
    Errors of every method: ValueError.
    """

    def __init__(self, group):
        self._group = group

    def port(self, what: str, array, *, writes: bool = False):
        """Return a port on the array; writes: it is to receive."""
        group = self._group
        port = open_port(what, array, group.staging, writes=writes)
        group.progress.describe(port.dtype, port.size)
        return port

    def reduction(self, what: str, array, op, *, writes: bool = False):
        """Return a port on an array whose values will be reduced."""
        group = self._group
        port = open_port(what, array, group.staging, writes=writes, reduces=True)
        checks.check_operation(op, port.dtype)
        group.progress.describe(port.dtype, port.size)
        return port

    def all_gather(self, send, receive, counts) -> tuple[Pieces, Pieces]:
        """Return this rank's slice and all slices."""
        own = self.port("send", send)
        whole = self.port("receive", receive, writes=True)
        checks.check_same_dtype(own, whole)
        counts = checks.check_counts("counts", counts, whole.size, self._group.world_size)
        rank = self._group.rank
        checks.check_own_count("send", own.size, counts, rank)
        starts = checks.starts_of(counts)
        checks.check_apart(own, whole, starts[rank])
        return one_part(own), Pieces(whole, counts, starts)

    def reduce_scatter(self, send, receive, counts, op, in_place=False) -> tuple[Pieces, Pieces]:
        """Return all slices and this rank's slice; in_place: that may be its own of all slices."""
        whole = self.reduction("send", send, op)
        own = self.reduction("receive", receive, op, writes=True)
        checks.check_same_dtype(whole, own)
        counts = checks.check_counts("counts", counts, whole.size, self._group.world_size)
        rank = self._group.rank
        checks.check_own_count("receive", own.size, counts, rank)
        starts = checks.starts_of(counts)
        checks.check_apart(own, whole, starts[rank] if in_place else None)
        return Pieces(whole, counts, starts), one_part(own)

    def scatter(self, send, receive, root, counts) -> tuple[Pieces, Pieces]:
        """Return all slices, which only the root has, and this rank's slice."""
        own = self.port("receive", receive, writes=True)
        whole = self.port("send", send) if self._group.rank == root else NoPort(own)
        return self._rooted("send", whole, "receive", own, root, counts)

    def gather(self, send, receive, root, counts) -> tuple[Pieces, Pieces]:
        """Return all slices, which only the root has, and this rank's slice."""
        own = self.port("send", send)
        is_root = self._group.rank == root
        whole = self.port("receive", receive, writes=True) if is_root else NoPort(own)
        return self._rooted("receive", whole, "send", own, root, counts)

    def _rooted(self, whole_name, whole, own_name, own, root, counts):
        rank, num_ranks = self._group.rank, self._group.world_size
        counts = [own.size] * num_ranks if counts is None else counts
        size = whole.size if rank == root else sum(counts)
        counts = checks.check_counts(f"{whole_name} counts", counts, size, num_ranks)
        checks.check_own_count(own_name, own.size, counts, rank)
        checks.check_same_dtype(whole, own)
        starts = checks.starts_of(counts)
        checks.check_apart(own, whole, starts[rank])
        return Pieces(whole, counts, starts), one_part(own)

    def all_to_all(
        self, send, receive, send_counts, receive_counts, send_displacements, receive_displacements
    ) -> tuple[Pieces, Pieces]:
        """Return what goes to each rank and what comes from each rank."""
        source = self.port("send", send)
        target = self.port("receive", receive, writes=True)
        checks.check_same_dtype(source, target)
        checks.check_apart(source, target)
        n, me = self._group.world_size, self._group.rank
        outgoing = Pieces(
            source, *checks.check_pieces("send", send_counts, send_displacements, source.size, n)
        )
        incoming = Pieces(
            target,
            *checks.check_pieces("receive", receive_counts, receive_displacements, target.size, n),
        )
        if outgoing.counts[me] != incoming.counts[me]:
            raise ValueError(
                f"rank {me} sends itself {outgoing.counts[me]} elements but expects "
                f"{incoming.counts[me]}"
            )
        return outgoing, incoming


def one_part(port) -> Pieces:
    """Return the whole array as one piece."""
    return Pieces(port, [port.size], [0])
