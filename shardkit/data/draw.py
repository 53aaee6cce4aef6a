"""Draw: random numbers for the samples of a read, as the seed and their places say.

    (position in the stream of the run, number of the call, element) --Philox, keyed by the seed-->

A position is that of one sample in one epoch, and no two are alike; so what is drawn is new in each
epoch, the same on any mesh, and after a restart what it would have been.
"""

from collections.abc import Callable
from math import prod

import numpy

from ..annotations import Shape
from ..array.random import LOW, bits_of, key_of, normal_of, uniform_of
from ..errors import ConfigurationError

_CALLS = 1 << 32
_MANY = 64  # numbers of a sample, from which on a generator of NumPy for each makes them sooner


class Draw:
    """Random numbers for n samples, of each from a stream of its own; each call gives new ones.

    Parameters
    ----------
    key
        Another one gives other numbers: array.random.key_of.
    positions
        [n] int64, from 0: where in the stream of the run each sample stands.

    Attributes
    ----------
    positions
        As given. position // len(samples) is the epoch.
    """

    def __init__(self, key: int, positions: numpy.ndarray) -> None:
        self.positions = numpy.asarray(positions, numpy.int64)
        self._key, self._calls = key, 0

    def __len__(self) -> int:
        return len(self.positions)

    def of(self, rows: numpy.ndarray) -> "Draw":
        """Return the draw of these of the samples alone, at its first call.

        Parameters
        ----------
        rows
            [k] int64: their places among the n.
        """
        return Draw(self._key, self.positions[rows])

    def named(self, name: str) -> "Draw":
        """Return a draw of the same samples whose numbers are independent of these.

        Parameters
        ----------
        name
            What is drawn by it: one read may hand on several.
        """
        return Draw(key_of(self._key, name), self.positions)

    def uniform(self, *shape: int) -> numpy.ndarray:
        """Return [n, *shape] float64 in [0, 1).

        Parameters
        ----------
        shape
            Of what each sample gets; none: a number.
        """
        if prod(shape) >= _MANY:
            return self._generated(numpy.random.Generator.random, shape)
        return uniform_of(self._bits(2 * prod(shape))).reshape(len(self), *shape)

    def normal(self, *shape: int) -> numpy.ndarray:
        """Return [n, *shape] float64, standard normal.

        Parameters
        ----------
        shape
            As for uniform().
        """
        count = prod(shape)
        if count >= _MANY:
            return self._generated(numpy.random.Generator.standard_normal, shape)
        even = count + count % 2
        numbers = normal_of(uniform_of(self._bits(2 * even))).reshape(len(self), even)
        return numbers[:, :count].reshape(len(self), *shape)

    def integers(self, high: int, *shape: int) -> numpy.ndarray:
        """Return [n, *shape] int64 in [0, high).

        Parameters
        ----------
        high
            At most 2^53.
        shape
            As for uniform().

        Raises
        ------
        ConfigurationError
            On another bound.
        """
        if not 1 <= high <= 1 << 53:
            raise ConfigurationError(f"integers below {high}; wanted 1 <= high <= 2^53")
        return (self.uniform(*shape) * float(high)).astype(numpy.int64)

    def generators(self) -> list[numpy.random.Generator]:
        """Return one of NumPy for each sample, for what else it draws; calls give new ones."""
        seeds = self._bits(4).reshape(len(self), 4)
        return [numpy.random.Generator(numpy.random.Philox(key=_whole(each))) for each in seeds]

    def _generated(self, method: Callable[..., object], shape: Shape) -> numpy.ndarray:
        """Return [n, *shape] float64 by a method of the generators, which fills an array."""
        numbers = numpy.empty((len(self), *shape))
        for row, generator in zip(numbers, self.generators()):
            method(generator, out=row)
        return numbers

    def _bits(self, count: int) -> numpy.ndarray:
        """Return the numbers of this call, count of each sample: [n * count] uint32."""
        call, blocks = self._calls % _CALLS, -(-count // 4)
        self._calls += 1

        def counters(numbers):
            rows, block = numpy.divmod(numbers, numpy.uint64(max(blocks, 1)))
            position = self.positions[rows].astype(numpy.uint64)
            return block, numpy.full_like(block, call), position & LOW, position >> 32

        bits = bits_of(counters, 0, len(self) * blocks, self._key)
        return bits.reshape(len(self), 4 * blocks)[:, :count].reshape(-1)


def _whole(words: numpy.ndarray) -> int:
    """Return the number of 128 bits that these four words make."""
    return sum(int(word) << 32 * place for place, word in enumerate(words))
