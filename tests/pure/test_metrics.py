"""Metrics against their definitions, for any division of the rows."""

import math
from fractions import Fraction

import numpy
import pytest

from shardkit.testing.nn import MAE, R2, RMSE, Accuracy, Coverage, MacroF1, exact_lanes, exact_value

ROWS = 301
GENERATOR = numpy.random.default_rng(3)
TARGETS = GENERATOR.normal(5, 2, (ROWS, 2))
PREDICTED = TARGETS + GENERATOR.normal(0, 0.5, (ROWS, 2))
LOGITS = GENERATOR.normal(size=(ROWS, 4))
CLASSES = GENERATOR.integers(0, 3, ROWS)  # class 3 is predicted and never right


def f1(predicted, present, number):
    hits = ((predicted == number) & (present == number)).sum()
    precision = hits / max((predicted == number).sum(), 1)
    recall = hits / max((present == number).sum(), 1)
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def r2(prediction, y):
    return numpy.mean(1 - ((prediction - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0))


TABLE = {
    "RMSE": (RMSE(), PREDICTED, TARGETS, lambda p, y: numpy.sqrt(numpy.mean((p - y) ** 2))),
    "MAE": (MAE(), PREDICTED, TARGETS, lambda p, y: numpy.mean(numpy.abs(p - y))),
    "R2": (R2(), PREDICTED, TARGETS, r2),
    "coverage": (
        Coverage(),
        numpy.sort(LOGITS, 1),
        TARGETS[:, :1],
        lambda p, y: numpy.mean((p.min(1) <= y[:, 0]) & (y[:, 0] <= p.max(1))),
    ),
    "accuracy": (Accuracy(), LOGITS, CLASSES, lambda p, y: numpy.mean(p.argmax(1) == y)),
    "accuracy of two": (
        Accuracy(),
        LOGITS[:, :1],
        CLASSES > 0,
        lambda p, y: numpy.mean((p[:, 0] > 0) == y),
    ),
    "macro F1": (
        MacroF1(5),
        LOGITS,
        CLASSES,
        lambda p, y: numpy.mean([f1(p.argmax(1), y, number) for number in range(4)]),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_metric_is_its_definition_and_the_same_bits_for_any_division(case):
    metric, prediction, y, definition = TABLE[case]
    whole = metric.value(metric.sums(prediction, y))
    assert whole == pytest.approx(definition(prediction, y), rel=1e-12)
    for cuts in ([100], [1, 2, 250], [7 * n for n in range(1, 43)]):
        parts = zip(numpy.split(prediction, cuts), numpy.split(y, cuts))
        sums = [metric.sums(*part) for part in parts]
        assert metric.value(sum(sums)) == metric.value(sum(sums[::-1])) == whole


def test_lanes_hold_an_exact_sum():
    numbers = GENERATOR.normal(size=500) * 10.0 ** GENERATOR.integers(-30, 30, 500)
    exact = float(sum(map(Fraction, numbers)))
    assert exact_value(sum(exact_lanes(part) for part in numpy.split(numbers, 10))) == exact
    assert exact_value(exact_lanes([1e80, 1.0, -1e80])) == 1.0
    assert exact_value(exact_lanes([])) == 0.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e301])
def test_what_no_lane_holds_makes_the_figure_nan(wrong):
    assert math.isnan(exact_value(exact_lanes([1.0, wrong])))


def test_figures_of_nothing_or_of_constant_targets_are_nan():
    assert math.isnan(RMSE().value(RMSE().sums(numpy.ones((0, 1)), numpy.ones((0, 1)))))
    assert math.isnan(R2().value(R2().sums(numpy.ones((3, 1)), numpy.ones((3, 1)))))


def test_predictions_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="wanted one shape"):
        RMSE().sums(numpy.ones((3, 1)), numpy.ones(3))


OFFSETS = [
    (mean, deviation, columns)
    for mean in (0, 0.1, 273.15, -76000, 101325, 1e6, 1e8, 1.7e9, 4e12, -1e15)
    for deviation in (1e-2, 0.1, 1, 1e3)
    for columns in (1, 3)
    if deviation > 1e-15 * abs(mean)
]


def exact_r2(prediction, y):
    """The definition in fractions; the errors are float64, as predictions are."""
    shares = []
    for errors, column in zip(((prediction - y) ** 2).T, y.T):
        numbers = [Fraction(number) for number in column]
        mean = sum(numbers) / len(numbers)
        deviation = sum((number - mean) ** 2 for number in numbers)
        shares.append(1 - sum(map(Fraction, errors)) / deviation)
    return float(sum(shares) / len(shares))


@pytest.mark.parametrize("mean, deviation, columns", OFFSETS)
def test_r2_is_exact_wherever_the_mean_of_the_targets_is(mean, deviation, columns):
    y = mean + deviation * GENERATOR.standard_normal((60, columns))
    prediction = y + 0.3 * deviation * GENERATOR.standard_normal(y.shape)
    expected = exact_r2(prediction, y)
    cuts = sorted(GENERATOR.integers(0, 60, 4))
    parts = zip(numpy.split(prediction, cuts), numpy.split(y, cuts))
    sums = [R2().sums(*part) for part in parts]
    values = {R2().value(sum(sums)), R2().value(R2().sums(prediction, y))}
    assert len(values) == 1 and values.pop() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("constant", [0.0, 0.1, -76000.01, 1e9 + 0.1, 1e-30])
def test_r2_of_targets_that_are_all_one_number_is_nan(constant):
    y = numpy.full((100, 1), constant)
    assert math.isnan(R2().value(R2().sums(y + 0.01, y)))
    y[50] = numpy.nextafter(constant, 2) if constant else 1e-60  # about the smallest deviation
    assert not math.isnan(R2().value(R2().sums(y, y)))


@pytest.mark.parametrize("scale", [1e-38, 1e38])
def test_r2_of_the_smallest_and_the_largest_float32_is_defined(scale):
    y = (scale * GENERATOR.uniform(-1, 1, (50, 1))).astype("float32").astype("float64")
    assert R2().value(R2().sums(y, y)) == 1
    assert R2().value(R2().sums(y * 1.25, y)) == pytest.approx(exact_r2(y * 1.25, y), rel=1e-14)


@pytest.mark.parametrize("case", TABLE)
def test_no_rows_add_nothing(case):
    metric, prediction, y, _ = TABLE[case]
    assert not metric.sums(prediction[:0], y[:0]).any()
