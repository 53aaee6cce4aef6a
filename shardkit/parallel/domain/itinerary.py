"""Who computes what of attention over parts of a sequence, and which keys go where.

    queries of rank 0 |####......        rank 0  sees its own keys
               rank 1 |..####....        rank 1  and the last ones of rank 0, which travel
               rank 2 |....####..

All of it follows from the spans of all ranks and from what a query sees, without a question.
"""

from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy

from .spans import Spans, Table, count_of, placed_spans, positions_of


class Sight(NamedTuple):
    """Which keys a query at position p sees: those from p - before to p + after; None: all."""

    before: int | None
    after: int | None

    @classmethod
    def of(cls, causal: bool, window: int | None) -> "Sight":
        """Return that of causal attention, or to all; window: up to so many tokens, itself one."""
        before = None if window is None else window - 1
        return cls(before, 0 if causal else before)


class Sighting(NamedTuple):
    """Queries of a rank and keys of a block of which each of them sees one.

    rows, keys            of the queries of the rank, and of the block
    first_query, window   as the kernel wants them
    """

    rows: slice
    keys: slice
    first_query: int
    window: int | None


class Stop(NamedTuple):
    """A block of keys that comes by.

    owner      the rank whose keys they are
    sightings   in their order
    arrives    it comes here
    goes_on    the next rank gets it
    """

    owner: int
    sightings: tuple[Sighting, ...]
    arrives: bool
    goes_on: bool


class Itinerary(NamedTuple):
    """What a rank computes and sends, of blocks that go one way.

    way        1: to the next rank; -1: to the one before, and an owner has no terms of its own
    stops      of blocks, its own first
    closing    sightings with its own keys that come after all others
    ends       for each rank the last one that its block comes to
    parts      for each rank which of its keys travel: from the first that another rank sees to the
               last; sightings of other ranks' keys are of these
    """

    rank: int
    way: int
    stops: tuple[Stop, ...]
    closing: tuple[Sighting, ...]
    ends: tuple[int, ...]
    parts: tuple[slice, ...]

    def begins_sums(self, owner: int) -> bool:
        """Return True if this rank's terms are the first ones of the sums of a block."""
        first = owner if self.way == 1 else owner + self.way
        return self.rank == first % len(self.ends)

    def neighbor(self, step: int) -> int:
        """Return the rank so many places ahead on the way."""
        return (self.rank + self.way * step) % len(self.ends)


@lru_cache(maxsize=256)
def itineraries_of(
    table: Table, key_table: Table, sight: Sight, rank: int
) -> tuple[Itinerary, ...]:
    """Return what this rank computes and sends, one way after the other; its own block is seen on
    the first.
    """
    own = _sightings(table[rank], key_table[rank], sight)
    itineraries: list[Itinerary] = []
    for way, hops in _routes(table, key_table, sight):
        met = _met(table, key_table, sight, way, hops)
        parts = tuple([_hull(of_owner) for of_owner in met])
        early, late = ((), ()) if itineraries else own
        stops = [Stop(rank, early, True, hops[rank] > 0)]
        for hop in range(1, len(table)):
            owner = (rank - way * hop) % len(table)
            arrives, goes_on = hops[owner] >= hop, hops[owner] > hop
            seen = met[owner][hop - 1] if arrives else ()
            stops.append(Stop(owner, _within(parts[owner], seen), arrives, goes_on))
        ends = [owner + way * count for owner, count in enumerate(hops)]
        ends = [end % len(table) for end in ends]
        itineraries.append(Itinerary(rank, way, tuple(stops), late, tuple(ends), parts))
    return tuple(itineraries)


def _met(table, key_table, sight, way, hops):
    """Return for each owner of a block the sightings of its keys after each hop."""

    def after(owner, hop):
        queries = table[(owner + way * hop) % len(table)]
        found = chain(*_sightings(queries, key_table[owner], sight))
        return tuple(sorted(found, key=_by_query))

    hops_of = [range(1, count + 1) for count in hops]
    return [[after(owner, hop) for hop in each] for owner, each in enumerate(hops_of)]


def _hull(met) -> slice:
    """Return the keys from the first to the last that are seen after any hop."""
    keys = [sighting.keys for sighting in chain(*met)]
    if not keys:
        return slice(0, 0)
    return slice(min([each.start for each in keys]), max([each.stop for each in keys]))


