"""Philox against its published answers; every slice is the slice of the whole; the distributions
are what they say.
"""

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit import ShapeError
from shardkit.testing.array import random

# From kat_vectors of Random123 (philox4x32, 10 rounds): counter, key, answer.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
spans = st.tuples(st.integers(0, 70000), st.integers(0, 200)).map(lambda s: (s[0], s[0] + s[1]))
keys = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("counter, key, answer", KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, answer):
    counters = [numpy.array([number], numpy.uint64) for number in counter]
    assert tuple(int(lane[0]) for lane in random.philox(counters, key[0] | key[1] << 32)) == answer


def test_bits_are_philox_of_consecutive_counters():
    assert random.random_bits(0, 0, 4).tolist() == list(KNOWN_ANSWERS[0][2])
    block = 2**33 + 5  # needs the second counter word
    lanes = random.philox([numpy.array([n], numpy.uint64) for n in (5, 2, 0, 0)], 77)
    assert random.random_bits(77, 4 * block, 4 * block + 4).tolist() == [
        int(lane[0]) for lane in lanes
    ]


@pytest.mark.parametrize("draw", [random.random_bits, random.uniform, random.normal])
def test_any_slice_equals_the_slice_of_the_whole(draw):
    whole = draw(5, 0, 70300)

    @settings(max_examples=60, deadline=None)
    @given(spans)
    def check(span):
        assert numpy.array_equal(draw(5, *span), whole[slice(*span)])

    check()


@settings(max_examples=30, deadline=None)
@given(keys, st.integers(0, 2**50), st.integers(0, 9), st.integers(0, 9))
def test_two_neighboring_slices_equal_one(key, start, left, right):
    middle, stop = start + left, start + left + right
    parts = [random.normal(key, start, middle), random.normal(key, middle, stop)]
    assert numpy.array_equal(numpy.concatenate(parts), random.normal(key, start, stop))


def test_dtypes_and_empty_slices():
    assert (
        random.random_bits(1, 3, 3).shape == (0,)
        and random.random_bits(1, 0, 1).dtype == numpy.uint32
    )
    assert random.uniform(1, 0, 2).dtype == random.normal(1, 7, 7).dtype == numpy.float64


class OnDevice(numpy.ndarray):
    """An array that takes no array of the host beside it, as CuPy's."""

    def __array_ufunc__(self, ufunc, method, *inputs, **rest):
        assert not any(type(each) is numpy.ndarray for each in inputs)
        plain = (numpy.asarray(each) if isinstance(each, OnDevice) else each for each in inputs)
        return getattr(ufunc, method)(*plain, **rest).view(OnDevice)


def test_uniform_numbers_are_made_where_their_bits_are():
    bits = random.random_bits(4, 0, 20).reshape(-1, 2)
    found = random.uniform_of(bits.view(OnDevice))
    assert numpy.array_equal(numpy.asarray(found), random.uniform(4, 0, 10))


def test_uniform_lies_in_zero_one_and_is_flat():
    u = random.uniform(random.key_of(3, "flat"), 0, 200_000)
    assert u.min() >= 0 and u.max() < 1
    counts = numpy.histogram(u, 20, (0, 1))[0]
    chi_square = (
        (counts - 10_000) ** 2 / 10_000
    ).sum()  # 19 degrees of freedom: mean 19, deviation 6.2
    assert chi_square < 19 + 4 * 6.2
    assert abs(numpy.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / math.sqrt(u.size)


def test_normal_has_the_moments_and_tails_of_a_standard_normal():
    z = random.normal(random.key_of(3, "bell"), 0, 200_000)
    error = 1 / math.sqrt(z.size)
    assert abs(z.mean()) < 4 * error
    assert abs((z**2).mean() - 1) < 4 * math.sqrt(2) * error
    assert abs((z**3).mean()) < 4 * math.sqrt(15) * error
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96) * error
    assert abs((abs(z) > 2).mean() - 0.0455) < 4 * math.sqrt(0.0455) * error
    assert abs(numpy.corrcoef(z[::2], z[1::2])[0, 1]) < 8 * error  # the two of one pair


def test_keys_are_stable_for_ever():
    assert random.key_of(0, "dropout", "blocks.3", 17) == 0x2DA5E356469EF46C
    assert random.key_of() == 0xB4B2797457A0A6E4


def test_keys_differ_when_parts_differ():
    parts = [
        (),
        (1,),
        ("1",),
        (1, 2),
        (12,),
        (2, 1),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (-1,),
        ("",),
        ("", ""),
    ]
    assert len({random.key_of(*p) for p in parts}) == len(parts)
    assert random.key_of(numpy.int64(5)) == random.key_of(5)


@pytest.mark.parametrize("part", [1.0, None, True, b"x"])
def test_a_key_of_anything_but_integers_and_strings_is_refused(part):
    with pytest.raises(TypeError, match="integers and strings"):
        random.key_of(part)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.normal(1, 5, 4),
        lambda: random.random_bits(1, -1, 4),
    ],
)
def test_impossible_spans_and_bounds_are_refused(draw):
    with pytest.raises(ShapeError, match="wanted"):
        draw()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_a_permutation_has_each_number_once_and_follows_from_its_key(count):
    order = random.permutation(5, count)
    assert sorted(order.tolist()) == list(range(count))
    bits = random.random_bits(5, 0, count)
    assert (numpy.diff(bits[order].astype(numpy.int64)) >= 0).all()
    if count == 1000:
        assert (order != random.permutation(6, count)).any()
