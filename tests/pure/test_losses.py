"""Losses and activations by PyTorch's names: its values, its gradients, and refusals by name.

float64 to 1e-10. Sums and counts of the parts of a batch are those of the whole.
"""

import numpy
import pytest
from torch_or_skip import torch

from shardkit import AutogradError, ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, Weighted, no_grad, ops

RNG = numpy.random.default_rng(0)
NUMBERS = RNG.standard_normal((5, 3))
NUMBERS[0] = 0.25
SHARES = RNG.random((5, 3))
SHARES[1, 1] = 0
CLASSES = numpy.array([2, 0, -100, 1, 2])
FIELD = RNG.integers(0, 3, (2, 4, 5))
CLASS_WEIGHTS = numpy.array([0.5, 2.0, 1.25])
SIGNS = numpy.array([1, -1, -1, 1, -1])


def both(array, **more):
    """Return the array as PyTorch's."""
    return torch.tensor(array, **more)


# Name: (loss, arguments, shapes of the prediction's parts, targets).
TABLE = {
    "L1Loss": ("L1Loss", {}, [(5, 3)], NUMBERS),
    "L1Loss empty": ("L1Loss", {}, [(0, 3)], NUMBERS[:0]),
    "MSELoss": ("MSELoss", {}, [(5, 3)], NUMBERS),
    "MSELoss of one": ("MSELoss", {}, [(1, 1)], NUMBERS[:1, :1]),
    "HuberLoss": ("HuberLoss", {"delta": 0.4}, [(5, 3)], NUMBERS),
    "SmoothL1Loss": ("SmoothL1Loss", {"beta": 0.7}, [(5, 3)], NUMBERS),
    "SmoothL1Loss 0": ("SmoothL1Loss", {"beta": 0.0}, [(5, 3)], NUMBERS),
    "BCEWithLogitsLoss": ("BCEWithLogitsLoss", {}, [(5, 3)], SHARES),
    "BCEWithLogitsLoss weighted": (
        "BCEWithLogitsLoss",
        {"pos_weight": CLASS_WEIGHTS},
        [(5, 3)],
        SHARES,
    ),
    "KLDivLoss": ("KLDivLoss", {}, [(5, 3)], SHARES),
    "KLDivLoss batchmean": ("KLDivLoss", {"reduction": "batchmean"}, [(5, 3)], SHARES),
    "KLDivLoss log": ("KLDivLoss", {"log_target": True}, [(5, 3)], -SHARES),
    "GaussianNLLLoss": ("GaussianNLLLoss", {}, [(5, 3), (5, 3)], NUMBERS),
    "GaussianNLLLoss full": (
        "GaussianNLLLoss",
        {"full": True, "eps": 0.3},
        [(5, 3), (5, 1)],
        NUMBERS,
    ),
    "CosineEmbeddingLoss": ("CosineEmbeddingLoss", {"margin": -0.2}, [(5, 3), (5, 3)], SIGNS),
    "PoissonNLLLoss": ("PoissonNLLLoss", {"full": True}, [(5, 3)], SHARES * 9),
    "PoissonNLLLoss of means": (
        "PoissonNLLLoss",
        {"log_input": False, "eps": 9.0},
        [(5, 3)],
        SHARES * 9,
    ),
    "NLLLoss": ("NLLLoss", {"weight": CLASS_WEIGHTS}, [(5, 3)], CLASSES),
    "NLLLoss field": ("NLLLoss", {"ignore_index": 1}, [(2, 3, 4, 5)], FIELD),
    "CrossEntropyLoss": ("CrossEntropyLoss", {}, [(5, 3)], CLASSES),
    "CrossEntropyLoss field": ("CrossEntropyLoss", {}, [(2, 3, 4, 5)], FIELD),
    "CrossEntropyLoss weighted": (
        "CrossEntropyLoss",
        {"weight": CLASS_WEIGHTS, "label_smoothing": 0.2, "ignore_index": 0},
        [(2, 3, 4, 5)],
        FIELD,
    ),
    "CrossEntropyLoss smoothed": ("CrossEntropyLoss", {"label_smoothing": 0.1}, [(5, 3)], CLASSES),
}


