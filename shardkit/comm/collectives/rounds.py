"""Who sends what to whom when many ranks add slices, or gather them.

    round 1    of every 8 ranks in a row      a rank gives each of the others what that one adds
    round 2    of every 64                    from here on, and adds what they give it as the tree
    ...                                       of ordered.py: a sum of 8, 64, ... ranks

In a block of 8 or 64 ranks each adds as many slices, where it can those whose owner's number has
the last three or six bits of its own, so that it keeps them. One of 4,096 ranks posts 28 messages
in place of 4,095; they are a ring's bytes, and the sums are the same tree. Up to DIRECT ranks there
is one round: everyone sends each owner its slice. The idea is recursive halving (Rabenseifner,
"Optimization of Collective Reduction Operations", 2004), by eighths and the nearest ranks first.

To gather, the rounds go the same way: a block's slices, which lie side by side, go to the other
blocks. A last block that is smaller gives and takes as much for each of its ranks as the others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from typing import NamedTuple

import numpy

from ...array.arena import empty
from ...array.kernels import tree_sum
from ..checks import pieces_of, starts_of
from ..wire import HALF_FLOATS

DIRECT = 16  # ranks; to as many, messages posted at once take as long as those of two rounds
BITS = 3  # of a rank's number, that a round takes away


class Sent(NamedTuple):
    """Where in the rows of a round a rank's message goes, or what this rank has itself."""

    rank: int
    row: int
    first: int  # of the row's slices
    end: int


@dataclass(frozen=True)
class Round:
    """What one rank does in one round of a sum; slices are named by the numbers of their owners.

    given      [(another rank, slices that it adds from here on)]
    kept       slices that this rank adds from here on; a row for each block has what it sends of
               them, in order of the tree
    num_rows   of them
    own_row    the number of the one that this rank has whole, or None
    own        other parts of rows that this rank has
    come       what others send
    """

    given: tuple[tuple[int, tuple[int, ...]], ...]
    kept: tuple[int, ...]
    num_rows: int
    own_row: int | None
    own: tuple[Sent, ...]
    come: tuple[Sent, ...]


@lru_cache(256)
def rounds_of_sum(rank: int, num_ranks: int) -> tuple[Round, ...]:
    """Return the rounds of a rank."""
    order = numpy.array(_by_low_bits(range(num_ranks)))
    every: numpy.ndarray = numpy.arange(num_ranks)
    held, found = every, []
    for blocks in _blocks_of(rank, num_ranks):
        of_all = _adding(range(blocks[0].start, blocks[-1].stop), every, num_ranks)
        adding, kept = of_all[held], every[of_all == rank]
        others = sorted({*adding.tolist()} - {rank}, key=lambda to: (to - rank) % num_ranks)
        given = tuple((to, tuple(order[held[adding == to]].tolist())) for to in others)
        sent = [
            Sent(source, row, first, end)
            for row, block in enumerate(blocks)
            for source, first, end in _runs(_adding(block, kept, num_ranks))
        ]
        own = [each for each in sent if each.rank == rank]
        own_row = next((each.row for each in own if each[2:] == (0, kept.size)), None)
        come = sorted(
            (each for each in sent if each.rank != rank),
            key=lambda each: (rank - each.rank) % num_ranks,
        )
        copied = () if own_row is not None else tuple(own)
        names = tuple(order[kept].tolist())
        found.append(Round(given, names, len(blocks), own_row, copied, tuple(come)))
        held = kept
    return tuple(found)


@lru_cache(256)
def rounds_of_gather(rank: int, num_ranks: int) -> tuple[tuple[list, list], ...]:
    """Return for each round [(a rank, slices to it)] and [(a rank, slices from it)].

    Slices are ranges of the ranks they come from; a round fills a block.
    """
    found = []
    for blocks in _blocks_of(rank, num_ranks):
        own = next(block for block in blocks if rank in block)
        others = [block for block in blocks if block is not own]
        to = [pair for other in others for pair in _given(rank, own, other)]
        come = [
            (source, slices)
            for other in others
            for source in other
            for taker, slices in _given(source, other, own)
            if taker == rank
        ]
        to.sort(key=lambda pair: (pair[0] - rank) % num_ranks)
        come.sort(key=lambda pair: (rank - pair[0]) % num_ranks)
        found.append((to, come))
    return tuple(found)


def _blocks_of(rank: int, num_ranks: int) -> list[list[range]]:
    """Return for each round the blocks that become one, that of the rank among them."""
    depth = (num_ranks - 1).bit_length()
    ends = [depth] if num_ranks <= DIRECT else [*range(BITS, depth, BITS), depth]
    found = []
    for below, above in zip([0, *ends], ends):
        first = rank >> above << above
        starts = range(first, min(first + (1 << above), num_ranks), 1 << below)
        found.append([range(start, min(start + (1 << below), num_ranks)) for start in starts])
    return found


@lru_cache(1024)
def _by_low_bits(ranks: range) -> list[int]:
    """Return the ranks with the same lowest bits side by side, and of these the next ones."""
    shifts = range(0, ranks.stop.bit_length(), BITS)
    mask = (1 << BITS) - 1
    return sorted(ranks, key=lambda rank: [rank >> shift & mask for shift in shifts])


