"""Rows of a dim that is cut over ranks: any of them to any rank, and their gradients back.

    rank 0   0 1 2 3           wants 0 1 2 3 4        takes 4 from rank 1
    rank 1          4 5 6      wants 3 4 5 6 7        takes 3 from rank 0, 7 from rank 2
    rank 2                7 8  wants 6 7 8 .          takes 6 from rank 1; "." is zeros

This is a halo exchange where a few rows beyond the own ones are wanted, wider than the part of a
neighbor too, and through the last rank in a circle. Its adjoint is the halo addition: the gradient
of a row goes back to its owner, which adds those of all ranks: its own first, then by rank. A Halo
is what others have of these rows: it travels while a layer computes with the own ones.

Rows are spread as layout.even_span says, at every layer, whatever their number; exchange_rows()
spreads them as any table says, and back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy

from ...array import fresh
from ...array.arena import empty
from ...array.backend import xp_of
from ...comm.backend import CommunicationBackend
from ...nn.autograd import Tensor, record, record_linear
from .spans import Table, even_spans, positions_of

RECEIPT_TAG = 6
ZEROS = -1  # in an index: no row, but zeros

# {name: (numbers of rows, also beyond the ends, how many there are) -> those of rows that exist}
BEYOND = {
    "zeros": lambda rows, length: numpy.where((rows < 0) | (rows >= length), ZEROS, rows),
    "circular": lambda rows, length: rows % length,
    "reflect": lambda rows, length: (length - 1) - abs((length - 1) - abs(rows)),
    "replicate": lambda rows, length: numpy.clip(rows, 0, length - 1),
}


def rows_of(
    x: Tensor,
    group: CommunicationBackend,
    dim: int,
    length: int,
    spans: tuple[tuple[int, int], ...],
    beyond: str = "zeros",
) -> Tensor:
    """Return the rows [start, stop) that this rank wants, of those that all ranks have.

    Collective over `group` in forward and in backward: each message goes to a rank that wants it.
    x        [..., own part of length, ...] local
    length   of dim over all ranks
    spans    what each rank wants, the same on all; may reach over both ends
    beyond   what stands there: a name of BEYOND
    returns  [..., stop - start, ...]
    """
    own = even_spans(length, len(spans))
    if tuple([(span,) for span in spans]) == own:
        return x
    route = _route_to_windows(length, group.rank, spans, beyond)
    return RowsRead(x, group, dim, route)


class RowsRead(Tensor):
    """The rows that a layer reads: own ones of x, and those of other ranks.

    Once the layer has computed, let_go() keeps the rows of others alone: what a backward reads is
    put together again, so that own rows are not kept twice.
    """

    __slots__ = ("_parts",)

    def __init__(self, x: Tensor, group: CommunicationBackend, dim: int, route: "_Route"):
        self._parts = _Parts(x, _sent_for(x.array, group, dim, route)(), dim, route)
        shape = x.shape

        def backward(gradient, wanted):
            return (_returned(gradient, group, dim, route, shape),)

        made = record(self.array, (x,), backward)
        self._begin(made.requires_grad)
        self._node = made._node
        self._memory = x._memory  # changed in place with x

    array = property(lambda self: self._parts.together())  # [..., count, ...]


class _Parts:
    """Own rows of x and rows that came from others; both together until they are let go."""

    def __init__(self, x: Tensor, came: dict, dim: int, route: "_Route"):
        self._x = x
        self._form = came, dim, route
        self._whole: Any = _put_together(x.array, *self._form)

    def together(self) -> Any:
        """Return all of the rows: those that are kept, or a new array."""
        return _put_together(self._x.array, *self._form) if self._whole is None else self._whole

    def let_go(self) -> None:
        """Keep the parts alone."""
        self._whole = None


def let_go(x: Tensor) -> None:
    """Keep of rows that were read those of other ranks alone: a layer has computed with them."""
    if isinstance(x, RowsRead):
        x._parts.let_go()


class Halo:
    """The rows that a rank reads beside its own ones, all of which it reads once and in order.

    before   how many of them stand before the own ones; the rest stands after these
    count    of all
    """

    def __init__(self, group: CommunicationBackend, dim: int, before: int, route: "_Route"):
        self._group, self._dim = group, dim
        self._route = route
        self.before = before
        self.count = route.count

    def fetch(self, array: Any) -> Callable[[], Any]:
        """Begin to fetch the rows; return what waits for them and returns [..., count, ...].

        Collective over the group. array: [..., own, ...], which must stay as it is until then.
        """
        came = _sent_for(array, self._group, self._dim, self._route)
        return lambda: _put_together(array, came(), self._dim, self._route)

    def send_home(self, gradient: Any, own: int) -> Callable[[Any], None]:
        """Begin to send the gradients [..., count, ...] of the rows to their owners; return what
        waits for those of own rows, and adds them to an array [..., own, ...].

        Collective over the group. own: how many rows this rank has
        """
        came = _sent_home(gradient, self._group, self._dim, self._route, own)
        return lambda array: _add_all(array, came(), self._dim, self._route)


def halo_of(
    group: CommunicationBackend,
    dim: int,
    length: int,
    spans: tuple[tuple[int, int], ...],
    beyond: str = "zeros",
) -> Halo | None:
    """Return what this rank reads beside its own rows, as of rows_of(); no rows of zeros are in it.

    None: it does not read each of its own rows once. Other ranks may have halos, or rows_of().
    """
    found = _route_to_halo(length, group.rank, spans, beyond)
    return None if found is None else Halo(group, dim, *found)


def exchange_rows(
    x: Tensor, group: CommunicationBackend, dim: int, from_table: Table, to_table: Table
) -> Tensor:
    """Return the rows of dim that to_table gives this rank, of those that from_table gives it.

    Collective over `group` in forward, and in backward, which goes the other way; nothing is sent
    where the tables are the same.
    x        [..., own of from_table, ...] local
    returns  [..., own of to_table, ...] local
    """
    if from_table == to_table:
        return x
    there = _route_to_table(group.rank, from_table, to_table)
    back = _route_to_table(group.rank, to_table, from_table)
    return record_linear(
        _fetched(x.array, group, dim, there),
        x,
        lambda gradient: _fetched(gradient, group, dim, back),
        lambda gradient: exchange_rows(gradient, group, dim, to_table, from_table),
        gives_new=True,
    )


@dataclass(frozen=True, eq=False)
class _Route:
    """Which rows travel, on one rank.

    count      of the rows that it wants
    own        (places among them, own rows that stand there)
    blank      places of zeros; None: there are none
    is_all     it wants each of its rows once
    given      {rank: own rows that it wants}
    taken      {rank: the places of the rows that are its}, counts: how many these are
    """

    count: int
    own: tuple
    blank: object
    is_all: bool
    given: dict[int, object]
    taken: dict[int, object]
    counts: dict[int, int]


@lru_cache(maxsize=1024)
def _route_to_windows(length, rank, spans, beyond) -> _Route:
    wanted = [BEYOND[beyond](numpy.arange(*span), length) for span in spans]
    return _route(rank, even_spans(length, len(spans)), wanted)


@lru_cache(maxsize=1024)
def _route_to_halo(length, rank, spans, beyond):
    """Return how many rows of a halo stand before the own ones, and the route to all of them."""
    table = even_spans(length, len(spans))
    read = [BEYOND[beyond](numpy.arange(*span), length) for span in spans]
    owned = [positions_of(each) for each in table]
    own = _places(read[rank], owned[rank])
    if not numpy.array_equal(own + spans[rank][0], owned[rank]):  # once, and where they stand
        return None
    wanted = [_of_others(*both) for both in zip(read, owned)]
    before = numpy.count_nonzero(read[rank][: own[0]] != ZEROS)
    return int(before), _route(rank, table, wanted)


def _of_others(rows, owned):
    return rows[(rows != ZEROS) & ~numpy.isin(rows, owned)]


@lru_cache(maxsize=256)
def _route_to_table(rank, from_table, to_table) -> _Route:
    return _route(rank, from_table, [*map(positions_of, to_table)])


def _route(rank, table, wanted) -> _Route:
    """Return the route of one rank to rows of these numbers, of what ranks have by the table."""
    owned = [positions_of(spans) for spans in table]
    given: dict = {}
    taken: dict = {}
    counts: dict = {}
    for other in range(len(table)):
        theirs = _places(wanted[other], owned[rank])
        if other != rank and theirs.size:
            given[other] = _as_slice(_rows_of(wanted[other][theirs], owned[rank]))
        mine = _places(wanted[rank], owned[other])
        if other != rank and mine.size:
            taken[other] = _as_slice(mine)
            counts[other] = mine.size
    here = _places(wanted[rank], owned[rank])
    rows = _rows_of(wanted[rank][here], owned[rank])
    blank = numpy.flatnonzero(wanted[rank] == ZEROS)
    is_all = numpy.array_equal(rows, numpy.arange(len(owned[rank])))
    own = _as_slice(here), _as_slice(rows)
    zeros = _as_slice(blank) if blank.size else None
    return _Route(len(wanted[rank]), own, zeros, is_all, given, taken, counts)


def _places(wanted, owned):
    return numpy.flatnonzero(numpy.isin(wanted, owned))


def _rows_of(numbers, owned):
    return numpy.searchsorted(owned, numbers)


def _as_slice(rows):
    """Return numbers as a slice, which reads and writes without an index, if they are in a row."""
    if rows.size and (numpy.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _fetched(array, group, dim, route):
    """Return the wanted rows [..., count, ...] of [..., own, ...], a new array."""
    return _put_together(array, _sent_for(array, group, dim, route)(), dim, route)


def _sent_for(array, group, dim, route):
    """Send own rows to the ranks that want them; return what waits for {rank: the wanted rows that
    are its, first}. Collective.
    """
    xp = xp_of(array)
    source = xp.moveaxis(array, dim, 0)
    sent = {rank: source[rows] for rank, rows in route.given.items()}
    rest = source.shape[1:]
    came = {rank: (count, *rest) for rank, count in route.counts.items()}
    return _exchange(group, sent, came, array.dtype, xp)


def _put_together(array, came, dim, route):
    """Return the wanted rows of own ones and what came, a new array."""
    xp = xp_of(array)
    shape = [*array.shape]
    shape[dim] = route.count
    result = fresh.ordered_as(array, shape)
    source, target = xp.moveaxis(array, dim, 0), xp.moveaxis(result, dim, 0)
    if route.blank is not None:
        target[route.blank] = 0
    places, rows = route.own
    target[places] = source[rows]
    for rank, received in came.items():
        target[route.taken[rank]] = received
    return result


def _returned(gradient, group, dim, route, shape):
    """Return the sums [..., own, ...] of the gradients of rows [..., count, ...] of all ranks."""
    xp = xp_of(gradient)
    result = (empty if route.is_all else fresh.zeros)(shape, gradient.dtype, xp)
    source, target = xp.moveaxis(gradient, dim, 0), xp.moveaxis(result, dim, 0)
    came = _sent_home(gradient, group, dim, route, shape[dim])
    places, rows = route.own
    if route.is_all:
        target[...] = source[places]
    else:
        _add(target, rows, source[places])
    _add_all(result, came(), dim, route)
    return result


def _sent_home(gradient, group, dim, route, own):
    """Send the gradients of rows of others home; return what waits for {rank: those of own ones},
    of which there are so many.
    """
    xp = xp_of(gradient)
    source = xp.moveaxis(gradient, dim, 0)
    sent = {rank: source[places] for rank, places in route.taken.items()}
    shape, numbers = source.shape[1:], numpy.arange(own)
    wanted = {rank: numbers[rows] for rank, rows in route.given.items()}
    came = {rank: (len(rows), *shape) for rank, rows in wanted.items()}
    return _exchange(group, sent, came, gradient.dtype, xp)


def _add_all(array, came, dim, route):
    """Add to own rows of an array [..., own, ...] what came for them, by rank."""
    target = xp_of(array).moveaxis(array, dim, 0)
    for rank, received in came.items():
        _add(target, route.given[rank], received)


def _add(target, rows, values):
    """Add values to rows, of which one may stand there several times."""
    if isinstance(rows, slice):
        target[rows] += values
    else:
        for row, value in zip(rows.tolist(), values):
            target[row] += value


def _exchange(group, sent, shapes, dtype, xp) -> Callable[[], dict]:
    """Begin an exchange; return what waits for it and returns {rank: array} of what came, by rank.

    Collective over the ranks that send or take.
    """
    came: dict = {}
    handles, kept = [], []
    for rank in sorted(shapes):
        came[rank] = empty(shapes[rank], dtype, xp)
        handles.append(group.irecv(came[rank].reshape(-1), rank))
    for rank in sorted(sent):
        kept.append(fresh.contiguous(sent[rank]).reshape(-1))  # until they are through
        handles.append(group.isend(kept[-1], rank))

    def arrived() -> dict:
        for handle in handles:
            handle.wait()
        kept.clear()
        acknowledge(group, shapes.keys() - sent.keys(), sent.keys() - shapes.keys())
        return came

    return arrived


def acknowledge(group: CommunicationBackend, senders, receivers) -> None:
    """Tell senders that their message is here, and wait until receivers say so of this rank's.

    Of ranks that only send, none goes on while another has failed before it receives: its message
    would be left, and taken by a later step. Collective over all of them.
    """
    box = numpy.zeros(1, numpy.uint8)
    told = [group.isend(box, rank, RECEIPT_TAG) for rank in sorted(senders)]
    for rank in sorted(receivers):
        group.receive(numpy.empty_like(box), rank, RECEIPT_TAG)
    for handle in told:
        handle.wait()
