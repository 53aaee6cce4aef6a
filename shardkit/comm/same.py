"""Values that users must pass alike on all ranks: compared as one number, then in words.

rank 0, 1   {"seed": "3", "micro_batches": "2"}       ShardingError on all ranks: micro_batches is
rank 2      {"seed": "3", "micro_batches": "4"}       4 on rank 2, but 2 on rank 0, 1
"""

import zlib
from collections import Counter

import numpy

from ..errors import ShardingError

_MOST_RANKS = 8  # named in a message


def check_same(backend, facts: dict[str, str], advice: str = "pass the same on all ranks") -> None:
    """Compare what is known under these names with the other ranks. Collective.

    A message of 8 bytes from each rank if it is equal.
    Errors, on all ranks: ShardingError with the first name under which ranks differ, these ranks
    and both values.
    """
    mine = numpy.array([zlib.crc32(repr(facts).encode())], numpy.int64)
    everyones = numpy.empty(backend.world_size, numpy.int64)
    backend.all_gather(mine, everyones)
    if (everyones != mine).any():
        raise ShardingError(f"{_first_difference(backend.all_gather_object(facts))}; {advice}")


def facts_of(arguments: dict) -> dict[str, str]:
    """Return {name: text} of arguments that are plain values, for check_same."""
    return {name: repr(value) for name, value in arguments.items()}


def _first_difference(everyones: list[dict[str, str]]) -> str:
    names = dict.fromkeys(name for facts in everyones for name in facts)
    of_ranks = next(
        values
        for values in (
            [(name, facts.get(name, "missing")) for facts in everyones] for name in names
        )
        if len(set(values)) > 1
    )
    (name, usual), _ = Counter(of_ranks).most_common(1)[0]
    ranks = {
        value: [rank for rank, (_, other) in enumerate(of_ranks) if other == value]
        for _, value in of_ranks
    }
    others = ", ".join(
        f"{value} on rank {_listed(holders)}" for value, holders in ranks.items() if value != usual
    )
    return f"{name} is {others}, but {usual} on rank {_listed(ranks[usual])}"


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:_MOST_RANKS])) + (" ..." if len(ranks) > _MOST_RANKS else "")
