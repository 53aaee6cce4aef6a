"""A mixture has its sources in the shares that were asked for, each sample at least once."""

import numpy
import pytest

from shardkit import ConfigurationError, Samples
from shardkit.testing.data import Mixture


class Constant(Samples):
    """Sample n of source s is (s, n)."""

    def __init__(self, source, num):
        self.source, self.num = source, num

    def __len__(self):
        return self.num

    def read(self, numbers):
        assert numbers.min() >= 0 and numbers.max() < self.num
        return numpy.stack([numpy.full_like(numbers, self.source), numbers], 1), numbers

    def fingerprint(self):
        return f"{self.source}-{self.num}"


@pytest.mark.parametrize(
    "sizes, weights, counts",
    [
        ((300, 25), (3, 1), [300, 100]),
        ((300, 25), (0.75, 0.25), [300, 100]),
        ((10, 10), (1, 1), [10, 10]),
        ((1, 7, 3), (1, 1, 2), [7, 7, 14]),
        ((5,), (0.3,), [5]),
    ],
)
def test_an_epoch_has_the_shares_and_each_sample_as_often_as_any_other(sizes, weights, counts):
    mixture = Mixture([Constant(s, n) for s, n in enumerate(sizes)], weights)
    assert mixture.counts() == counts and len(mixture) == sum(counts)
    x, y = mixture.read(numpy.random.default_rng(0).permutation(len(mixture)))
    assert numpy.array_equal(x[:, 1], y)
    for source, (size, count) in enumerate(zip(sizes, counts)):
        times = numpy.bincount(x[x[:, 0] == source, 1], minlength=size)
        assert times.min() == count // size and times.max() == -(-count // size)


def test_samples_come_in_the_order_of_their_numbers():
    mixture = Mixture([Constant(0, 4), Constant(1, 2)], (1, 1))
    x, _ = mixture.read(numpy.array([6, 0, 7, 3, 5]))
    assert x.tolist() == [[1, 0], [0, 0], [1, 1], [0, 3], [1, 1]]


def test_weights_are_part_of_the_fingerprint_and_may_not_be_too_far_apart():
    sources = [Constant(0, 4), Constant(1, 2)]
    assert Mixture(sources, (1, 1)).fingerprint() != Mixture(sources, (1, 2)).fingerprint()
    with pytest.raises(ConfigurationError, match="an epoch of 4.0e"):
        Mixture(sources, (1e-20, 1))