def made(name):
    """The loss, PyTorch's, the parts of the prediction, and the targets."""
    kind, arguments, shapes, y = TABLE[name]
    rng = numpy.random.default_rng(len(name))
    parts = [rng.standard_normal(shape) for shape in shapes]
    if kind == "GaussianNLLLoss":
        parts[1] = abs(parts[1])
    twins = {k: both(v) if isinstance(v, numpy.ndarray) else v for k, v in arguments.items()}
    return getattr(nn, kind)(**arguments), getattr(torch.nn, kind)(**twins), parts, y


@pytest.mark.parametrize("name", TABLE)
def test_a_loss_and_its_gradients_are_those_of_pytorch(name):
    loss, twin, parts, y = made(name)
    tensors = [Tensor(part, requires_grad=True) for part in parts]
    twins = [both(part, requires_grad=True) for part in parts]
    arguments, theirs = list(tensors), list(twins)
    place = 1 if "Gaussian" in name else len(parts)
    arguments.insert(place, y)
    theirs.insert(place, both(y))
    found, expected = loss(*arguments), twin(*theirs)
    if y.size:  # PyTorch: NaN over nothing
        numpy.testing.assert_allclose(found.item(), expected.item(), rtol=1e-10)
    found.backward()
    expected.backward()
    for tensor, other in zip(tensors, twins):
        numpy.testing.assert_allclose(tensor.grad, other.grad.numpy(), rtol=1e-10, atol=1e-12)
    if len(parts) == 1:
        assert loss(Tensor(parts[0].astype("float16")), y).dtype == "float32"


@pytest.mark.parametrize("name", TABLE)
def test_sums_and_counts_of_parts_are_those_of_the_whole_and_weights_count_rows(name):
    loss, _, parts, y = made(name)
    if len(y) < 2:
        return

    def total(rows, weights=None):
        cut = [Tensor(part[rows]) for part in parts]
        prediction = tuple(cut) if len(cut) > 1 else cut[0]
        if weights is None:
            return loss.total(prediction, y[rows]).item()
        return loss.weighted_total(prediction, y[rows], weights[rows]).item()

    rows = [slice(0, 1), slice(1, None)]
    each = [total(slice(i, i + 1)) for i in range(len(y))]
    weights = numpy.arange(len(y)) + 0.5
    numpy.testing.assert_allclose(sum(map(total, rows)), total(slice(None)), rtol=1e-12)
    assert sum(loss.count(y[part]) for part in rows) == loss.count(y)
    numpy.testing.assert_allclose(total(slice(None), weights), each @ weights, rtol=1e-12)
    loss.check_targets(y, parts[0].shape if len(parts) == 1 else None)


def test_a_weight_of_each_sample_stands_in_the_last_column_of_numbers_and_beside_a_class():
    columns = numpy.concatenate([NUMBERS, SHARES[:, :1]], 1)
    loss = Weighted(nn.L1Loss(), has_row_weights=True)
    found = loss.total(Tensor(NUMBERS * 0), columns).item()
    numpy.testing.assert_allclose(found, (abs(NUMBERS) * SHARES[:, :1]).sum())
    classes = numpy.stack([abs(CLASSES) % 3, SHARES[:, 0]], 1)
    loss = Weighted(nn.CrossEntropyLoss(), has_row_weights=True)
    found = loss.total(Tensor(NUMBERS * 0), classes).item()
    numpy.testing.assert_allclose(found, SHARES[:, 0].sum() * numpy.log(3))


