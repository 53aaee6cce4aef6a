"""Each epoch visits each sample exactly once, in an order that needs no memory."""

import tracemalloc
from collections import Counter
from hashlib import sha256

import numpy
import pytest

from shardkit import ConfigurationError
from shardkit.testing.array import key_of
from shardkit.testing.data import ByPosition, EpochOrder, decipher, encipher

SIZES = [*range(1, 40), 101, 1000, 4099]


@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_a_permutation_takes_each_number_once_and_back(key):
    for size in SIZES:
        positions, keys = numpy.arange(size, dtype=numpy.uint64), numpy.array([key], numpy.uint64)
        numbers = encipher(positions, size, keys)
        assert numpy.array_equal(numpy.sort(numbers), positions)
        assert numpy.array_equal(decipher(numbers, size, keys), positions)


@pytest.mark.thorough
def test_all_orders_of_four_samples_are_about_equally_frequent():
    orders = Counter(tuple(EpochOrder(4, seed, "x").numbers(0, 4)) for seed in range(1200))
    assert len(orders) == 24
    assert sum((n - 50) ** 2 / 50 for n in orders.values()) < 60  # chi squared, 23 degrees


@pytest.mark.parametrize("run_length", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("num_samples", [1, 2, 3, 7, 24, 25, 101])
def test_three_epochs_visit_each_sample_three_times_though_read_in_parts(num_samples, run_length):
    order = EpochOrder(num_samples, 3, "batch", run_length)
    whole = order.numbers(0, 3 * num_samples)
    for epoch in whole.reshape(3, num_samples):
        assert numpy.array_equal(numpy.sort(epoch), numpy.arange(num_samples))
    parts = [order.numbers(i, min(5, len(whole) - i)) for i in range(0, len(whole), 5)]
    assert numpy.array_equal(numpy.concatenate(parts), whole)


def test_epochs_seeds_and_purposes_have_orders_of_their_own():
    def order(seed=0, purpose="batch", epoch=0):
        return tuple(EpochOrder(50, seed, purpose).numbers(50 * epoch, 50))

    orders = [order(), order(seed=1), order(purpose="validation"), order(epoch=1)]
    assert len(set(orders)) == 4 and order() == order()


def test_samples_lie_anywhere_in_an_epoch():
    found = [EpochOrder(1000, seed, "x").numbers(0, 1000) for seed in range(40)]
    places = numpy.mean([numpy.argsort(numbers) for numbers in found], axis=0)
    assert abs(numpy.corrcoef(places, numpy.arange(1000))[0, 1]) < 0.15
    assert all(abs(numpy.corrcoef(n, numpy.arange(1000))[0, 1]) < 0.15 for n in found)


def test_runs_stay_together_and_are_mixed_with_few_others():
    order = EpochOrder(1003, 0, "x", run_length=10)
    numbers = order.numbers(0, 1003)
    places = [numpy.flatnonzero(numbers // 10 == run) for run in range(101)]
    assert max(p.max() - p.min() for p in places) < 40
    assert sum(p.max() - p.min() > 15 for p in places) > 80  # mixed, though
    firsts = numpy.array([p.min() for p in places])
    assert abs(numpy.corrcoef(firsts, numpy.arange(101))[0, 1]) < 0.3


@pytest.mark.parametrize("run_length", [1, 1000])
def test_many_samples_cost_no_more_than_few(run_length):
    """By memory: an order that is kept anywhere has 10^10 numbers, or their runs."""
    tracemalloc.start()
    order = EpochOrder(10**10, 0, "x", run_length)
    numbers = order.numbers(3 * 10**10 - 500, 1000)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 1 << 20
    assert len(set(numbers[:500])) == len(set(numbers[500:])) == 500
    assert numbers.min() >= 0 and 10**9 < numbers.max() < 10**10


def test_no_samples_are_refused():
    with pytest.raises(ConfigurationError, match="number of samples = 0; wanted"):
        EpochOrder(0, 0, "x")


@pytest.mark.parametrize(
    "num_samples, run_length",
    [
        (512, 1),
        (1000, 1),
        (4099, 1),
        (2048, 128),
        (2049, 128),
        (5000, 300),
        (130, 129),
        (513, 513),
        (8191, 512),
        (10**12, 700),
    ],
)
def test_tables_give_the_numbers_of_the_definition(num_samples, run_length):
    fast = EpochOrder(num_samples, 5, "batch", run_length)
    plain = ByPosition(num_samples, fast.run_length, key(5))
    size = min(num_samples, 9000)
    for first in (0, 3, size - 5, 2 * num_samples - 7, 7 * num_samples + 1):
        wanted = plain.numbers(first, size)
        assert numpy.array_equal(fast.numbers(first, size), wanted)
        parts = [fast.numbers(first + i, min(37, size - i)) for i in range(0, size, 37)]
        assert numpy.array_equal(numpy.concatenate(parts), wanted)


def key(seed):
    return numpy.array([key_of(seed, "order", "batch")], numpy.uint64)


def test_the_order_is_the_one_that_stored_runs_go_on_with():
    def digest(*order):
        return sha256(EpochOrder(*order).numbers(10**6 - 3, 2000).tobytes()).hexdigest()[:12]

    assert digest(10**6, 0, "batch") == "fd7605a23680"
    assert digest(10**6 + 1, 1, "batch", 1000) == "1d2c46c069ad"
    assert digest(99, 2, "validation", 3) == "fc88350328be"
