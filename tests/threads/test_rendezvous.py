"""Ranks that are threads give back what they brought to a collective before anybody goes on."""

import threading
import time
import weakref

import numpy
import pytest

import shardkit as sk
from shardkit.testing.comm import Environment


class Brought(numpy.ndarray):
    """An array that can be watched by a weak reference."""


def brought():
    array = numpy.zeros(4).view(Brought)
    return array, weakref.ref(array)


@pytest.mark.parametrize("is_collective", [True, False])
def test_a_rank_is_woken_when_nobody_holds_its_array_any_more(is_collective):
    """Else its next array may need new memory, and how much a step takes would depend on timing."""
    group = Environment(2, 10.0).world
    array, reference = brought()
    if is_collective:
        first = group.arrive(0, 1, "all_reduce", array, lambda given: None)
    else:
        first = group.post(0, 1, 0, array, is_send=True)
    del array
    alive_at_the_end, wake = [], first.done.set
    first.done.set = lambda: (alive_at_the_end.append(reference() is not None), wake())
    if is_collective:
        group.arrive(1, 1, "all_reduce", numpy.zeros(4), lambda given: None)
    else:
        group.post(0, 1, 0, numpy.zeros(4), is_send=False)
    assert alive_at_the_end == [False]


@pytest.mark.thorough
def test_a_wait_for_a_rank_that_gets_on_has_no_limit_and_for_one_that_does_not_has_one():
    def on_rank(backend, num_notes):
        if backend.rank == 1:
            for _ in range(num_notes):
                time.sleep(0.2)
                backend.work()
            if num_notes < 10:
                ended.wait(60)
        try:
            backend.barrier()
        finally:
            ended.set()

    ended = threading.Event()
    sk.run_ranks(2, lambda backend: on_rank(backend, 10), timeout=1.0)
    ended.clear()
    with pytest.raises(sk.CommunicationTimeout, match="rank 1 did not come within 1 s"):
        sk.run_ranks(2, lambda backend: on_rank(backend, 3), timeout=1.0)