def _adding(block: range, places, num_ranks: int):
    """Return which rank of a block adds the slices at places [k] of that order: as many each."""
    ranks = numpy.array(_by_low_bits(block))
    return ranks[((places + 1) * len(block) - 1) // num_ranks]


def _runs(ranks) -> list[tuple[int, int, int]]:
    """Return (rank, first, end) for each run of one rank."""
    starts = numpy.flatnonzero(numpy.diff(ranks, prepend=-1)).tolist()
    return list(zip(ranks[starts].tolist(), starts, [*starts[1:], ranks.size]))


def _given(rank: int, block: range, other: range) -> Iterator[tuple[int, range]]:
    """Return whom in another block a rank gives which slices of its own block.

    Each of the others needs all of them: written down one after the other, every rank of the block
    gives as many.
    """
    size, begin = len(block), (rank - block.start) * len(other)
    end = begin + len(other)
    for place in range(begin // size, -(-end // size)):
        first = place * size
        yield other[place], block[max(begin - first, 0) : min(end - first, size)]


# ---- turns: generators of handles; parts are one per rank of the group ---------------------------


def add_slices(slices, out):
    """Add slices [n] of all ranks as the tree, in `out` [n], which may be one of them."""
    if out.dtype.name in HALF_FLOATS or slices[0].dtype != out.dtype:
        out[...] = tree_sum([each.astype("float32", copy=False) for each in slices])
    elif out.size:
        tree_sum(slices, out=out)


def to_owner(channel, parts, out, scratch, tag: int, add: Callable = add_slices) -> Iterator:
    """Leave the sum over ranks of the part of this one in `out`, which may be that part.

    scratch   room for what the other ranks send, of the same dtype; a round that brings more than
              it holds allocates its own
    add       function (slices, out)
    """
    rounds = rounds_of_sum(channel.rank, channel.size)
    held = dict(enumerate(parts))
    for this in rounds:
        sizes = [parts[number].size for number in this.kept]
        starts = starts_of([*sizes, 0])
        rows = _rows(this, held, starts, scratch)
        incoming = [
            (rank, rows[row][starts[first] : starts[end]]) for rank, row, first, end in this.come
        ]
        outgoing = [(to, _packed([held[number] for number in given])) for to, given in this.given]
        yield channel.exchange(outgoing, incoming, tag)
        into = out if this is rounds[-1] else empty(starts[-1], _between(out.dtype, add))
        if into.size:
            add(rows, into)
        held = dict(zip(this.kept, pieces_of(into, sizes)))


def each_window_to_owner(
    channel, parts, out, window: int, scratch, tag: int, add: Callable = add_slices
) -> Iterator[Iterator]:
    """Return the turns of to_owner for so many elements of each part at a time.

    scratch   rooms that are used in turn
    """
    rooms = cycle(scratch)
    for first in range(0, max(part.size for part in parts), window):
        span = slice(first, first + window)
        yield to_owner(channel, [part[span] for part in parts], out[span], next(rooms), tag, add)


def to_all(channel, parts, tag: int) -> Iterator:
    """Send every rank's own part to all of them."""
    for to, come in rounds_of_gather(channel.rank, channel.size):
        outgoing = [(rank, _packed(parts[block.start : block.stop])) for rank, block in to]
        rooms = [_room_of(parts[block.start : block.stop]) for _, block in come]
        incoming = [(rank, room) for (rank, _), (room, _) in zip(come, rooms)]
        yield channel.exchange(outgoing, incoming, tag)
        for room, pieces in rooms:
            for piece, came in zip(pieces, pieces_of(room, [piece.size for piece in pieces])):
                piece[...] = came


def to_owner_to_all(channel, parts, scratch, tag: int) -> Iterator:
    """Leave the sum over ranks of every part in it."""
    yield from to_owner(channel, parts, parts[channel.rank], scratch, tag)
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


def _between(dtype, add):
    """Return the dtype of sums between two rounds: half floats are added as float32."""
    is_half = add is add_slices and dtype.name in HALF_FLOATS
    return numpy.dtype("float32") if is_half else dtype


def _rows(this: Round, held, starts, scratch):
    """Return the rows of a round, with what this rank has itself.

    held     {number: this rank's sum of a slice}
    starts   of the slices of a row, and its end
    """
    dtype, size = next(iter(held.values())).dtype, starts[-1]
    num_rows = this.num_rows - (this.own_row is not None)
    rows = [*_at_least(num_rows * size, dtype, scratch).reshape(num_rows, size)]
    if this.own_row is not None:
        rows.insert(this.own_row, _packed([held[number] for number in this.kept]))
    for _, row, first, end in this.own:
        numbers = this.kept[first:end]
        rows[row][starts[first] : starts[end]] = _packed([held[number] for number in numbers])
    return rows


def _at_least(count: int, dtype, scratch):
    is_enough = scratch.size >= count and scratch.dtype == dtype
    return scratch[:count] if is_enough else empty(count, dtype)


def _packed(pieces):
    """Return pieces [n] one after the other, in their own memory where they lie so."""
    whole = pieces[0] if len(pieces) == 1 else _as_one(pieces)
    return numpy.concatenate(pieces) if whole is None else whole


def _room_of(pieces) -> tuple:
    """Return room for pieces [n] one after the other, and those to which it is copied then.

    None are, where they lie so in memory.
    """
    whole = pieces[0] if len(pieces) == 1 else _as_one(pieces)
    if whole is not None:
        return whole, ()
    return empty(sum(piece.size for piece in pieces), pieces[0].dtype), pieces


def _as_one(pieces):
    """Return a view of pieces that lie side by side in memory; None if they do not."""
    filled = [piece for piece in pieces if piece.size] or pieces[:1]
    places = [piece.__array_interface__["data"][0] for piece in filled]
    ends = [place + piece.nbytes for place, piece in zip(places, filled)]
    if places[1:] != ends[:-1]:
        return None
    size = sum(piece.size for piece in filled)
    return numpy.lib.stride_tricks.as_strided(filled[0], (size,))
