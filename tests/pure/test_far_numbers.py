"""Variances, norms and scalings of numbers far from 0, very large or very small."""

import numpy
import pytest

from shardkit.nn import RelativeL2Loss, Tensor, grad, ops
from shardkit.testing.data import Moments

RNG = numpy.random.default_rng(0)
LIMIT = 1e-6
OFFSETS = [sign * mean for mean in (0, 1, 30, 1e3, 1e5, 1e6, 1e7) for sign in (1, -1)]
SCALES = [1e-37, 1e-30, 1e-20, 1e-12, 1, 1e12, 1e20, 1e30, 1e37]


def off(values, expected):
    values, expected = numpy.asarray(values, "float64"), numpy.asarray(expected)
    return numpy.abs(values - expected).max() / numpy.abs(expected).max()


def with_gradient(operation, x):
    """Return operation(x) and its gradient, computed twice: by arrays, and as a Tensor."""
    x = Tensor(x, requires_grad=True)
    y = operation(x)
    y.backward(numpy.ones(y.shape, y.dtype))
    return y.array, x.grad


VARIANCES = {
    "var": lambda x: ops.var(x, 0),
    "variance": lambda x: ops.variance(x, 0),
    "std": lambda x: ops.std(x, 0),
    "std of all": lambda x: ops.std(x),
    "var of rows": lambda x: ops.var(ops.permute(x, (1, 0)), 1),
}


@pytest.mark.parametrize("mean", OFFSETS)
@pytest.mark.parametrize("name", VARIANCES)
def test_a_variance_does_not_depend_on_the_mean(name, mean):
    x = (mean + RNG.standard_normal((5000, 3))).astype("float32")
    y, gradient = with_gradient(VARIANCES[name], x)
    wide_y, wide_gradient = with_gradient(VARIANCES[name], x.astype("float64"))
    assert off(y, wide_y) < 3 * LIMIT
    assert off(gradient, wide_gradient) < 2e-5  # the distances are float32


@pytest.mark.parametrize("mean", OFFSETS)
def test_the_variance_of_a_batch_norm_does_not_depend_on_the_mean(mean):
    x = (mean + RNG.standard_normal((2000, 3, 4))).astype("float32")
    one, zero = Tensor(numpy.ones(3, "float32")), Tensor(numpy.zeros(3, "float32"))
    _, _, variance = ops.batch_norm(Tensor(x), weight=one, bias=zero)
    assert off(variance, x.astype("float64").var(axis=(0, 2))) < LIMIT


ROOTS = {
    "norm": lambda x: ops.norm(x, 2, 1),
    "norm of columns": lambda x: ops.norm(x, 2, 0, keepdim=True),
    "norm of all": lambda x: ops.norm(x),
    "std": lambda x: ops.std(x, 1),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ROOTS)
def test_a_root_of_squares_is_right_for_every_size_of_number(name, scale):
    x = (scale * RNG.uniform(-1, 1, (6, 50))).astype("float32")
    y, gradient = with_gradient(ROOTS[name], x)
    wide_y, wide_gradient = with_gradient(ROOTS[name], x.astype("float64"))
    assert off(y, wide_y) < LIMIT and off(gradient, wide_gradient) < LIMIT


def test_rows_of_all_sizes_have_norms_side_by_side():
    scales = numpy.array([*SCALES, 0, 1e-44])[:, None]
    x = (scales * RNG.uniform(0.5, 1, (len(scales), 20))).astype("float32")
    x[-2] = 0
    got = ops.norm(Tensor(x), 2, 1).array.astype("float64")
    wanted = numpy.sqrt((x.astype("float64") ** 2).sum(1))
    wanted[-1] = 0  # denormals
    numpy.testing.assert_allclose(got, wanted, rtol=1e-6, atol=0)


def test_norms_of_ordinary_numbers_have_the_bits_of_the_formula():
    x = RNG.standard_normal((9, 40)).astype("float32")
    plain = numpy.sqrt((x * x).sum(axis=1))
    assert ops.norm(Tensor(x), 2, 1).array.tobytes() == plain.tobytes()
    x[3, 4] = 1e30  # the other rows keep theirs
    others = numpy.arange(9) != 3
    assert ops.norm(Tensor(x), 2, 1).array[others].tobytes() == plain[others].tobytes()


@pytest.mark.parametrize("value", [numpy.inf, -numpy.inf, numpy.nan])
def test_norms_of_what_is_no_number_are_none(value):
    x = numpy.full((2, 3), 1e30, "float32")
    x[0] = [1, value, 1]
    got = ops.norm(Tensor(x), 2, 1).array
    assert not numpy.isfinite(got[0]) and off(got[1], 1e30 * 3**0.5) < LIMIT


def test_the_second_derivative_of_a_norm_is_right_for_large_numbers():
    def second(dtype, scale):
        x = Tensor(numpy.array([3.0, 4.0], dtype) * scale, requires_grad=True)
        (first,) = grad(ops.norm(x), [x], create_graph=True)
        (other,) = grad(ops.sum(first * first.array[::-1].copy()), [x])
        return other.array

    for scale in (1, 2.0**80):
        assert off(second("float32", scale) * scale, second("float64", scale) * scale) < 1e-5


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
def test_a_relative_loss_does_not_depend_on_the_unit(scale):
    y = (scale * RNG.standard_normal((8, 30))).astype("float32")
    loss = RelativeL2Loss()(Tensor(y * numpy.float32(1.5)), y).item()
    assert loss == pytest.approx(0.5, rel=1e-5)


COLUMNS = [
    (mean, deviation) for mean in (0, 0.1, -76000, 1e6, 1.7e9, 1e12) for deviation in (1e-3, 1, 1e4)
]


@pytest.mark.parametrize("mean, deviation", COLUMNS)
@pytest.mark.parametrize("num_parts", [1, 7])
def test_a_scaling_does_not_depend_on_the_mean(mean, deviation, num_parts):
    values = mean + deviation * RNG.standard_normal((700, 2))
    moments = Moments(2)
    for part in numpy.split(values, num_parts):
        moments.add(part)
    scaling = moments.scaling()
    exact = values.astype(numpy.longdouble)
    digits = max(1e-12, 2e-16 * abs(mean) / deviation)  # of the center, which is a float64
    assert off(scaling.scale, exact.std(axis=0)) < digits
    scaled = scaling.apply(values)
    assert abs(scaled.mean(axis=0)).max() < 700 * digits and off(scaled.std(axis=0), [1, 1]) < 1e-6


@pytest.mark.parametrize("constant", [0.0, 0.1, 1.7e9, -1e100])
def test_a_constant_column_is_only_shifted(constant):
    moments = Moments(1)
    for count in (3, 1, 1000):
        moments.add(numpy.full((count, 1), constant))
    assert moments.scaling().scale == [1.0]
