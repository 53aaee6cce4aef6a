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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy

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
        others = {*adding.tolist()} - {rank}
        given = [(to, _numbers(order[held[adding == to]])) for to in others]
        sent = [
            Sent(source, row, first, end)
            for row, block in enumerate(blocks)
            for source, first, end in _runs(_adding(block, kept, num_ranks))
        ]
        own = [each for each in sent if each.rank == rank]
        is_whole = own[0][2:] == (0, kept.size) if own else False
        found.append(
            Round(
                given=_in_turn(given, rank, num_ranks),
                kept=_numbers(order[kept]),
                num_rows=len(blocks),
                own_row=own[0].row if is_whole else None,
                own=() if is_whole else tuple(own),
                come=_in_turn([each for each in sent if each.rank != rank], rank, num_ranks, -1),
            )
        )
        held = kept
    return tuple(found)


@lru_cache(256)
def rounds_of_gather(rank: int, num_ranks: int) -> tuple[tuple[tuple, tuple], ...]:
    """Return for each round [(a rank, slices to it)] and [(a rank, slices from it)].

    As Python's slices of what all ranks have; a round fills a block.
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
        found.append((_in_turn(to, rank, num_ranks), _in_turn(come, rank, num_ranks, -1)))
    return tuple(found)


def _in_turn(pairs, rank: int, num_ranks: int, step: int = 1) -> tuple:
    """Return pairs (a rank, ...), the next rank first, or the one before: no one is everybody's."""
    turn = {other: (other - rank) * step % num_ranks for other, *_ in pairs}
    return tuple(sorted(pairs, key=lambda pair: turn[pair[0]]))


def _numbers(array) -> tuple[int, ...]:
    return tuple(array.tolist())


def _blocks_of(rank: int, num_ranks: int) -> list[list[range]]:
    """Return for each round the blocks that become one, that of the rank among them."""
    depth = (num_ranks - 1).bit_length()
    ends = [depth] if num_ranks <= DIRECT else [*range(BITS, depth, BITS), depth]
    found = []
    for below, above in zip([0, *ends], ends):
        first = rank >> above << above
        end, size = min(first + (1 << above), num_ranks), 1 << below
        starts = range(first, end, size)
        found.append([range(start, min(start + size, end)) for start in starts])
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
    ends = [*starts[1:], ranks.size]
    return list(zip(ranks[starts].tolist(), starts, ends))


def _given(rank: int, block: range, other: range) -> Iterator[tuple[int, slice]]:
    """Return whom in another block a rank gives which slices of its own block.

    Each of the others needs all of them: written down one after the other, every rank of the block
    gives as many.
    """
    size, begin = len(block), (rank - block.start) * len(other)
    end = begin + len(other)
    for place in range(begin // size, -(-end // size)):
        first = place * size
        start = block.start - first
        yield other[place], slice(start + max(begin, first), start + min(end, first + size))
