"""What a collective beside computing leaves in the open, and what the slowest device costs.

    link      | gather 1 | gather 2 | gather 3 |                    one link: collectives take turns
    compute              | unit 1 ....... | unit 2 ....... | ...    slower while a collective runs
              | exposed  |

While a collective runs, computing beside it loses `contention` of its speed (arXiv 2507.03114:
18.9% on average and 40% at most). So both end after

    max(travel, compute + contention x travel)

which is never less on a slower device or link.
"""

from functools import lru_cache
from statistics import NormalDist


def both_seconds(compute: float, travel: float, contention: float) -> float:
    """Return the seconds of computing and of collectives that run beside it."""
    return max(travel, compute + contention * travel)


def exposed_seconds(
    compute: float, travel: float, contention: float, first: float = 0.0, overlap: float = 1.0
) -> float:
    """Return the seconds that collectives add to computing beside them.

    first     of them, with nothing to compute beside: the start before the first unit, or the end
              after the last
    overlap   part of the rest that does run beside computing
    """
    first = min(first, travel)
    open_seconds = both_seconds(compute, travel - first, contention) - compute
    return first + overlap * open_seconds + (1 - overlap) * (travel - first)


@lru_cache(maxsize=1024)
def slowest_of(number: int) -> float:
    """Return by how many standard deviations the slowest of this many devices is slower than the
    mean, as expected of a normal distribution (Blom, Statistical Estimates, 1958).
    """
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))
