"""Logits that are made when they are read, and cross-entropy of those that nobody read, by blocks
of rows: against the whole logits in float64.
"""

from contextlib import nullcontext

import numpy
import pytest

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Parameter, backward_inputs, no_grad, ops
from shardkit.nn.ops import linear
from shardkit.testing.array import LIBRARIES, dtype_named, numpys_own, products, widened
from shardkit.testing.nn import MANY_CLASSES, ROWS_OF_BLOCK, LateLogits, goes_by_blocks, late_logits

ROWS, WIDTH, CLASSES = 2 * ROWS_OF_BLOCK + 77, 6, MANY_CLASSES + 3  # the last block is shorter
# of float32: sums of 4,000 and of 1,000 terms; of bfloat16: 8 bits, and sums of what was rounded
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "bfloat16": 2e-2}


def operands(dtype="float64", needs=(True, True), rows=ROWS):
    """Return x [1, rows, width] and weight; in float64 the values that the dtype has."""
    rng = numpy.random.default_rng(0)
    kind = dtype_named(dtype, numpy)
    arrays = rng.standard_normal((1, rows, WIDTH)), rng.standard_normal((CLASSES, WIDTH))
    return [
        nn.Tensor(array.astype("float32").astype(kind), requires_grad=need)
        for array, need in zip(arrays, needs)
    ]


def drawn(rows=ROWS):
    return numpy.random.default_rng(1).integers(0, CLASSES, (1, rows))


def loss_of(x, weight, y, is_late=True, **options):
    with late_logits() if is_late else nullcontext():
        return ops.cross_entropy(linear(x, weight), y, **options)


def exactly(x, weight, y, **options):
    """Return the loss and both gradients of whole logits in float64."""
    x, weight = [
        nn.Tensor(widened(t.array).astype("float64"), requires_grad=True) for t in (x, weight)
    ]
    loss = loss_of(x, weight, y, is_late=False, **options)
    loss.backward()
    return loss.item(), x.grad, weight.grad


