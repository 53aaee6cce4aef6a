"""Gradients at points where a formula alone would say 0 * inf: they are those that PyTorch has
there.
"""

from math import inf, nan

import numpy
import pytest
from torch_or_skip import torch

from shardkit.nn import Tensor, ops

EDGES = {  # op, its inputs, and the gradient of each
    "sqrt of relu": (
        lambda x: ops.sqrt(ops.relu(x)),
        lambda x: torch.relu(x).sqrt(),
        [[0, -2, 4]],
        [[0, 0, 0.25]],
    ),
    "relu": (ops.relu, lambda x: torch.relu(x), [[0, nan, -inf, inf]], [[0, 1, 0, 1]]),
    "a constant power": (lambda x: x**0, lambda x: x**0, [[0, 2, inf, nan]], [[0, 0, 0, 0]]),
    "the first power": (lambda x: x**1, lambda x: x**1, [[0, -2]], [[1, 1]]),
    "the square": (lambda x: x**2.0, lambda x: x**2.0, [[0, -2]], [[0, -4]]),
    "the square root": (lambda x: x**0.5, lambda x: x**0.5, [[0, 4]], [[inf, 0.25]]),
    "powers that vary": (
        ops.power,
        lambda x, n: x**n,
        [[0, 0, 0, -2], [0, 1, 2, 2]],
        [[0, 1, 0, -4], [0, 0, 0, nan]],
    ),
    "powers of zero": (lambda n: 0**n, lambda n: 0**n, [[0, 1, -1]], [[0, 0, -inf]]),
    "maximum": (
        ops.maximum,
        lambda x, y: torch.maximum(x, y),
        [[0, nan, 2], [0, 1, nan]],
        [[0.5, 1, 1], [0.5, 1, 1]],
    ),
    "division": (
        ops.divide,
        lambda x, y: x / y,
        [[0, 0, 1], [0, 2, inf]],
        [[inf, 0.5, 0], [nan, 0, 0]],
    ),
    "softmax": (ops.softmax, lambda x: x.softmax(-1), [[-inf, 0, 0]], [[0, 0, 0]]),
    "softmax of nothing": (ops.softmax, lambda x: x.softmax(-1), [[-inf, -inf]], [[nan, nan]]),
    "max": (lambda x: ops.max(x, 0), lambda x: x.amax(0), [[3, 3, -inf]], [[0.5, 0.5, 0]]),
    "cross-entropy": (
        lambda x: ops.cross_entropy(x, numpy.array(0)),
        lambda x: -x.log_softmax(-1)[0],
        [[-500, 500, -inf]],
        [[-1, 1, 0]],
    ),
    "log": (ops.log, lambda x: x.log(), [[0, inf]], [[inf, 0]]),
}


def gradients_of(op, leaves, ones_like):
    result = op(*leaves)
    result.backward(ones_like(result))
    return [numpy.asarray(leaf.grad) for leaf in leaves]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EDGES)
def test_a_gradient_at_an_edge_is_the_one_that_pytorch_has(name, dtype):
    op, twin, inputs, expected = EDGES[name]
    with numpy.errstate(divide="ignore", invalid="ignore"):
        ours = gradients_of(
            op,
            [Tensor(numpy.array(x, dtype), requires_grad=True) for x in inputs],
            lambda y: numpy.ones(y.shape, y.dtype),
        )
    numpy.testing.assert_array_equal(ours, numpy.array(expected, dtype), strict=True)
    theirs = gradients_of(
        twin,
        [torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True) for x in inputs],
        lambda y: torch.ones_like(y),
    )
    numpy.testing.assert_array_equal(theirs, numpy.array(expected, dtype), strict=True)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x**0,
        lambda x: x ** Tensor(numpy.zeros(2, "float32")),
        lambda x: ops.sqrt(ops.relu(x) + 1),
    ],
)
def test_a_gradient_that_is_finite_warns_of_nothing_on_the_way(op):
    x = Tensor(numpy.zeros(2, "float32"), requires_grad=True)
    with numpy.errstate(all="raise"):
        op(x).backward(numpy.ones(2, "float32"))
    assert x.grad.tolist() == [0, 0]
