"""Batches are a pure function of the step, read ahead by a thread that ends."""

import threading
import time

import numpy
import pytest

from shardkit import ConfigurationError, Samples
from shardkit.testing.base import CorpusError
from shardkit.testing.data import Stream


class Numbers(Samples):
    """Sample n is n and its square."""

    def __init__(self, num, *, broken=(), seconds=0.0):
        self.num, self.broken, self.seconds, self.reads = num, broken, seconds, 0

    def __len__(self):
        return self.num

    def read(self, numbers):
        self.reads += 1
        time.sleep(self.seconds)
        if numpy.isin(self.broken, numbers).any():
            raise CorpusError("sample 3 is no number")
        return numbers.copy(), numbers**2

    def fingerprint(self):
        return f"{self.num:x}"


def stream(samples, *, global_batch=4, first=0, count=4):
    return Stream(samples, 0, "batch", global_batch=global_batch, first=first, count=count)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("num_samples", [1, 5, 12, 25])
def test_all_ranks_together_read_each_sample_once_in_each_of_three_epochs(num_samples, num_ranks):
    part = 12 // num_ranks
    steps = -(-3 * num_samples // 12)
    streams = [
        stream(Numbers(num_samples), global_batch=12, first=rank * part, count=part)
        for rank in range(num_ranks)
    ]
    batches = [[s.batch(step)[0] for s in streams] for step in range(steps)]
    for s in streams:
        s.close()
    visited = numpy.concatenate([part for batch in batches for part in batch])
    for epoch in visited[: 3 * num_samples].reshape(3, num_samples):
        assert numpy.array_equal(numpy.sort(epoch), numpy.arange(num_samples))
    with stream(Numbers(num_samples), global_batch=12, count=12) as alone:
        assert numpy.array_equal(numpy.concatenate(batches[0]), alone.batch(0)[0])


def test_a_step_has_the_same_batch_whatever_was_read_before():
    with stream(Numbers(7)) as first, stream(Numbers(7)) as second:
        batches = [first.batch(step) for step in range(9)]
        for step in (8, 3, 3, 4):
            x, y = second.batch(step)
            assert numpy.array_equal(x, batches[step][0]) and numpy.array_equal(y, x**2)


class Gated(Numbers):
    """A read waits until the gate is open."""

    def __init__(self, num):
        super().__init__(num)
        self.gate = threading.Event()
        self.read_twice = threading.Event()

    def read(self, numbers):
        self.gate.wait(500)
        read = super().read(numbers)
        if self.reads == 2:
            self.read_twice.set()
        return read


def test_one_batch_is_read_while_the_caller_works_and_no_more():
    samples = Gated(100)
    with stream(samples) as ahead:
        opens = threading.Timer(0.5, samples.gate.set)
        opens.start()
        ahead.batch(0)
        opens.join()
        assert samples.read_twice.wait(500), "the next one is read though nobody asks for it"
        waited = ahead.waited_seconds
        ahead.batch(1)
        assert waited > 0.1 and ahead.waited_seconds - waited < waited
    samples = Numbers(100)
    with stream(samples) as ahead:
        ahead.batch(0)
        time.sleep(0.05)
        assert samples.reads <= 2


def test_an_error_of_the_thread_is_raised_by_the_step_that_it_belongs_to():
    with stream(Numbers(4, broken=[3])) as broken:
        with pytest.raises(CorpusError, match="sample 3"):
            broken.batch(0)
    with stream(Numbers(400, broken=[3])) as later:
        with pytest.raises(CorpusError, match="sample 3"):
            for step in range(100):
                last = later.batch(step)
        assert last is not None


class Fewer(Numbers):
    def read(self, numbers):
        x, y = super().read(numbers)
        return x[1:], y[1:]


def test_a_read_of_fewer_samples_than_numbers_is_refused():
    with stream(Fewer(40)) as batches, pytest.raises(ConfigurationError, match="wanted 4, as many"):
        batches.batch(0)


def test_close_waits_for_a_read_under_way_and_may_be_called_again():
    samples = Numbers(10, seconds=0.02)
    slow = stream(samples)
    slow.batch(0)
    slow.close()
    slow.close()
    assert samples.reads <= 2
