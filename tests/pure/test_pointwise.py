"""Functions of one number in float32: their errors over all exponents, and bits that depend on
content alone.

What is right is computed in float64 by SciPy's or NumPy's functions, which are right to the last
digits of float64. An error is counted in units of the last place (ULP) of the right value; results
below the least normal number may be 0.
"""

import functools
import math

import numpy
import pytest

from shardkit.nn import Tensor, grad, ops
from shardkit.testing.array import CHUNK_ELEMENTS, KERNELS, dtype_named, halves, kernels

special = pytest.importorskip("scipy.special")
LEAST = 1.3e-38  # an exponential below it may be 0


@functools.cache
def all_exponents(count=2000):
    """Return float32 of both signs: `count` of each binade, subnormals and zeros among them."""
    rng = numpy.random.default_rng(0)
    exponents = numpy.arange(255, dtype=numpy.uint32)[:, None] << 23
    fractions = rng.integers(0, 1 << 23, (255, count), dtype=numpy.uint32)
    fractions[:, :2] = 0, (1 << 23) - 1
    sizes = (exponents | fractions).reshape(-1).view("float32")
    dense = numpy.linspace(0, 100, 400_001, dtype="float32")
    sizes = numpy.concatenate([sizes, dense])
    return numpy.concatenate([sizes, -sizes])


def in_dtype(x, dtype):
    return halves.rounded(x.astype("float32"), dtype_named(dtype))


def gelu(x):
    return x * special.ndtr(x)


def gelu_slope(x):
    return special.ndtr(x) + x * numpy.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def mish_ratio(x):
    e = numpy.exp(numpy.minimum(x, 40))
    return e * (e + 2) / (e * (e + 2) + 2), e


def mish(x):
    return x * mish_ratio(x)[0]


def mish_slope(x):
    ratio, e = mish_ratio(x)
    return ratio + numpy.where(x > 40, 0, x * 4 * e * (1 + e) / (e * (e + 2) + 2) ** 2)


def softplus(x):
    return numpy.maximum(x, 0) + numpy.log1p(numpy.exp(-abs(x)))


# {kernel: (its parameters, the right values, ULP at most, what is lost near a zero of the result)}
ERRORS = {
    "erf": ((), special.erf, 1.3, 0.0),
    "tanh": ((), numpy.tanh, 1.5, 0.0),
    "erf_gelu": ((), gelu, 4.5, 0.0),
    "mish": ((), mish, 4.0, 0.0),
    "softplus": ((1.0, 1e9), softplus, 4.0, 0.0),
    "elu": ((1.0,), lambda x: numpy.where(x > 0, x, numpy.expm1(numpy.minimum(x, 0))), 1.1, 0.0),
    "sigmoid": ((), special.expit, 2.5, 0.0),
    "silu": ((), lambda x: x * special.expit(x), 4.0, 0.0),
    "erf_gelu_backward": ((), gelu_slope, 4.0, 1e-7),
    "mish_backward": ((), mish_slope, 4.0, 1e-7),
    "erf_backward": ((), lambda x: 2 / math.sqrt(math.pi) * numpy.exp(-x * x), 3.0, 0.0),
    "sin": ((), numpy.sin, 2.0, 0.0),
    "sin_backward": ((), numpy.cos, 2.0, 0.0),
    "cos": ((), numpy.cos, 2.0, 0.0),
    "cos_backward": ((), lambda x: -numpy.sin(x), 2.0, 0.0),
    "elu_backward": ((1.0,), lambda x: numpy.exp(numpy.minimum(x, 0)), 2.0, 0.0),
    "softplus_backward": ((1.0, 1e9), special.expit, 2.5, 0.0),
}


def computed(name, x):
    parameters = ERRORS[name][0]
    gradient = [numpy.ones_like(x)] if name.endswith("_backward") else []
    return getattr(kernels, name)(*gradient, x, *parameters)