def _within(part: slice, sightings) -> tuple[Sighting, ...]:
    """Return sightings of keys as numbers in a part of them."""

    def moved(keys):
        return slice(keys.start - part.start, keys.stop - part.start)

    return tuple([each._replace(keys=moved(each.keys)) for each in sightings])


def _routes(table: Table, key_table: Table, sight: Sight) -> list[tuple[int, list[int]]]:
    """Return the ways that blocks go, and how often each goes on: to the last rank that sees one of
    its keys, or to the last one on the shorter way.
    """
    num_ranks = len(table)
    seen = [_seen_after(table, spans, sight, owner) for owner, spans in enumerate(key_table)]
    all_one_way = [max(hops, default=0) for hops in seen]
    half = num_ranks // 2
    near = [[hop for hop in hops if hop <= half] for hops in seen]
    far = [[num_ranks - hop for hop in hops if hop > half] for hops in seen]
    ahead, back = [[max(hops, default=0) for hops in each] for each in (near, far)]
    if sum(ahead) + sum(back) < sum(all_one_way):
        return [(1, ahead), (-1, back)]
    return [(1, all_one_way)]


def _seen_after(table: Table, keys: Spans, sight: Sight, owner: int) -> list[int]:
    """Return how many places ahead of the owner of a block ranks see one of its keys."""
    num_ranks = len(table)
    return [
        hop
        for hop in range(1, num_ranks)
        if any(_sightings(table[(owner + hop) % num_ranks], keys, sight))
    ]


def keys_sent(table: Table, key_table: Table, sight: Sight) -> int:
    """Return how many keys the rank that sends most sends in forward and backward, with values or
    gradients.
    """

    def sent(itinerary):
        lengths = [part.stop - part.start for part in itinerary.parts]
        total = 0
        for stop in itinerary.stops:
            is_own = stop.owner == itinerary.rank
            has_sums = not is_own or itinerary.begins_sums(stop.owner)
            goes_home = stop.arrives and not stop.goes_on and not is_own
            total += lengths[stop.owner] * (stop.goes_on * (2 + has_sums) + goes_home)
        return total

    ranks = [itineraries_of(table, key_table, sight, rank) for rank in range(len(table))]
    return max([sum(map(sent, of_rank)) for of_rank in ranks])


def most_scores(table: Table, key_table: Table, sight: Sight) -> int:
    """Return how many scores the rank that computes most computes for a head."""
    start = min([start for spans in key_table for start, _ in spans], default=0)
    stop = start + sum(map(count_of, key_table))

    def computed(spans):
        at = positions_of(spans)
        first, behind = numpy.full((2, len(at)), [[start], [stop]])
        if sight.before is not None:
            first = numpy.maximum(at - sight.before, start)
        if sight.after is not None:
            behind = numpy.minimum(at + sight.after + 1, stop)
        return int(numpy.maximum(behind - first, 0).sum())

    return max(map(computed, table))


def _sightings(queries: Spans, keys: Spans, sight: Sight):
    """Return two tuples of sightings: of keys that do not begin after the queries, and the rest.

    Queries go up, keys down.
    """
    early: list[Sighting] = []
    late: list[Sighting] = []
    for rows, span in placed_spans(queries):
        for columns, key_span in reversed(placed_spans(keys)):
            met = _sighting(rows, span, columns, key_span, sight)
            if met is not None:
                (early if key_span[0] <= span[0] else late).append(met)
    return tuple(early), tuple(late)


def _by_query(sighting: Sighting):
    """Return the key of an order: queries up, keys down."""
    return sighting.rows.start, -sighting.keys.start


def _sighting(rows, span, columns, key_span, sight) -> Sighting | None:
    """Return which queries of a span see which keys of another; None: none do.

    Row i of the queries sees columns i + lowest .. i + highest of the keys, as far as there are.
    """
    num_rows, num_keys = [stop - start for start, stop in (span, key_span)]
    offset = span[0] - key_span[0]
    lowest = -num_rows if sight.before is None else offset - sight.before
    highest = num_keys if sight.after is None else offset + sight.after
    first_row, stop_row = max(0, -highest), min(num_rows, num_keys - lowest)
    if first_row >= stop_row or num_keys == 0:
        return None
    first_key = max(0, first_row + lowest)
    stop_key = min(num_keys, stop_row + highest)
    is_limited = stop_row - 1 + lowest > first_key
    return Sighting(
        slice(rows.start + first_row, rows.start + stop_row),
        slice(columns.start + first_key, columns.start + stop_key),
        first_row + highest - first_key,
        highest - lowest + 1 if is_limited else None,
    )
