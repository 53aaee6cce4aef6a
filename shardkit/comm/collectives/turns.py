"""The turns of sums and gathers: generators of handles, one for each round (rounds.py).

    to_owner          round 1: give slices, get rows of slices   wait, add the rows
                      round 2: give these sums, ...              wait, add: the sum of all
    to_all            round 1: give own slice to others          wait
                      round 2: give the slices of a block, ...

Parts are one for each rank of the group, arrays of NumPy or CuPy. A channel is what has rank, size
and exchange(): messages, or swaps of GPU memory (gpu/levels.py).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle

import numpy

from ...array.arena import empty
from ...array.backend import xp_of
from ..checks import pieces_of, starts_of
from ..wire import HALF_FLOATS
from .rounds import Round, Sent, rounds_of_gather, rounds_of_sum

WIDE = numpy.dtype("float32")  # in which half floats are added


def to_owner(channel, parts, out, scratch, tag: int, add: Callable) -> Iterator:
    """Leave the sum over ranks of the part of this one in `out`, which may be that part.

    scratch   room for what the other ranks send, of the same dtype; a round that brings more than
              it holds allocates its own
    add       function (slices, out)
    """
    rounds = rounds_of_sum(channel.rank, channel.size)
    sum_dtype = WIDE if out.dtype.name in HALF_FLOATS else out.dtype
    held = dict(enumerate(parts))
    for this in rounds:
        sizes = [parts[number].size for number in this.kept]
        starts = starts_of([*sizes, 0])
        rows = _rows(this, held, starts, scratch)
        incoming = [(sent.rank, _place(sent, rows, starts)) for sent in this.come]
        outgoing = [(to, _packed(held, given)) for to, given in this.given]
        yield channel.exchange(outgoing, incoming, tag)
        into = out
        if this is not rounds[-1]:
            into = empty(starts[-1], sum_dtype, xp_of(out))
            rows = [row.astype(into.dtype, copy=False) for row in rows]
        if into.size:
            add(rows, into)
        held = dict(zip(this.kept, pieces_of(into, sizes)))


def each_window_to_owner(
    channel, parts, out, window: int, scratch, tag: int, add: Callable
) -> Iterator[Iterator]:
    """Return the turns of to_owner for so many elements of each part at a time.

    scratch   rooms that are used in turn
    """
    rooms = cycle(scratch)
    for first in range(0, max(part.size for part in parts), window):
        span = slice(first, first + window)
        these = [part[span] for part in parts]
        yield to_owner(channel, these, out[span], next(rooms), tag, add)


def to_all(channel, parts, tag: int) -> Iterator:
    """Send every rank's own part to all of them."""
    for to, come in rounds_of_gather(channel.rank, channel.size):
        outgoing = [(rank, _joined(parts[block])) for rank, block in to]
        incoming = [(rank, _room_of(parts[block])) for rank, block in come]
        yield channel.exchange(outgoing, incoming, tag)
        for (_, room), (_, block) in zip(incoming, come):
            _unpack(room, parts[block])


def to_owner_to_all(channel, parts, scratch, tag: int, add: Callable) -> Iterator:
    """Leave the sum over ranks of every part in it."""
    yield from to_owner(channel, parts, parts[channel.rank], scratch, tag, add)
    yield from to_all(channel, parts, tag + 1)


def each_ahead(turns: Iterable[Iterator]) -> None:
    """Take turns to their ends, each begun before the one before it ends."""
    handle, before = None, iter(())
    for these in turns:
        begun = next(these, None)
        _end(handle, before)
        handle, before = begun, these
    _end(handle, before)


def _end(handle, turns) -> None:
    while handle is not None:
        handle.wait()
        handle = next(turns, None)


# ---- memory of messages --------------------------------------------------------------------------


def _rows(this: Round, held, starts, scratch):
    """Return the rows of a round, with what this rank has itself.

    held     {number: this rank's sum of a slice}
    starts   of the slices of a row, and its end
    """
    dtype, size = next(iter(held.values())).dtype, starts[-1]
    num_rows = this.num_rows - (this.own_row is not None)
    rows = [*_at_least(num_rows * size, dtype, scratch).reshape(num_rows, size)]
    if this.own_row is not None:
        rows.insert(this.own_row, _packed(held, this.kept))
    for own in this.own:
        _place(own, rows, starts)[...] = _packed(held, this.kept[own.first : own.end])
    return rows


def _place(sent: Sent, rows, starts):
    """Return where in the rows of a round it is."""
    return rows[sent.row][starts[sent.first] : starts[sent.end]]


def _at_least(count: int, dtype, scratch):
    is_enough = scratch.size >= count and scratch.dtype == dtype
    return scratch[:count] if is_enough else empty(count, dtype, xp_of(scratch))


def _packed(held, numbers):
    """Return slices of these numbers one after the other."""
    return _joined([held[number] for number in numbers])


def _joined(pieces):
    """Return pieces [n] one after the other, in their own memory where they lie so."""
    whole = _as_one(pieces)
    return xp_of(*pieces).concatenate(pieces) if whole is None else whole


def _room_of(pieces):
    """Return room for pieces [n] one after the other, their own memory where they lie so."""
    whole = _as_one(pieces)
    size = sum(piece.size for piece in pieces)
    return empty(size, pieces[0].dtype, xp_of(*pieces)) if whole is None else whole


def _unpack(room, pieces) -> None:
    """Copy what came in room to its pieces, unless that is where it came."""
    if len(pieces) > 1 and _as_one(pieces) is None:
        sizes = [piece.size for piece in pieces]
        for piece, came in zip(pieces, pieces_of(room, sizes)):
            piece[...] = came


def _as_one(pieces):
    """Return a view of pieces that lie side by side in memory; None if they do not."""
    filled = [piece for piece in pieces if piece.size] or pieces[:1]
    if len(filled) == 1:
        return filled[0]
    if xp_of(*filled) is not numpy:  # a GPU copies them sooner than they are looked at
        return None
    places = [piece.__array_interface__["data"][0] for piece in filled]
    ends = [place + piece.nbytes for place, piece in zip(places, filled)]
    if places[1:] != ends[:-1]:
        return None
    size = sum(piece.size for piece in filled)
    return numpy.lib.stride_tricks.as_strided(filled[0], (size,))
