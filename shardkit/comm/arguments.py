"""From the arguments of a verb to checked ports and parts; the half of a verb that never talks.

group   whose rank, size, staging and progress count
Errors of every function: ValueError.
"""

from . import checks
from .ports import NoPort, open_port
from .staging import Pieces


def port_on(group, what: str, array, *, writes: bool = False):
    """Return a port on the array; writes: it is to receive."""
    port = open_port(what, array, group.staging, writes=writes)
    group.progress.describe(port.dtype, port.size)
    return port


def reduction(group, what: str, array, op, *, writes: bool = False):
    """Return a port on an array whose values will be reduced."""
    port = open_port(what, array, group.staging, writes=writes, reduces=True)
    checks.check_operation(op, port.dtype)
    group.progress.describe(port.dtype, port.size)
    return port


def all_gather(group, send, receive, counts) -> tuple[Pieces, Pieces]:
    """Return this rank's slice and all slices."""
    own = port_on(group, "send", send)
    whole = port_on(group, "receive", receive, writes=True)
    checks.check_same_dtype(own, whole)
    counts = checks.check_counts("counts", counts, whole.size, group.world_size)
    rank = group.rank
    checks.check_own_count("send", own.size, counts, rank)
    starts = checks.starts_of(counts)
    checks.check_apart(own, whole, starts[rank])
    return one_part(own), Pieces(whole, counts, starts)


def reduce_scatter(group, send, receive, counts, op, in_place=False) -> tuple[Pieces, Pieces]:
    """Return all slices and this rank's slice; in_place: that may be its own of all slices."""
    whole = reduction(group, "send", send, op)
    own = reduction(group, "receive", receive, op, writes=True)
    checks.check_same_dtype(whole, own)
    counts = checks.check_counts("counts", counts, whole.size, group.world_size)
    rank = group.rank
    checks.check_own_count("receive", own.size, counts, rank)
    starts = checks.starts_of(counts)
    checks.check_apart(own, whole, starts[rank] if in_place else None)
    return Pieces(whole, counts, starts), one_part(own)


def scatter(group, send, receive, root, counts) -> tuple[Pieces, Pieces]:
    """Return all slices, which only the root has, and this rank's slice."""
    own = port_on(group, "receive", receive, writes=True)
    whole = port_on(group, "send", send) if group.rank == root else NoPort(own)
    return _rooted(group, "send", whole, "receive", own, root, counts)


def gather(group, send, receive, root, counts) -> tuple[Pieces, Pieces]:
    """Return all slices, which only the root has, and this rank's slice."""
    own = port_on(group, "send", send)
    is_root = group.rank == root
    whole = port_on(group, "receive", receive, writes=True) if is_root else NoPort(own)
    return _rooted(group, "receive", whole, "send", own, root, counts)


def _rooted(group, whole_name, whole, own_name, own, root, counts):
    rank, num_ranks = group.rank, group.world_size
    counts = [own.size] * num_ranks if counts is None else counts
    size = whole.size if rank == root else sum(counts)
    counts = checks.check_counts(f"{whole_name} counts", counts, size, num_ranks)
    checks.check_own_count(own_name, own.size, counts, rank)
    checks.check_same_dtype(whole, own)
    starts = checks.starts_of(counts)
    checks.check_apart(own, whole, starts[rank])
    return Pieces(whole, counts, starts), one_part(own)


def all_to_all(
    group, send, receive, send_counts, receive_counts, send_displacements, receive_displacements
) -> tuple[Pieces, Pieces]:
    """Return what goes to each rank and what comes from each rank."""
    source = port_on(group, "send", send)
    target = port_on(group, "receive", receive, writes=True)
    checks.check_same_dtype(source, target)
    checks.check_apart(source, target)
    n, me = group.world_size, group.rank
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
