"""Layers and losses against PyTorch with the same weights; dropout is a function of the sample."""

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ConfigurationError, ShapeError, ShardingError
from shardkit.nn import (
    BinaryCrossEntropy,
    CrossEntropy,
    Dropout,
    Embedding,
    ForwardContext,
    LayerNorm,
    Linear,
    MeanSquaredError,
    Module,
    RMSNorm,
    Sequential,
    Tensor,
    Weighted,
    as_loss,
    forward_context,
    ops,
)

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def random(*shape, seed=0):
    return numpy.random.default_rng(seed).normal(size=shape)


def randomize(module):
    """Every weight random, so that no initial 0 or 1 hides a mistake."""
    for index, parameter in enumerate(module.finish().parameters()):
        parameter.array = random(*parameter.shape, seed=index)
    return module


def assert_same_as_torch(ours, theirs, x, dtype):
    """Equal forward; equal gradients of x and of all parameters, which have the same order in
    both.
    """
    randomize(ours)
    theirs = theirs.to(getattr(torch, dtype))
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(torch.from_numpy(mine.array))
    x_ours = Tensor(x.astype(dtype), requires_grad=True)
    x_theirs = torch.tensor(x.astype(dtype), requires_grad=True)
    y_ours, y_theirs = ours(x_ours), theirs(x_theirs)
    weight = random(*y_ours.shape, seed=99).astype(dtype)  # some gradient of the output
    y_ours.backward(weight)
    y_theirs.backward(torch.from_numpy(weight))
    pairs = [(y_ours.array, y_theirs.detach()), (x_ours.grad, x_theirs.grad)]
    pairs += [
        (mine.grad, other.grad) for mine, other in zip(ours.parameters(), theirs.parameters())
    ]
    for mine, other in pairs:
        assert mine.dtype == dtype
        numpy.testing.assert_allclose(
            mine, other.numpy(), rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype]
        )


LAYERS = {
    "linear": (lambda d: Linear(5, 7, dtype=d), lambda: torch.nn.Linear(5, 7)),
    "linear without bias": (
        lambda d: Linear(5, 7, bias=False, dtype=d),
        lambda: torch.nn.Linear(5, 7, bias=False),
    ),
    "layer norm": (lambda d: LayerNorm(5, dtype=d), lambda: torch.nn.LayerNorm(5)),
    "rms norm": (lambda d: RMSNorm(5, dtype=d), lambda: torch.nn.RMSNorm(5, eps=1e-6)),
    "sequential": (
        lambda d: Sequential(Linear(5, 3, dtype=d), LayerNorm(3, dtype=d)),
        lambda: torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)),
    ),
}


@dtypes
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("leading", [(4,), (2, 3)], ids=str)
def test_a_layer_and_its_gradients_equal_those_of_torch(name, leading, dtype):
    ours, theirs = LAYERS[name]
    assert_same_as_torch(ours(dtype), theirs(), random(*leading, 5), dtype)


@dtypes
def test_an_embedding_and_its_gradient_equal_those_of_torch(dtype):
    ids = numpy.array([[0, 3, 3], [1, 0, 3]])
    layer = randomize(Embedding(5, 4, dtype=dtype))
    theirs = torch.tensor(layer.weight.array, requires_grad=True)
    y = torch.nn.functional.embedding(torch.tensor(ids), theirs)
    gradient = random(2, 3, 4).astype(dtype)
    ours = layer(ids)
    ours.backward(gradient)
    y.backward(torch.tensor(gradient))
    assert numpy.array_equal(ours.array, y.detach().numpy())
    numpy.testing.assert_allclose(layer.weight.grad, theirs.grad.numpy(), rtol=TOLERANCE[dtype])


