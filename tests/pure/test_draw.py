"""A draw: numbers of a sample follow from key and position, in whatever company it is read."""

import numpy
import pytest

import shardkit as sk
from shardkit.testing.data import Draw

POSITIONS = numpy.array([0, 7, 3, (1 << 40) + 1, 1 << 40, 1 << 62])
KINDS = {
    "uniform": lambda draw: draw.uniform(),
    "uniform of a row": lambda draw: draw.uniform(3),
    "many uniform": lambda draw: draw.uniform(9, 8),
    "normal": lambda draw: draw.normal(5),
    "many normal": lambda draw: draw.normal(2, 40),
    "nothing": lambda draw: draw.uniform(0, 3),
    "integers": lambda draw: draw.integers(10**6, 2),
    "generators": lambda draw: numpy.array([each.random(3) for each in draw.generators()]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_gets_the_same_numbers_in_any_company(kind):
    made, whole = KINDS[kind], Draw(5, POSITIONS)
    calls = [made(whole), made(whole)]
    assert all(len(call) == len(POSITIONS) for call in calls)
    for rows in ([3], [4, 0], [5, 2, 1]):
        part, inside = Draw(5, POSITIONS[rows]), Draw(5, POSITIONS).of(numpy.array(rows))
        for call in calls:
            wanted = call[rows]
            assert (made(part) == wanted).all() and (made(inside) == wanted).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nothing"])
def test_other_samples_calls_names_and_keys_get_other_numbers(kind):
    made, draw = KINDS[kind], Draw(5, POSITIONS)
    named = draw.named("a")
    found = [made(draw), made(draw), made(named), made(draw.named("b")), made(Draw(6, POSITIONS))]
    rows = {row.tobytes() for each in found for row in each.reshape(len(POSITIONS), -1)}
    assert len(rows) == 5 * len(POSITIONS)


@pytest.mark.parametrize("shape", [(30,), (300,)])
def test_numbers_are_spread_as_they_say(shape):
    draw = Draw(1, numpy.arange(3000))
    size = 3000 * shape[0]
    uniform, normal, which = draw.uniform(*shape), draw.normal(*shape), draw.integers(7, *shape)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / size) ** 0.5
    assert abs(normal.mean()) < 5 * size**-0.5 and abs(normal.var() - 1) < 5 * (2 / size) ** 0.5
    expected = size / 7
    counts = numpy.bincount(which.ravel())
    assert len(counts) == 7 and abs(counts - expected).max() < 5 * expected**0.5
    for near in (normal[:-1], normal[1:]), (normal[:, :-1], normal[:, 1:]), (uniform, normal):
        assert abs(numpy.corrcoef(*map(numpy.ravel, near))[0, 1]) < 6 * size**-0.5


@pytest.mark.parametrize("high", [0, -1, 2.5])
def test_integers_without_a_bound_are_refused(high):
    with pytest.raises(sk.ConfigurationError, match="wanted an integer, at least 1"):
        Draw(1, POSITIONS).integers(high)
