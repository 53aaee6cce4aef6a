"""Targets that do not count: one meaning in every loss, its weights and its counts, and in metrics.

The definition: whatever has a target of ignore_index is as if it were not there. Targets are
[samples], [samples, S] and [samples, S, S], the classes last or in dim 1.
"""

import numpy
import pytest

from shardkit import ShapeError, nn
from shardkit.nn import BinaryCrossEntropy, CrossEntropy, Tensor, Weighted
from shardkit.testing.nn import Accuracy, MacroF1

CLASSES = 4
WEIGHTS = [0.5, 2.0, 1.25, 3.0]
LOSSES = {
    "CrossEntropy": lambda ignored: CrossEntropy(ignored),
    "CrossEntropy of weighted classes": lambda ignored: Weighted(
        CrossEntropy(ignored), class_weights=WEIGHTS
    ),
    "CrossEntropyLoss": lambda ignored: nn.CrossEntropyLoss(ignore_index=ignored),
    "CrossEntropyLoss weight": lambda ignored: nn.CrossEntropyLoss(WEIGHTS, ignored),
    "CrossEntropyLoss smooth": lambda ignored: nn.CrossEntropyLoss(
        WEIGHTS, ignored, label_smoothing=0.3
    ),
    "CrossEntropyLoss of weighted classes": lambda ignored: Weighted(
        nn.CrossEntropyLoss(ignore_index=ignored), class_weights=WEIGHTS
    ),
    "NLLLoss": lambda ignored: nn.NLLLoss(WEIGHTS, ignored),
}
METRICS = {
    "accuracy": lambda **more: Accuracy(**more),
    "macro F1": lambda **more: MacroF1(CLASSES, **more),
}
SHAPES = [(6,), (3, 5), (2, 3, 3)]


def batch(shape, ignored, seed=0):
    """Return logits [..., classes], targets, and which of them count."""
    generator = numpy.random.default_rng(seed)
    y = generator.integers(0, CLASSES, shape)
    counts = generator.random(shape) < 0.6
    y[~counts] = ignored
    counts = y != ignored
    logits = generator.standard_normal((*shape, CLASSES))
    return logits, y, counts


def has_classes_last(name):
    return name.startswith("CrossEntropy ") or name == "CrossEntropy"


def arranged(logits, name):
    return logits if has_classes_last(name) else numpy.moveaxis(logits, -1, 1)