def test_initial_norms_do_nothing_but_normalize_and_initial_biases_are_zero():
    norm = LayerNorm(4).finish()
    assert (norm.weight.array == 1).all() and (norm.bias.array == 0).all()
    assert (RMSNorm(4).finish().weight.array == 1).all() and (
        Linear(4, 2).finish().bias.array == 0
    ).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(0, 3),
        lambda: Linear(3, -1),
        lambda: Embedding(2.5, 3),
        lambda: LayerNorm(0),
        lambda: RMSNorm(True),
        lambda: Dropout(1.0),
        lambda: Dropout(-0.1),
    ],
)
def test_sizes_and_probabilities_that_mean_nothing_are_refused(make):
    with pytest.raises(ConfigurationError, match="wanted"):
        make()


# ---- dropout -------------------------------------------------------------------------------------


class TwoDropouts(Module):
    def __init__(self, p=0.5):
        self.first, self.second = Dropout(p), Dropout(p)


def dropped(layer, x, **context):
    with forward_context(ForwardContext(**{"training": True, "seed": 1, "step": 2, **context})):
        return layer(Tensor(x)).array


ONES = numpy.ones((8, 16), "float32")


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8])
def test_the_dropout_of_a_sample_is_the_same_however_the_batch_is_cut(num_parts):
    layer, size = TwoDropouts().finish().first, 8 // num_parts
    parts = [
        dropped(layer, ONES[start : start + size], first_sample=start)
        for start in range(0, 8, size)
    ]
    assert numpy.array_equal(numpy.concatenate(parts), dropped(layer, ONES))


def test_dropout_depends_on_seed_step_path_and_sample():
    layers = TwoDropouts().finish()
    masks = [
        dropped(layers.first, ONES),
        dropped(layers.second, ONES),
        dropped(layers.first, ONES, seed=5),
        dropped(layers.first, ONES, step=5),
        dropped(layers.first, ONES, first_sample=5),
    ]
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    assert numpy.array_equal(dropped(layers.first, ONES), masks[0])


def test_dropout_keeps_the_mean_and_scales_what_it_keeps():
    y = dropped(TwoDropouts(0.25).finish().first, numpy.ones((100, 100)))
    assert set(numpy.unique(y)) == {0, 4 / 3} and y.mean() == pytest.approx(1, abs=0.03)


def test_dropout_outside_training_is_the_identity():
    x = Tensor(ONES)
    assert Dropout(0.5)(x) is x and dropped(Dropout(0.0), ONES) is ONES


def test_dropout_without_a_path_asks_for_finish():
    with pytest.raises(ShardingError, match="call finish"):
        dropped(Dropout(0.5).forward, ONES)


# ---- losses --------------------------------------------------------------------------------------


def test_cross_entropy_equals_that_of_torch_with_ignored_targets():
    logits, y = random(2, 3, 5), numpy.array([[1, -1, 4], [0, 2, -1]])
    theirs = torch.nn.functional.cross_entropy(
        torch.tensor(logits).reshape(6, 5), torch.tensor(y).reshape(6), ignore_index=-1
    )
    loss = CrossEntropy(ignore_index=-1)
    assert loss.count(y) == 4
    assert loss(Tensor(logits), y).item() == pytest.approx(theirs.item(), rel=1e-12)


def test_a_target_of_minus_100_does_not_count_as_in_torch():
    logits, y = random(6, 5), numpy.array([1, -100, 4, 0, -100, 2])
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(theirs, torch.tensor(y))
    expected.backward()
    ours = Tensor(logits, requires_grad=True)
    loss = CrossEntropy()(ours, y)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    numpy.testing.assert_allclose(ours.grad, theirs.grad.numpy(), rtol=1e-12)
    assert not ours.grad[[1, 4]].any()


def test_mean_squared_error_equals_that_of_torch_and_counts_elements():
    prediction, y = random(4, 2), random(4, 2, seed=1)
    theirs = torch.nn.functional.mse_loss(torch.tensor(prediction), torch.tensor(y))
    assert MeanSquaredError().count(y) == 8
    assert MeanSquaredError()(Tensor(prediction), y).item() == pytest.approx(
        theirs.item(), rel=1e-12
    )


