"""Ranks that are threads give back what they brought to a collective before anybody goes on."""

import weakref

import numpy
import pytest

from shardkit.comm.threads.rendezvous import Environment


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
