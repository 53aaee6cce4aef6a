"""What the host knows of integers in GPU memory, so that nobody waits for the GPU to tell it again.

    ids = device.from_host(tokens)          remembered from now on
    known_values(ids[:4])                   the values of `tokens`: a view has none that its owner
                                            has not
    known_values(made_on_the_gpu)           None: to learn these, the host must wait for all work
                                            before

Token numbers come from the host and are looked up without being changed. Whoever changes integers
in place on the GPU must do so in a copy.
"""

import weakref

import numpy

from .accounts import owner_of

_values: dict[
    int, numpy.ndarray
] = {}  # id of a live GPU array that owns its memory -> its values when it was made


def remember(array, values):
    """The array, of which the host knows all values from now on, for as long as it lives."""
    owner = owner_of(array)
    if id(owner) not in _values:
        weakref.finalize(owner, _values.pop, id(owner), None)
    _values[id(owner)] = values
    return array


def refill(array, values) -> None:
    """Write other values of the same device into an array; of integers on a GPU the host knows what
    it knows of `values`.
    """
    array[...] = values
    if not isinstance(array, numpy.ndarray) and known_values(values) is not None:
        remember(array, known_values(values))


def known_values(array):
    """A NumPy array that holds every value of these integers, and maybe more of the memory that
    they are a view of; or None.

    An array of the host is its own values.
    """
    return array if isinstance(array, numpy.ndarray) else _values.get(id(owner_of(array)))


def arange(start: int, stop: int, xp=numpy):
    """[stop - start] int64: start, start + 1, ... in the memory of xp, known to the host."""
    numbers = xp.arange(start, stop, dtype=numpy.int64)
    return (
        numbers
        if xp is numpy
        else remember(numbers, numpy.array([start, stop - 1][: stop - start]))
    )


def upload(array, xp):
    """A copy of a host array in the memory of xp; integers stay known."""
    there = xp.asarray(array)
    return remember(there, numpy.array(array)) if there.dtype.kind in "iu" else there