def test_a_float32_prediction_gives_a_float32_loss_whatever_y_is():
    prediction = Tensor(random(4, 2).astype("float32"), requires_grad=True)
    loss = MeanSquaredError().total(prediction, numpy.ones((4, 2), "int64"))
    loss.backward()
    assert loss.dtype == prediction.grad.dtype == numpy.float32


@pytest.mark.parametrize(
    "loss, prediction, y",
    [
        (CrossEntropy(ignore_index=0), random(6, 5), numpy.array([0, 1, 2, 0, 0, 4])),
        (MeanSquaredError(), random(6, 2), random(6, 2, seed=1)),
        (as_loss(lambda p, y: ops.mean(ops.power(p - y, 2.0))), random(6, 2), random(6, 2, seed=1)),
        (BinaryCrossEntropy(), random(6, 1), numpy.array([0, 1, 1, 0, 0, 1])),
        (
            Weighted(CrossEntropy(), class_weights=[1, 2, 3, 4, 5]),
            random(6, 5),
            numpy.array([0, 1, 2, 0, 0, 4]),
        ),
        (Weighted(MeanSquaredError(), has_row_weights=True), random(6, 2), random(6, 3, seed=1)),
    ],
    ids=["cross entropy", "mse", "function", "binary", "class weights", "row weights"],
)
def test_totals_over_counts_of_the_parts_give_the_loss_of_the_whole(loss, prediction, y):
    cuts = [slice(0, 1), slice(1, 4), slice(4, 6)]
    total = sum(loss.total(Tensor(prediction[c]), y[c]).item() for c in cuts)
    assert total / sum(loss.count(y[c]) for c in cuts) == pytest.approx(
        loss(Tensor(prediction), y).item(), rel=1e-12
    )


def test_a_weight_counts_a_sample_so_many_times():
    classes = numpy.array([0, 1, 1, 0])
    row_weights = numpy.array([2, 1, 0, 3])
    both = numpy.stack([classes, row_weights], 1)
    for loss, prediction in ((CrossEntropy(), random(4, 2)), (BinaryCrossEntropy(), random(4, 1))):
        weighted = Weighted(loss, class_weights=[1, 2], has_row_weights=True)
        times = row_weights * (1 + classes)
        repeated = loss.total(Tensor(prediction.repeat(times, 0)), classes.repeat(times))
        assert weighted.total(Tensor(prediction), both).item() == pytest.approx(repeated.item())
        assert weighted.count(both) == 4
        weighted.check_targets(both, prediction.shape)
        with pytest.raises(ShapeError, match="in the last column"):
            weighted.check_targets(classes, prediction.shape)


def test_a_class_that_is_neither_of_two_and_a_loss_without_weights_are_refused():
    with pytest.raises(ShapeError, match="a target is 2; wanted 0 or 1"):
        BinaryCrossEntropy().check_targets(numpy.array([0, 2]), (2, 1))
    for function in (lambda p, y: p, as_loss(lambda p, y: p)):
        with pytest.raises(ConfigurationError, match="the loss of Weighted = .*no items apart"):
            Weighted(function)
    for weights in (3, "ab", [[1, 2]], [1, None], [1, float("nan")], [-1]):
        with pytest.raises(ConfigurationError, match="a number for each class"):
            Weighted(CrossEntropy(), class_weights=weights)


def test_a_loss_of_nothing_is_zero_and_not_nan():
    assert CrossEntropy(ignore_index=0)(Tensor(random(2, 3)), numpy.zeros(2, int)).item() == 0


def test_a_loss_passes_through_as_loss_and_nonsense_does_not():
    loss = CrossEntropy()
    assert as_loss(loss) is loss
    with pytest.raises(ConfigurationError, match="the loss is None"):
        as_loss(None)


def test_a_target_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match="wanted equal shapes"):
        MeanSquaredError()(Tensor(random(4, 1)), random(4))