def check_close(found, wanted, dtype):
    scale = abs(wanted).max()
    numpy.testing.assert_allclose(
        widened(found), wanted, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=dtype
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("ignored", [None, -100])
@pytest.mark.thorough(but=2)
def test_loss_and_gradients_by_blocks_are_those_of_whole_logits(dtype, reduction, ignored):
    (x, weight), y = operands(dtype), drawn()
    y[0, ::5] = y[0, 0] if ignored is None else ignored
    options = {"ignore_index": ignored, "reduction": reduction}
    loss = loss_of(x, weight, y, **options)
    loss.backward(numpy.asarray(3.0, loss.dtype))
    wanted, for_x, for_weight = exactly(x, weight, y, **options)
    assert loss.item() == pytest.approx(wanted, rel=TOLERANCE[dtype])
    check_close(x.grad, 3 * for_x, dtype)
    check_close(weight.grad, 3 * for_weight, dtype)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_only_what_takes_a_gradient_gets_one(needs):
    (x, weight), y = operands(needs=needs), drawn()
    loss_of(x, weight, y).backward()
    _, *wanted = exactly(x, weight, y)
    for tensor, right, need in zip((x, weight), wanted, needs):
        assert need or tensor.grad is None
        if need:
            check_close(tensor.grad, right, "float64")


def test_without_a_tape_only_the_loss_is_made():
    x, weight = operands()
    with no_grad():
        loss = loss_of(x, weight, drawn())
    assert loss.is_leaf and loss.item() == pytest.approx(exactly(x, weight, drawn())[0], rel=1e-13)


def test_weight_gradients_of_a_split_backward_come_later():
    x, y = operands()[0], drawn()
    weight = Parameter((CLASSES, WIDTH), nn.init.Normal(1.0), "float64")
    weight.array = operands()[1].array
    later = backward_inputs(loss_of(x, weight, y))
    assert weight.grad is None
    check_close(x.grad, exactly(x, weight, y)[1], "float64")
    later.run()
    check_close(weight.grad, exactly(x, weight, y)[2], "float64")


def test_a_tape_that_is_kept_gives_the_gradients_again():
    (x, weight), y = operands(), drawn()
    loss = loss_of(x, weight, y)
    loss.backward(retain_graph=True)
    once = x.grad.copy(), weight.grad.copy()
    loss.backward()
    assert (x.grad == 2 * once[0]).all() and (weight.grad == 2 * once[1]).all()


def test_whoever_reads_late_logits_gets_them():
    x, weight = operands()
    with late_logits():
        logits = linear(x, weight)
        assert isinstance(logits, LateLogits) and logits.is_unread
        assert logits.shape == (1, ROWS, CLASSES) and logits.dtype == x.dtype
        assert logits.requires_grad and logits.is_unread
        plain = linear(*operands())
        assert (logits.array == plain.array).all() and not logits.is_unread
        ops.square(logits).sum().backward()
    assert x.grad.shape == x.shape and (x.grad == _square_gradient(*operands())).all()


def _square_gradient(x, weight):
    ops.square(linear(x, weight)).sum().backward()
    return x.grad


@pytest.mark.parametrize("rows", [3, 2 * WIDTH - 1])
def test_few_rows_are_made_as_a_whole(rows):
    (x, weight), y = operands(rows=rows), drawn(rows)
    with late_logits():
        assert not goes_by_blocks(linear(x, weight))
    loss_of(x, weight, y).backward()
    check_close(weight.grad, exactly(x, weight, y)[2], "float64")


def test_weights_of_rows_and_few_classes_go_without_blocks():
    (x, weight), y = operands(), drawn()
    factors = numpy.linspace(0, 2, ROWS)
    wanted = loss_of(x, weight, y, is_late=False, weights=factors)
    assert loss_of(x, weight, y, weights=factors).item() == wanted.item()
    with late_logits():
        assert type(linear(x, nn.Tensor(weight.array[:-7]))) is nn.Tensor
    assert type(linear(x, weight)) is nn.Tensor, "nothing is late outside"


def test_targets_that_do_not_fit_are_refused_without_logits():
    x, weight = operands()
    with pytest.raises(ShapeError, match="wanted logits"):
        loss_of(x, weight, drawn(rows=5))
    with pytest.raises(ShapeError):
        loss_of(x, weight, drawn() + CLASSES)


# ---- products that are added ---------------------------------------------------------------------


def libraries():
    """Return what adds products here: each library, and an array in between."""
    found = {"numpy": None}
    for name in LIBRARIES:
        try:
            found[name] = LIBRARIES[name]()
        except ConfigurationError:
            continue
    return found


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(5, 7, 3), (64, 33, 130), (1, 4, 4), (4, 0, 3)])
def test_a_product_is_added_to_what_is_there(name, dtype, shape, monkeypatch):
    if name not in libraries():
        pytest.skip(f"{name} is not there")
    m, k, n = shape
    rng, kind = numpy.random.default_rng(0), dtype_named(dtype, numpy)
    a, b = [rng.standard_normal(s).astype("float32").astype(kind) for s in ((k, m), (k, n))]
    before = rng.standard_normal((m, n)).astype("float64" if dtype == "float64" else "float32")
    wanted = before + widened(a).T.astype("float64") @ widened(b)
    for own in (numpys_own, lambda: None):
        monkeypatch.setattr(products, "numpys_own", own)
        out = before.copy()
        with products.multiplied_by(libraries()[name]):
            products.add_product(a.T, b, out)
        numpy.testing.assert_allclose(out, wanted, rtol=0, atol=max(k, 1) * 5e-6)


def test_an_added_product_is_counted_as_a_product():
    seen = []

    def watched(multiply):
        return lambda *arguments: (seen.append(arguments[0].shape), multiply(*arguments))[1]

    with products.wrapped_products(watched):
        products.add_product(numpy.ones((2, 3)), numpy.ones((3, 4)), numpy.zeros((2, 4)))
    assert seen == [(2, 3)]