REFUSED = {
    "reduction": (lambda: nn.L1Loss(reduction="sum"), ConfigurationError, "L1Loss with reduction"),
    "delta": (lambda: nn.HuberLoss(delta=0), ConfigurationError, "HuberLoss with delta"),
    "smoothing": (
        lambda: nn.CrossEntropyLoss(label_smoothing=2),
        ConfigurationError,
        "from 0 to 1",
    ),
    "inplace": (lambda: nn.ReLU(inplace=True), ConfigurationError, "ReLU with inplace"),
    "gelu": (lambda: nn.GELU("sigmoid"), ConfigurationError, "GELU with approximate"),
    "shapes": (lambda: nn.L1Loss()(Tensor(NUMBERS), NUMBERS[:, :1]), ShapeError, "hides mistakes"),
    "one part": (lambda: nn.GaussianNLLLoss()(Tensor(NUMBERS), NUMBERS), ShapeError, "variance"),
    "pairs": (
        lambda: nn.CosineEmbeddingLoss()(Tensor(NUMBERS), Tensor(NUMBERS), SIGNS[:3]),
        ShapeError,
        "twice and",
    ),
    "signs": (
        lambda: nn.CosineEmbeddingLoss().check_targets(CLASSES, None),
        ShapeError,
        "1 or -1",
    ),
    "classes": (
        lambda: nn.CrossEntropyLoss().check_targets(CLASSES + 1, (5, 3)),
        ShapeError,
        "wanted 0 <= target < 3",
    ),
    "class weights": (
        lambda: nn.NLLLoss([1.0, 2.0])(Tensor(NUMBERS), CLASSES),
        ShapeError,
        "of 3 classes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_loss_or_a_layer_cannot_do_is_refused_by_name(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


LAYERS = {
    "ReLU": {},
    "GELU": {},
    "GELU tanh": {"approximate": "tanh"},
    "SiLU": {},
    "Mish": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softplus": {"beta": 2.0, "threshold": 1.0},
    "ELU": {"alpha": 0.5},
    "LeakyReLU": {"negative_slope": 0.2},
    "Hardtanh": {"min_val": -0.5, "max_val": 0.4},
    "Softmax": {"dim": 1},
    "LogSoftmax": {"dim": -1},
    "Identity": {},
    "Flatten": {},
    "Flatten some": {"start_dim": 0, "end_dim": 1},
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_activation_layer_is_that_of_pytorch(name):
    kind, arguments = name.split()[0], LAYERS[name]
    x = numpy.random.default_rng(3).standard_normal((2, 5, 3))
    layer, twin = getattr(nn, kind)(**arguments), getattr(torch.nn, kind)(**arguments)
    tensor, other = Tensor(x, requires_grad=True), both(x, requires_grad=True)
    found, expected = layer(tensor), twin(other)
    numpy.testing.assert_allclose(found.array, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
    sent = numpy.random.default_rng(4).standard_normal(found.shape)
    ops.multiply(found, sent).sum().backward()
    (expected * both(sent)).sum().backward()
    numpy.testing.assert_allclose(tensor.grad, other.grad.numpy(), rtol=1e-10, atol=1e-12)
    assert not layer.parameters() and layer(Tensor(x[:0])).shape[0] == 0


LOST = {  # arguments that no gradient is known of
    "targets of classes": lambda t: nn.BinaryCrossEntropy()(Tensor(NUMBERS[:, :1]), t[:, 0]),
    "KLDivLoss": lambda t: nn.KLDivLoss()(Tensor(NUMBERS), t),
    "RelativeL2Loss": lambda t: nn.RelativeL2Loss()(Tensor(NUMBERS), t),
    "PinballLoss": lambda t: nn.PinballLoss([0.1, 0.5, 0.9])(Tensor(NUMBERS), t[:, :1]),
    "pos_weight": lambda t: nn.BCEWithLogitsLoss(pos_weight=t[0]),
    "class weights": lambda t: nn.CrossEntropyLoss(weight=t[0]),
    "weights of samples": lambda t: nn.L1Loss().weighted_total(Tensor(NUMBERS), SHARES, t[:, 0]),
    "weights of squares": lambda t: ops.mse(Tensor(NUMBERS), SHARES, "sum", t[:, 0]),
    "weights of classes": lambda t: ops.cross_entropy(
        Tensor(NUMBERS), abs(CLASSES) % 3, weights=t[:, 0]
    ),
    "scale": lambda t: ops.causal_attention(*[Tensor(NUMBERS[None, None])] * 3, t[0, 0]),
    "value": lambda t: ops.pad(Tensor(NUMBERS), (1, 1), value=t[0, 0]),
}


@pytest.mark.parametrize("argument", LOST)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_gradient_that_would_be_lost_is_refused(argument, is_leaf):
    given = Tensor(SHARES + 0.1, requires_grad=True)
    given = given if is_leaf else given * 2
    with pytest.raises(AutogradError, match="wants a gradient, and gets none here"):
        LOST[argument](given)
    LOST[argument](given.detach())
    with no_grad():
        LOST[argument](given)


def test_the_loss_of_probabilities_is_that_of_pytorch_at_0_and_1_too():
    p = RNG.random((5, 3))
    p[0] = [0, 1, 0.5]
    ours, theirs = Tensor(p, requires_grad=True), both(p, requires_grad=True)
    found, expected = nn.BCELoss()(ours, SHARES), torch.nn.BCELoss()(theirs, both(SHARES))
    numpy.testing.assert_allclose(found.item(), expected.item(), rtol=1e-10)
    found.backward()
    expected.backward()
    inside = (p > 0) & (p < 1)  # PyTorch has a gradient of 1e12 at the ends
    numpy.testing.assert_allclose(ours.grad[inside], theirs.grad.numpy()[inside], rtol=1e-10)
    with pytest.raises(ShapeError, match="sigmoid"):
        nn.BCELoss()(Tensor(p + 1), SHARES)


def test_quantiles_cost_what_their_definition_says():
    """The least is at the quantiles of the targets themselves."""
    levels, y = numpy.array([0.1, 0.5, 0.9]), NUMBERS[:, :1]
    loss, ours, theirs = nn.PinballLoss(levels), Tensor(NUMBERS, requires_grad=True), both(NUMBERS)
    theirs.requires_grad_()
    above = both(y) - theirs
    expected = torch.maximum(both(levels) * above, (both(levels) - 1) * above).mean()
    found = loss(ours, y)
    numpy.testing.assert_allclose(found.item(), expected.item(), rtol=1e-10)
    found.backward()
    expected.backward()
    inside = NUMBERS != y  # at the corner any slope between is one
    numpy.testing.assert_allclose(ours.grad[inside], theirs.grad.numpy()[inside], rtol=1e-10)
    weights = numpy.arange(5.0)
    rows = [loss.total(Tensor(NUMBERS[i : i + 1]), y[i : i + 1]).item() for i in range(5)]
    weighted = loss.weighted_total(Tensor(NUMBERS), y, weights).item()
    numpy.testing.assert_allclose(weighted, numpy.dot(rows, weights), rtol=1e-12)
    assert loss.count(y) == 5 and loss(Tensor(NUMBERS.astype("float16")), y).dtype == "float32"
    many = RNG.standard_normal((999, 1))
    best = [numpy.quantile(many, levels), numpy.quantile(many, levels + 0.02)]
    least, more = (loss(Tensor(numpy.tile(each, (999, 1))), many).item() for each in best)
    assert least < more
    with pytest.raises(ShapeError, match=r"wanted \[samples, 1\] for \[samples, 3\]"):
        loss.check_targets(y, (5, 2))
    with pytest.raises(ConfigurationError, match="PinballLoss"):
        nn.PinballLoss([0.5, 1.0])


@pytest.mark.parametrize("form", [{}, {"margin": 0.3, "p": 3.0}, {"swap": True}], ids=str)
def test_triplets_cost_what_they_cost_in_pytorch(form):
    parts = [RNG.standard_normal((6, 4)) for _ in range(3)]
    ours = [Tensor(part, requires_grad=True) for part in parts]
    theirs = [both(part, requires_grad=True) for part in parts]
    loss = nn.TripletMarginLoss(**form)
    found, expected = loss(*ours), torch.nn.TripletMarginLoss(**form)(*theirs)
    numpy.testing.assert_allclose(found.item(), expected.item(), rtol=1e-10)
    found.backward()
    expected.backward()
    for mine, other in zip(ours, theirs):
        numpy.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-9, atol=1e-12)
    assert loss(tuple(ours), numpy.zeros(6)).item() == found.item() and loss.count(parts[0]) == 6


TEXTS = numpy.array([[1, 2, 2, 3], [3, 1, 0, 0], [2, 2, 2, 2], [1, 0, 0, 0]])
LENGTHS = numpy.array([4, 2, 4, 0])
STEPS = numpy.array([7, 5, 7, 3])


@pytest.mark.parametrize("blank", [0, 4])
def test_texts_spelled_over_time_cost_what_they_cost_in_pytorch(blank):
    logits = RNG.standard_normal((7, 4, 5))
    ours, theirs = Tensor(logits, requires_grad=True), both(logits, requires_grad=True)
    found = nn.CTCLoss(blank)(ops.log_softmax(ours, -1), TEXTS, STEPS, LENGTHS)
    twin = torch.nn.CTCLoss(blank)
    expected = twin(theirs.log_softmax(-1), both(TEXTS), both(STEPS), both(LENGTHS))
    numpy.testing.assert_allclose(found.item(), expected.item(), rtol=1e-10)
    found.backward()
    expected.backward()
    numpy.testing.assert_allclose(ours.grad, theirs.grad.numpy(), rtol=1e-9, atol=1e-12)
    one_by_one = numpy.concatenate([row[:count] for row, count in zip(TEXTS, LENGTHS)])
    again = nn.CTCLoss(blank)(ops.log_softmax(Tensor(logits), -1), one_by_one, STEPS, LENGTHS)
    assert again.item() == found.item()
    by_sample = ops.log_softmax(Tensor(logits.transpose(1, 0, 2)), -1)
    y = TEXTS, STEPS, LENGTHS
    numpy.testing.assert_allclose(nn.CTCLoss(blank)(by_sample, y).item(), found.item(), rtol=1e-12)


def test_a_text_that_does_not_fit_is_infinite_or_costs_nothing():
    logits = Tensor(RNG.standard_normal((3, 4, 5)), requires_grad=True)
    steps = numpy.full(4, 3)
    assert nn.CTCLoss()(ops.log_softmax(logits, -1), TEXTS, steps, LENGTHS).item() == numpy.inf
    loss = nn.CTCLoss(zero_infinity=True)(ops.log_softmax(logits, -1), TEXTS, steps, LENGTHS)
    loss.backward()
    assert numpy.isfinite(loss.item()) and numpy.isfinite(logits.grad).all()
    with pytest.raises(ShapeError, match="wanted"):
        nn.CTCLoss()(logits, TEXTS, steps + 1, LENGTHS)
    with pytest.raises(ShapeError, match="ids"):
        nn.CTCLoss()(logits, TEXTS + 2, steps, LENGTHS)


def test_no_letters_in_no_steps_are_certain():
    logits = RNG.standard_normal((3, 2, 5))
    given = numpy.array([[1], [1]]), numpy.array([0, 0]), numpy.array([0, 1])
    ours, theirs = Tensor(logits, requires_grad=True), both(logits)
    found = ops.ctc_loss(ours, *given)
    expected = torch.nn.functional.ctc_loss(theirs, *map(both, given), reduction="none")
    assert found.detach().numpy().tolist() == expected.tolist() == [0.0, numpy.inf]
    found.sum().backward()
    assert not ours.grad.any()


@pytest.mark.parametrize(
    "targets, steps, lengths, blank",
    [
        (TEXTS, STEPS - 4, LENGTHS, 0),
        (TEXTS, STEPS, LENGTHS - 1, 0),
        (TEXTS, STEPS + 0.5, LENGTHS, 0),
        (TEXTS[0], STEPS, LENGTHS, 0),
        (numpy.ones(11, int), STEPS, LENGTHS, 0),
        (TEXTS, STEPS, LENGTHS, 5),
        (TEXTS, STEPS, LENGTHS, -1),
    ],
)
def test_lengths_letters_and_blanks_that_mean_nothing_are_refused(targets, steps, lengths, blank):
    with pytest.raises(ShapeError, match="wanted"):
        ops.ctc_loss(numpy.zeros((7, 4, 5)), targets, steps, lengths, blank)
