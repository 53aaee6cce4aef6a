"""The half floats that this machine has, and how far off a rounded number may be."""

import numpy
import pytest

try:
    import ml_dtypes  # noqa: F401

    HAS_BFLOAT16 = True
except ImportError:
    HAS_BFLOAT16 = False

HALF_A_LAST_BIT = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}  # relative, of a number that is not tiny
BFLOAT16 = pytest.param(
    "bfloat16", marks=pytest.mark.skipif(not HAS_BFLOAT16, reason="ml_dtypes is not installed")
)
HALVES = ("float16", BFLOAT16)
EVERY_HALF = pytest.mark.parametrize("half", HALVES)


def relative_distance(x, y) -> float:
    """Return |x - y| / |y| in the 2-norm, float64."""
    x, y = (numpy.asarray(array, "float64").ravel() for array in (x, y))
    return float(numpy.linalg.norm(x - y) / numpy.linalg.norm(y))