def errors(found, right):
    """Return the error of each value in units of the last place."""
    ulp = numpy.spacing(numpy.maximum(abs(right), LEAST).astype("float32"))
    return abs(found.astype("float64") - right) / ulp


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_over_all_exponents_is_what_is_said(name):
    x = all_exponents()
    _, function, most, lost = ERRORS[name]
    with numpy.errstate(all="ignore"):
        right = function(x.astype("float64"))
    found = computed(name, x)
    assert found.dtype == "float32" and not numpy.isnan(found).any()
    with numpy.errstate(invalid="ignore"):
        apart = abs(found - right)
        units = numpy.where(apart <= LEAST * numpy.maximum(abs(x), 1), 0, errors(found, right))
        wrong = (units > most) & (apart > lost)
    assert not wrong.any(), (x[wrong][:5], x[units.argmax()], units.max())


@pytest.mark.parametrize(
    "name", ["erf", "tanh", "erf_gelu", "mish", "softplus", "elu", "sin", "cos"]
)
def test_infinities_zeros_and_nan_are_those_of_the_definition(name):
    x = numpy.float32([numpy.inf, -numpy.inf, numpy.nan, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45])
    with numpy.errstate(all="ignore"):
        right = KERNELS[name].reference(x, *ERRORS[name][0])
        found = computed(name, x)
    numpy.testing.assert_allclose(found, right, rtol=1e-6, atol=2e-45)
    if name in ("erf", "tanh", "erf_gelu", "sin"):
        is_finite = numpy.isfinite(x)
        assert (numpy.signbit(found) == numpy.signbit(x))[is_finite].all()


ONE_BY_ONE = [
    *ERRORS,
    "abs_backward",
    "relu",
    "relu_backward",
    "sigmoid_backward",
    "sign",
    "tanh_backward",
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_bits_do_not_depend_on_the_place_in_the_array(name, dtype):
    """The last elements of an array, beyond the last whole vector, are computed like all others."""
    rng = numpy.random.default_rng(1)
    count = CHUNK_ELEMENTS + 37
    x, gradient = [in_dtype(rng.standard_normal(count) * 3, dtype) for _ in range(2)]
    given = [gradient, x] if name.endswith("_backward") else [x]
    parameters = ERRORS[name][0] if name in ERRORS else ()
    kernel = getattr(kernels, name)
    whole = kernel(*given, *parameters)
    slices = [(start, start + size) for start in range(17) for size in (1, 2, 7, 31, 64, 100)]
    for start, stop in [*slices, (CHUNK_ELEMENTS - 5, CHUNK_ELEMENTS + 5), (count - 3, count)]:
        part = kernel(*[each[start:stop].copy() for each in given], *parameters)
        assert part.tobytes() == whole[start:stop].tobytes()


@pytest.mark.parametrize("name", ["erf", "erf_gelu", "tanh", "softplus", "mish", "elu"])
def test_bfloat16_is_the_float32_result_rounded_once(name):
    x = in_dtype(all_exponents(20), "bfloat16")
    operation = getattr(ops, name)
    wide = operation(Tensor(halves.widened(x))).array
    assert operation(Tensor(x)).array.tobytes() == in_dtype(wide, "bfloat16").tobytes()


@pytest.mark.parametrize("name", ["erf_gelu", "mish"])
def test_second_derivatives_are_those_of_the_slope(name):
    x = numpy.linspace(-3.05, 3.05, 41)

    def slope(x):
        leaf = Tensor(x, requires_grad=True)
        return leaf, grad(getattr(ops, name)(leaf).sum(), leaf, create_graph=True)[0]

    leaf, first = slope(x)
    second = grad(first.sum(), leaf)[0]
    step = 1e-5
    expected = (slope(x + step)[1].array - slope(x - step)[1].array) / (2 * step)
    numpy.testing.assert_allclose(second.array, expected, rtol=1e-6, atol=1e-8)


def test_three_halves_of_special_numbers_are_the_powers_of_c():
    x = numpy.float32([numpy.inf, -numpy.inf, numpy.nan, 0.0, -0.0, -2.0, 4.0])
    with numpy.errstate(invalid="ignore"):
        numpy.testing.assert_array_equal(kernels.three_halves(x), x**1.5)