@pytest.mark.parametrize("ignored", [-100, -1, 0, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_of_what_counts(name, shape, ignored):
    loss = LOSSES[name](ignored)
    logits, y, counts = batch(shape, ignored)
    x = Tensor(arranged(logits, name), requires_grad=True)
    rows = Tensor(logits[counts], requires_grad=True)
    loss.check_targets(y, x.shape)
    totals = [loss.total(x, y), loss.total(rows, y[counts])]
    numpy.testing.assert_allclose(totals[0].item(), totals[1].item(), rtol=1e-12)
    assert loss.count(y) == pytest.approx(loss.count(y[counts]), rel=1e-15)
    for total in totals:
        total.backward()
    gradient = x.grad if has_classes_last(name) else numpy.moveaxis(x.grad, 1, -1)
    numpy.testing.assert_allclose(gradient[counts], rows.grad, rtol=1e-12)
    assert not gradient[~counts].any()


@pytest.mark.parametrize("weighs_items", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in LOSSES if "of weighted" not in name])
def test_weights_are_of_samples_or_of_items(name, shape, weighs_items):
    loss = LOSSES[name](-100)
    logits, y, counts = batch(shape, -100)
    weights = numpy.random.default_rng(1).random(shape if weighs_items else shape[:1])
    by_item = weights.reshape(*weights.shape, *[1] * (len(shape) - weights.ndim))
    by_item = numpy.broadcast_to(by_item, shape)
    total = loss.weighted_total(Tensor(arranged(logits, name)), y, weights)
    items = [
        loss.total(Tensor(row[None]), target[None]).item() * weight
        for row, target, weight in zip(logits[counts], y[counts], by_item[counts])
    ]
    numpy.testing.assert_allclose(total.item(), sum(items), rtol=1e-12)


@pytest.mark.parametrize("targets", [1, 3])
def test_weights_of_rows_stand_behind_all_targets(targets):
    logits, y, _ = batch((5, targets), -100)
    weights = numpy.random.default_rng(2).random(5)
    loss = Weighted(CrossEntropy(), class_weights=WEIGHTS, has_row_weights=True)
    shown = logits[:, 0] if targets == 1 else logits
    wide = numpy.column_stack([y, weights])
    total = loss.total(Tensor(shown), wide)
    parts = [
        Weighted(CrossEntropy(), class_weights=WEIGHTS).total(Tensor(row), target).item() * weight
        for row, target, weight in zip(logits, y, weights)
    ]
    numpy.testing.assert_allclose(total.item(), sum(parts), rtol=1e-12)
    assert loss.count(wide) == (y != -100).sum()


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_one_of_two_classes_is_left_out_too(weights):
    generator = numpy.random.default_rng(0)
    logits, y = generator.standard_normal((8, 1)), generator.integers(0, 2, 8)
    y[[1, 5]] = -100
    counts = y != -100
    loss = BinaryCrossEntropy()
    loss = loss if weights is None else Weighted(loss, class_weights=weights)
    loss.check_targets(y, logits.shape)
    x, rows = Tensor(logits, requires_grad=True), Tensor(logits[counts], requires_grad=True)
    for total in (loss(x, y), loss(rows, y[counts])):
        total.backward()
    assert loss(x, y).item() == pytest.approx(loss(rows, y[counts]).item(), rel=1e-15)
    assert (x.grad[counts] == rows.grad).all() and not x.grad[~counts].any()
    accuracy = Accuracy()
    assert accuracy.value(accuracy.sums(logits, y)) == ((logits[:, 0] > 0) == y)[counts].mean()


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "CrossEntropyLoss smooth", "NLLLoss"])
def test_a_prediction_without_hope_is_left_out_like_any_other(name):
    loss = LOSSES[name](-100)
    x = Tensor(numpy.log(numpy.array([[0.5, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]])))
    x.array[0, 0] = -numpy.inf  # class 0, whose number stands in for what is left out
    y = numpy.array([-100, 1])
    assert loss(x, y).item() == pytest.approx(loss(Tensor(x.array[1:]), y[1:]).item(), rel=1e-12)


@pytest.mark.parametrize("ignored", [-100, -1, 0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_that_of_what_counts(name, dim, shape, ignored):
    logits, y, counts = batch(shape, ignored)
    metric = METRICS[name](ignore_index=ignored, dim=dim)
    whole = metric.value(metric.sums(numpy.moveaxis(logits, -1, dim), y))
    assert whole == metric.value(metric.sums(logits[counts], y[counts]))
    if shape != (2, 3, 3):
        free = METRICS[name](ignore_index=ignored)
        assert whole == free.value(free.sums(numpy.moveaxis(logits, -1, dim), y))


def test_figures_without_targets_are_nan():
    for metric in (Accuracy(), MacroF1(3)):
        assert numpy.isnan(metric.value(metric.sums(numpy.eye(3), numpy.full(3, -100))))


def test_a_metric_refuses_what_means_nothing():
    logits = numpy.zeros((3, 4, 4))
    with pytest.raises(ShapeError, match="dim = 1"):
        Accuracy().sums(logits, numpy.zeros((3, 4), int))
    with pytest.raises(ShapeError, match="wanted"):
        Accuracy().sums(logits, numpy.zeros((3, 5), int))
    with pytest.raises(ShapeError, match="ignore_index = -1"):
        Accuracy().sums(numpy.zeros((2, 3)), numpy.array([0, -1]))
    with pytest.raises(ShapeError, match="number 3"):
        MacroF1(3).sums(numpy.eye(4), numpy.arange(4))


@pytest.mark.parametrize("name", ["NLLLoss", "CrossEntropyLoss", "CrossEntropy"])
@pytest.mark.parametrize("wrong", [-1, CLASSES])
def test_a_class_that_does_not_exist_is_refused_by_hand_too(name, wrong):
    with pytest.raises(ShapeError):
        LOSSES[name](-100)(Tensor(numpy.zeros((2, CLASSES))), numpy.array([0, wrong]))
