"""Checks of a verb's arguments before it communicates, and what a channel takes as it is (PLAIN).

All errors are ValueError. Ranks, tags, counts, and whether two arrays fit. Every check is local.
Arguments that must agree between ranks (root, counts, op, dtype) are the caller's duty; threads
compare them, so that a test on threads finds what would hang or corrupt an MPI job.
"""

from collections.abc import Callable, Iterable
from itertools import accumulate, groupby
from numbers import Real
from operator import index
from types import SimpleNamespace

import numpy

from .operations import ReductionOperation

MAX_TAG = 32766  # every MPI has at least 32767; that one is kept for the backend's own messages
_NOTHING = SimpleNamespace(dtype=None, size=-1)  # what a barrier carries
PLAIN_DTYPES = frozenset(
    map(numpy.dtype, "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
)
PIECE_TAG = MAX_TAG + 1


# ---- what a channel takes as it is ---------------------------------------------------------------


def is_plain(array) -> bool:
    """Return True for a NumPy array of numbers that can be read and written as they lie."""
    return type(array) is numpy.ndarray and array.dtype in PLAIN_DTYPES and array.flags.carray


def meant(arguments: tuple) -> tuple:
    """Return the arguments of a verb, with an operation in place of its name ("sum")."""
    return tuple([_operation(each) if isinstance(each, str) else each for each in arguments])


def _operation(name):
    try:
        return ReductionOperation(name)
    except ValueError:
        return name  # check_operation() refuses it


def is_carried(op) -> bool:
    """Return True for an operation that a channel does itself: an average is scaled afterwards."""
    return type(op) is ReductionOperation and op is not ReductionOperation.AVERAGE


def counts_of_plain(group, own, whole, counts, *, may_lie_inside: bool) -> list[int] | None:
    """Return the counts of the slices of a plain array, of which this rank has its own.

    may_lie_inside   that may be a view of its place in `whole`
    returns          None if an array is not plain, or anything is wrong: check_counts() and its
                     like say what
    """
    if not (is_plain(own) and is_plain(whole) and own.dtype == whole.dtype):
        return None
    counts = _counts_of(whole, counts, own, group)
    if counts is None:
        return None
    if not numpy.may_share_memory(own, whole):
        return counts
    address = group.channel.memory.address
    its_place = address(whole) + sum(counts[: group.rank]) * own.itemsize
    return counts if may_lie_inside and address(own) == its_place else None


def _counts_of(whole, counts, own, group) -> list[int] | None:
    """Return the counts of all slices, as given or (None) equal; None if they do not fit."""
    num_ranks = group.world_size
    if counts is None:
        return [own.size] * num_ranks if own.size * num_ranks == whole.size else None
    try:
        counts = check_counts("counts", counts, whole.size, num_ranks)
    except ValueError:
        return None
    return counts if counts[group.rank] == own.size else None


def pieces_of_plain(
    send, receive, send_counts, receive_counts, send_starts, receive_starts, num_ranks, rank
) -> tuple | None:
    """Return counts and starts of the pieces of an all_to_all of plain arrays.

    returns   (counts to send, to receive, starts to send, to receive); None if an array is not
              plain, or anything is wrong: check_pieces() and its like say what
    """
    if not (is_plain(send) and is_plain(receive) and send.dtype == receive.dtype):
        return None
    if numpy.may_share_memory(send, receive):
        return None
    try:
        sent, first = check_pieces("send", send_counts, send_starts, send.size, num_ranks)
        received, at = check_pieces(
            "receive", receive_counts, receive_starts, receive.size, num_ranks
        )
    except ValueError:
        return None
    return (sent, received, first, at) if sent[rank] == received[rank] else None


def _flat(array):
    return array if array.ndim == 1 else array.reshape(-1)


def ring_bytes(group, num_bytes: int) -> int:
    """Return what a rank sends in an all-reduce of so many bytes."""
    return 2 * (group.world_size - 1) * num_bytes // group.world_size


def bytes_of_root(group, root: int, num_bytes: int) -> int:
    """Return what a rank sends that only the root sends."""
    return num_bytes if group.rank == root else 0


def _never(group, *arguments):
    """Return None: the other ranks cannot see what is plain on the root."""


def _plain_all_reduce(group, array, op):
    if not (is_plain(array) and is_carried(op)):
        return None
    return (_flat(array), op), array, ring_bytes(group, array.nbytes)


def _plain_broadcast(group, array, root):
    n = group.world_size
    if not (is_plain(array) and type(root) is int and 0 <= root < n):
        return None
    return (_flat(array), root), array, bytes_of_root(group, root, (n - 1) * array.nbytes)


def _plain_all_gather(group, send, receive, counts):
    counts = counts_of_plain(group, send, receive, counts, may_lie_inside=True)
    if counts is None:
        return None
    sent = (group.world_size - 1) * send.nbytes
    return (_flat(send), _flat(receive), counts), receive, sent


def _plain_reduce_scatter(group, send, receive, counts, op, in_place):
    if not is_carried(op):
        return None
    may_lie_inside = in_place and group.adds_in_tree_order(send)
    counts = counts_of_plain(group, receive, send, counts, may_lie_inside=may_lie_inside)
    if counts is None:
        return None
    return (_flat(send), _flat(receive), counts, op), receive, send.nbytes - receive.nbytes


def _plain_all_to_all(group, send, receive, *counts):
    pieces = pieces_of_plain(send, receive, *counts, group.world_size, group.rank)
    if pieces is None:
        return None
    sent = (sum(pieces[0]) - pieces[0][group.rank]) * send.itemsize
    return (_flat(send), _flat(receive), *pieces), receive, sent


# Functions (group, arguments of the group's verb) -> arguments of the channel's; the array whose
# dtype and size the ledger names; the bytes that this rank sends, None if they are not counted.
# Or else None: not all is plain.
PLAIN: dict[str, Callable[..., tuple | None]] = {
    "barrier": lambda group: ((), _NOTHING, None),
    "all_reduce": _plain_all_reduce,
    "broadcast": _plain_broadcast,
    "all_gather": _plain_all_gather,
    "reduce_scatter": _plain_reduce_scatter,
    "all_to_all": _plain_all_to_all,
    "scatter": _never,
    "gather": _never,
}


# ---- what is wrong with the others ---------------------------------------------------------------


def check_timeout(seconds: float) -> float:
    """Return the time limit of a call, if it is one."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool) or not seconds > 0:
        raise ValueError(f"timeout = {seconds!r}; wanted seconds > 0, or math.inf for none")
    return seconds


def check_rank(what: str, rank: int, num_ranks: int) -> int:
    """Return the rank as an int, if it is one of this group."""
    number = _integer(what, rank)
    if not 0 <= number < num_ranks:
        raise ValueError(f"{what} {rank} is not a rank of this group; wanted 0 to {num_ranks - 1}")
    return number


def check_tag(tag: int) -> int:
    """Return the tag as an int, if every MPI can carry it."""
    number = _integer("tag", tag)
    if not 0 <= number <= MAX_TAG:
        raise ValueError(f"tag {tag} is outside 0 to {MAX_TAG}, the range that every MPI has")
    return number


def check_operation(op: ReductionOperation, dtype) -> None:
    """Raise if the operation cannot be done on values of this dtype."""
    if not isinstance(op, ReductionOperation):
        raise ValueError(
            f"op is {op!r}; wanted a ReductionOperation such as ReductionOperation.SUM, or its "
            f"name: {', '.join(each.value for each in ReductionOperation)}"
        )
    if dtype.kind not in "iuf" and dtype.name != "bfloat16":
        raise ValueError(f"arrays of {dtype} cannot be reduced; wanted integers or floats")
    if op is ReductionOperation.AVERAGE and dtype.kind in "iu":
        raise ValueError(
            f"the average of {dtype} values is not a {dtype}; use SUM, or a float array"
        )


def check_counts(what: str, counts, size: int, num_ranks: int) -> list[int]:
    """Return one count per rank, as given or (None) equal; they add up to `size` elements."""
    if counts is None:
        return equal_counts(what, size, num_ranks)
    counts = _count_list(what, counts, num_ranks)
    if sum(counts) != size:
        raise ValueError(
            f"{what} {counts} add up to {sum(counts)} elements, but the array has {size}"
        )
    return counts


def check_pieces(
    what: str, counts, displacements, size: int, num_ranks: int
) -> tuple[list[int], list[int]]:
    """Return counts and starts of one piece per rank inside an array of `size` elements.

    The pieces need not cover it.
    """
    if displacements is None:
        counts = check_counts(what + "_counts", counts, size, num_ranks)
        return counts, starts_of(counts)
    if counts is None:
        raise ValueError(f"{what}_displacements without {what}_counts; give both")
    counts = _count_list(what + "_counts", counts, num_ranks)
    starts = _count_list(what + "_displacements", displacements, num_ranks)
    for rank, (start, count) in enumerate(zip(starts, counts)):
        if start + count > size:
            raise ValueError(
                f"{what} piece {rank} is [{start}, {start + count}), outside the array of {size} "
                "elements"
            )
    return counts, starts


def check_own_count(what: str, size: int, counts: list[int], rank: int) -> None:
    """Raise if the array of this rank's slice has another length than counts give it."""
    if size != counts[rank]:
        raise ValueError(f"{what} has {size} elements, but counts give rank {rank} {counts[rank]}")


def check_same_dtype(send, receive) -> None:
    """Raise if two ports differ in dtype."""
    if send.dtype != receive.dtype:
        raise ValueError(f"send is {send.dtype} and receive is {receive.dtype}; they must be equal")


def check_apart(send, receive, own_start: int | None = None) -> None:
    """Raise if the arrays share memory, unless `send` is exactly the own slice of `receive` that
    starts there.
    """
    first, last = send.address, send.address + send.num_bytes
    other = receive.address
    if last <= other or other + receive.num_bytes <= first or not send.size or not receive.size:
        return
    if own_start is None or first != other + own_start * receive.dtype.itemsize:
        allowed = (
            "" if own_start is None else ", unless the one is this rank's own slice of the other"
        )
        raise ValueError(f"send and receive overlap in memory; they must be apart{allowed}")


def equal_counts(what: str, size: int, num_ranks: int) -> list[int]:
    """Return the counts of equal parts of `size` elements, one per rank."""
    if size % num_ranks:
        raise ValueError(f"{size} elements cannot be cut into {num_ranks} equal parts; give {what}")
    return [size // num_ranks] * num_ranks


def shares_of(size: int, num_ranks: int) -> list[int]:
    """Return the counts of parts of `size` elements that are equal, but for the last ones."""
    share = -(-size // num_ranks)
    return [min(max(size - rank * share, 0), share) for rank in range(num_ranks)]


def starts_of(counts: list[int]) -> list[int]:
    """Return where each piece begins when the pieces lie one after the other."""
    return [0, *accumulate(counts)][:-1]


def pieces_of(array, counts: list[int], starts: list[int] | None = None) -> list:
    """Return views of so many elements each; starts None: one after the other."""
    return [
        array[start : start + count]
        for start, count in zip(starts_of(counts) if starts is None else starts, counts)
    ]


def _count_list(what, counts, num_ranks):
    given = counts if isinstance(counts, Iterable) else [counts]
    numbers = [_integer(what, count) for count in given]
    if len(numbers) != num_ranks or any(count < 0 for count in numbers):
        raise ValueError(f"{what} is {numbers}; wanted {num_ranks} numbers >= 0, one per rank")
    return numbers


def _integer(what, value):
    try:
        return index(value)
    except TypeError:
        raise ValueError(f"{what} is {value!r}; wanted an integer") from None


def ranks_per_node(homes) -> int | None:
    """Return how many ranks of a group each of its nodes has, if levels suit it, else None.

    One node after the other, with equally many ranks.
    homes   of all ranks of the group: a name of the node; None where a rank sees only its own
    """
    lengths = [len(list(ranks)) for _, ranks in groupby(homes)]
    suits = (
        None not in homes
        and 1 < len(lengths) == len(set(homes))
        and len(set(lengths)) == 1
        and lengths[0] > 1
    )
    return lengths[0] if suits else None
