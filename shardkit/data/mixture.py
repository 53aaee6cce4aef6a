"""Mixture: samples of several sources in given shares.

    sources        A  300 samples, weight 3      B  25 samples, weight 1
    an epoch       300 of A                      100 of B: each sample of B four times
    numbers        0 ............ 299            300 ......... 399

An epoch is the shortest stretch in which the shares are right and each sample of each source comes
at least once: with M = max over sources of N_i / w_i, source i gives round(w_i * M) samples, its
own in turn, so each of them floor or ceil of (w_i * M / N_i) times. The weights are divided by
their sum first. The order (order.py) is one of all numbers, so the shares hold anywhere on average
and over an epoch exactly.
"""

from fractions import Fraction
from hashlib import blake2b

import numpy

from ..errors import ConfigurationError
from ..layout.part import Rows
from .samples import Samples, reader_of

_MOST_SAMPLES = 1 << 62


class Mixture(Samples):
    """Samples of several sources.

    weights  of each source, above 0, in any unit
    Errors: ConfigurationError if an epoch would be longer than 2^62 samples.
    """

    def __init__(self, sources: list[Samples], weights):
        self.sources = sources
        self._readers = [reader_of(source) for source in sources]
        self.weights = tuple(float(weight) for weight in weights)
        self.run_length = max(source.run_length for source in sources)
        exact = [Fraction(weight) for weight in self.weights]
        longest = max(len(source) / weight for source, weight in zip(sources, exact))
        counts = [round(weight * longest) for weight in exact]
        if sum(counts) > _MOST_SAMPLES:
            raise ConfigurationError(
                f"weights {list(self.weights)} make an epoch of {sum(counts):.1e} samples; wanted "
                "weights that are closer to each other"
            )
        self._stops = numpy.cumsum(numpy.array(counts, numpy.int64))

    def __len__(self):
        return int(self._stops[-1])

    def counts(self) -> list[int]:
        """Return how many samples of each source an epoch has."""
        return numpy.diff(self._stops, prepend=0).tolist()

    @property
    def reads_parts(self):
        return all(source.reads_parts for source in self.sources)

    def read(self, numbers, draw=None, part=None):
        """Return x, y of these samples, in their order."""
        numbers = numpy.asarray(numbers)
        which = numpy.searchsorted(self._stops, numbers, side="right")
        found = []
        for index, (source, read) in enumerate(zip(self.sources, self._readers)):
            (rows,) = numpy.nonzero(which == index)
            if len(rows):
                start = int(self._stops[index - 1]) if index else 0
                own = (numbers[rows] - start) % len(source)
                its = None if draw is None else draw.named("mixture").of(rows)
                found.append((rows, read(own, its, part)))
        return tuple(_interleaved(len(numbers), found, which) for which in range(2))

    def fingerprint(self):
        """Return a hash of the sources and their weights."""
        text = " ".join(source.fingerprint() for source in self.sources)
        return blake2b(f"{text} {self.weights}".encode(), digest_size=16).hexdigest()


def _interleaved(num: int, found, which: int):
    """Return x (0) or y (1) of all sources, each sample in its row."""
    pairs = [(rows, arrays[which]) for rows, arrays in found]
    first = pairs[0][1]
    if isinstance(first, Rows):
        inside = [(rows, (slab.array,)) for rows, slab in pairs]
        return first.map(lambda array: _interleaved(num, inside, 0))
    whole = numpy.empty((num, *first.shape[1:]), first.dtype)
    for rows, array in pairs:
        whole[rows] = array
    return whole
