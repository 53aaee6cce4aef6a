"""What windows leave of attention: tokens that layers see, scores, and keys that travel."""

from functools import lru_cache
from typing import Any

from ..layout.cuts import even_runs


def reaches(shape: Any) -> list[int]:
    """Return for each layer of a GPT how many tokens attention sees at most."""
    length = shape.sequence_length
    near = min(shape.window or length, length)
    return [length if layer in shape.full_layers else near for layer in range(shape.layers)]


def mean_of_layers(shape: Any, function) -> Any:
    """Return the mean over all layers of function(reach), numbers as a list."""
    found = reaches(shape)
    parts = {reach: found.count(reach) / len(found) for reach in found}
    results = [[x * part for x in function(reach)] for reach, part in parts.items()]
    return list(map(sum, zip(*results)))


def seen_part(shape: Any) -> float:
    """Return the part of the scores below the diagonal that windows leave, over all layers."""
    length = shape.sequence_length

    def scores(reach):
        return (reach * (reach + 1) / 2 + (length - reach) * reach,)

    (mean,) = mean_of_layers(shape, scores)
    return mean / scores(length)[0]


@lru_cache(maxsize=1024)
def keys_around(length: int, domain: int, reach: int) -> tuple[int, int]:
    """Return how many keys the busiest domain rank sends in a ring under a window: forward,
    backward.

    Of each part the last ones that the window reaches go on to all ranks that see one. Backward
    they go again, with their gradients, which come home.
    """
    spans = even_runs(length, domain)
    ahead, back = [[0] * domain for _ in range(2)]
    for owner, (start, stop) in enumerate(spans):
        travelling = min(stop - start, reach - 1)
        behind = stop + reach - 1
        seeing = [rank for rank in range(owner + 1, domain) if spans[rank][0] < behind]
        for rank in [owner, *seeing][:-1]:
            ahead[rank] += travelling
            back[rank] += 2 * travelling
        if seeing:
            back[seeing[-1]] += travelling
    busiest = max(range(domain), key=lambda rank: ahead[rank] + back[rank])
    return ahead[busiest], back[busiest]
