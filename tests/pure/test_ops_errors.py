"""What does not fit is refused at the door, with what was got and what was wanted; legal edge cases
are not.
"""

import numpy
import pytest

from shardkit import ShapeError
from shardkit.nn import ForwardContext, Tensor, ops


def t(*shape, dtype="float32"):
    return Tensor(numpy.ones(shape, dtype))


TRAINING = ForwardContext(training=True)
REFUSED = {
    "add": (lambda: t(3) + t(4), r"add of shapes \(3,\) and \(4,\).*broadcast"),
    "maximum": (lambda: ops.maximum(t(3), t(4)), "maximum of shapes"),
    "where": (lambda: ops.where(numpy.ones(3, bool), t(3), t(4)), "where of shapes"),
    "matmul": (lambda: t(3, 4) @ t(5, 6), r"matmul of \(3, 4\) @ \(5, 6\); wanted .*transpose"),
    "matmul vector": (lambda: t(3, 4) @ t(4), "unsqueeze"),
    "matmul batches": (lambda: t(2, 3, 4) @ t(5, 4, 3), "leading dimensions"),
    "matmul dtypes": (lambda: t(3, 4) @ t(4, 3, dtype="float64"), "float32, float64.*ops.cast"),
    "linear": (lambda: ops.linear(t(2, 3), t(3, 2)), r"linear of x \(2, 3\), weight \(3, 2\)"),
    "linear bias": (lambda: ops.linear(t(2, 3), t(4, 3), t(3)), r"bias \(3,\); wanted"),
    "linear dtype": (lambda: ops.linear(t(2, 3, dtype="int64"), t(4, 3)), "int64"),
    "sum dim": (lambda: ops.sum(t(2, 3), 2), "dim 2 of a tensor of shape"),
    "sum twice": (lambda: ops.sum(t(2, 3), (0, -2)), "twice"),
    "var by a flag": (lambda: ops.var(t(2, 3), True), "True or False by its name"),
    "mean of nothing": (lambda: ops.mean(t(0, 3)), "no elements"),
    "max of nothing": (lambda: ops.max(t(0, 3), 0), "no elements"),
    "reshape": (lambda: t(2, 3).reshape(4, 2), r"\(6 elements\) to \(4, 2\)"),
    "permute": (lambda: ops.permute(t(2, 3), (0,)), "each of its 2 dims"),
    "squeeze": (lambda: ops.squeeze(t(2, 3), 0), "size of 1"),
    "unsqueeze": (lambda: ops.unsqueeze(t(2, 3), 4), "wanted -3 to 2"),
    "expand": (lambda: ops.expand(t(2, 3), (4, 3)), r"expand of \(2, 3\) to \(4, 3\)"),
    "concatenate": (lambda: ops.concatenate([t(2, 3), t(2, 4)]), "all other sizes"),
    "concatenate nothing": (lambda: ops.concatenate([]), "at least one"),
    "split": (lambda: ops.split(t(2, 3), [1, 1], 1), "add up to 3"),
    "split equal": (lambda: ops.split(t(2, 3), 2, 1), "divisor"),
    "getitem": (lambda: t(2, 3)[2], "out of bounds"),
    "gather": (
        lambda: ops.gather(t(2, 3), 1, numpy.zeros((3, 1), int)),
        r"index of shape \(3, 1\)",
    ),
    "gather range": (lambda: ops.gather(t(2, 3), 1, numpy.full((2, 1), 3)), "0 <= id < 3"),
    "gather dtype": (lambda: ops.gather(t(2, 3), 1, numpy.zeros((2, 1))), "integers"),
    "embedding": (lambda: ops.embedding(t(5, 2), [0, 5]), r"ids from 0 to 5; wanted 0 <= id < 5"),
    "embedding negative": (lambda: ops.embedding(t(5, 2), [-1]), "ids from -1"),
    "embedding dtype": (lambda: ops.embedding(t(5, 2), [0.0]), "float64; wanted integers"),
    "bias_gelu": (lambda: ops.bias_gelu(t(2, 3), t(4)), r"wanted \[..., D\] and \[D\]"),
    "add_rms_norm": (lambda: ops.add_rms_norm(t(2, 3), t(3), t(3)), "wanted one shape and dtype"),
    "swiglu": (lambda: ops.swiglu(t(2, 3), t(2, 4)), "one shape"),
    "softmax": (lambda: ops.softmax(t(2, 3), 2), "dim 2"),
    "layer_norm": (lambda: ops.layer_norm(t(2, 3), t(2), t(3)), r"wanted x \[..., D\]"),
    "rms_norm dtype": (lambda: ops.rms_norm(t(2, 3), t(3, dtype="float64")), "one dtype"),
    "dropout p": (lambda: ops.dropout(t(2, 3), 1.0, "d", TRAINING), "0 <= p < 1"),
    "dropout number": (lambda: ops.dropout(t(), 0.5, "d", TRAINING), "samples"),
    "attention shape": (
        lambda: ops.causal_attention(t(1, 2, 3, 4), t(1, 2, 3, 5), t(1, 2, 3, 5)),
        "wanted q",
    ),
    "attention heads": (
        lambda: ops.causal_attention(t(1, 3, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
        "3 heads.*2 key heads",
    ),
    "attention position": (
        lambda: ops.causal_attention(t(1, 1, 3, 4), t(1, 1, 3, 4), t(1, 1, 3, 4), first_query=1),
        r"positions 1 .. 3, keys at 0 .. 2",
    ),
    "rotary odd": (lambda: ops.rotary(t(1, 1, 2, 3), numpy.arange(2)), "D even"),
    "rotary positions": (lambda: ops.rotary(t(1, 1, 2, 4), numpy.arange(3)), "one position"),
    "cross_entropy": (lambda: ops.cross_entropy(t(2, 3), [0, 1, 2]), r"targets \(3,\)"),
    "cross_entropy range": (lambda: ops.cross_entropy(t(2, 3), [0, 3]), "ids from 0 to 3"),
    "cross_entropy ignored elsewhere": (
        lambda: ops.cross_entropy(t(2, 3), [0, -100], ignore_index=-1),
        "from -100",
    ),
    "cross_entropy reduction": (
        lambda: ops.cross_entropy(t(2, 3), [0, 1], reduction="none"),
        '"mean" or "sum"',
    ),
    "mse": (lambda: ops.mse(t(3, 1), t(3)), "hides mistakes"),
}


@pytest.mark.parametrize(
    "call, message", REFUSED.values(), ids=[name.replace(" ", "-") for name in REFUSED]
)
def test_what_does_not_fit_is_refused_with_a_message(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_ignored_targets_may_be_out_of_range_and_count_nothing():
    logits = Tensor(
        numpy.random.default_rng(0).standard_normal((3, 4)).astype("float32"), requires_grad=True
    )
    ops.cross_entropy(logits, [2, -100, 1], ignore_index=-100).backward()
    assert not logits.grad[1].any() and logits.grad[0].any()


def test_a_loss_over_nothing_is_zero_and_so_is_its_gradient():
    logits = Tensor(numpy.ones((2, 4), "float32"), requires_grad=True)
    loss = ops.cross_entropy(logits, [9, 9], ignore_index=9)
    loss.backward()
    assert loss.item() == 0 and not logits.grad.any()


def test_huge_logits_give_finite_losses_and_probabilities():
    logits = Tensor(
        numpy.array([[1e4, -1e4, 0], [-3e38, -3e38, -3e38]], "float32"), requires_grad=True
    )
    loss = ops.cross_entropy(logits, [0, 1])
    loss.backward()
    assert numpy.isfinite(loss.array) and numpy.isfinite(logits.grad).all()
    assert ops.softmax(logits).array.sum() == pytest.approx(2)
    assert (
        numpy.isfinite(ops.sigmoid(logits).array).all()
        and numpy.isfinite(ops.silu(logits).array).all()
    )
    assert numpy.isfinite(ops.gelu(Tensor(numpy.array([-1e4, 1e4], "float32"))).array).all()


def test_equal_maxima_share_the_gradient():
    x = Tensor(numpy.array([2, 2, 1], "float32"), requires_grad=True)
    (ops.max(x) + ops.maximum(x, numpy.array([2, 0, 1], "float32")).sum()).backward()
    assert x.grad.tolist() == [1, 1.5, 0.5]


def test_cast_sends_the_gradient_back_in_the_dtype_it_came_from():
    x = Tensor(numpy.ones(3, "float32"), requires_grad=True)
    y = ops.cast(x, "float64")
    assert y.dtype == numpy.float64
    y.sum().backward()
    assert x.grad.dtype == numpy.float32 and x.grad.tolist() == [1, 1, 1]


def test_ops_take_index_tensors_and_lists():
    weight = Tensor(numpy.arange(6, dtype="float32").reshape(3, 2))
    for ids in (
        [2, 0],
        numpy.array([2, 0]),
        Tensor(numpy.array([2, 0])),
        numpy.array([2, 0], "uint8"),
    ):
        assert ops.embedding(weight, ids).array.tolist() == [[4, 5], [0, 1]]
    assert weight[Tensor(numpy.array([2]))].array.tolist() == [[4, 5]]
