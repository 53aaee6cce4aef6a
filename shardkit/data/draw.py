"""Draw: random numbers for the samples of a read, as the seed and their places say."""

from math import prod

import numpy

from ..arguments import is_integer, require
from ..array.random import key_of, philox, uniform_of

_MANY = 64  # numbers of a sample, from which on a generator of NumPy makes them sooner


class Draw:
    """Random numbers for n samples, of each from a stream of its own; each call gives new ones.

    Parameters
    ----------
    key
        Another one gives other numbers.
    positions
        [n] int64, kept as draw.positions: where in the stream of the run each stands, no two alike.
        position // len(samples) is the epoch. So what is drawn is new in each epoch, the same on
        any mesh, and after a restart what it would have been.
    """

    def __init__(self, key: int, positions: numpy.ndarray) -> None:
        self.positions = numpy.asarray(positions, numpy.int64)
        self._key, self._calls = key % (1 << 64), 0

    def of(self, rows: numpy.ndarray) -> "Draw":
        """Return the draw of some of the samples, at its first call."""
        return Draw(self._key, self.positions[rows])

    def named(self, name: str) -> "Draw":
        """Return a draw of the same samples, independent of this one and of other names."""
        return Draw(key_of(self._key, name), self.positions)

    def uniform(self, *shape: int) -> numpy.ndarray:
        """Return [n, *shape] float64 in [0, 1)."""
        if prod(shape) >= _MANY:
            return numpy.array([each.random(shape) for each in self.generators()])
        bits = self._bits(2 * prod(shape)).reshape(-1, 2)
        return uniform_of(bits).reshape(len(self.positions), *shape)

    def normal(self, *shape: int) -> numpy.ndarray:
        """Return [n, *shape] float64, standard normal."""
        if prod(shape) >= _MANY:
            return numpy.array([each.standard_normal(shape) for each in self.generators()])
        first, second = numpy.moveaxis(self.uniform(*shape, 2), -1, 0)
        radius = numpy.sqrt(-2 * numpy.log(1 - first))  # Box-Muller
        return radius * numpy.cos(2 * numpy.pi * second)

    def integers(self, high: int, *shape: int) -> numpy.ndarray:
        """Return [n, *shape] int64 in [0, high), high at most 2^53."""
        require(is_integer(high, at_least=1), "high", high, "an integer, at least 1")
        return (self.uniform(*shape) * float(high)).astype(numpy.int64)

    def generators(self) -> list[numpy.random.Generator]:
        """Return one of NumPy for each sample, for what else it draws."""
        keys = self._bits(4).view(numpy.uint64)
        return [numpy.random.Generator(numpy.random.Philox(key=key)) for key in keys]

    def _bits(self, count: int) -> numpy.ndarray:
        """Return the numbers of this call for each sample, by its position: [n, count] uint32."""
        places = self.positions.astype(numpy.uint64)[:, None]
        blocks = numpy.arange(-(-count // 4), dtype=numpy.uint64)
        call, self._calls = numpy.uint64(self._calls), self._calls + 1
        counters = numpy.broadcast_arrays(blocks, call, places & 0xFFFFFFFF, places >> 32)
        bits = numpy.stack(philox(counters, self._key), -1).astype(numpy.uint32)
        return bits.reshape(len(places), 4 * len(blocks))[:, :count]
