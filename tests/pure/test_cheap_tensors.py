"""What is made again in a backward: the same bits, and not kept."""

import weakref

import numpy
import pytest

from shardkit import AutogradError
from shardkit.nn import Tensor, backward_inputs, grad, ops
from shardkit.testing.nn import CheapTensor

CASES = {
    "gelu": lambda x, b: ops.gelu(x),
    "bias_gelu": ops.bias_gelu,
    "swiglu": lambda x, b: ops.swiglu(x, x * 0.5),
}


def given(dtype="float32"):
    draw = numpy.random.default_rng(0).standard_normal
    return [
        Tensor(draw(shape).astype(dtype), requires_grad=True) for shape in ((5, 8), (8,), (3, 8))
    ]


def plain(y):
    """The same tensor, which keeps its array."""
    return Tensor._made(y.array, y._node, y._memory)


@pytest.mark.parametrize("case", CASES)
def test_gradients_have_the_bits_of_those_of_a_tensor_that_is_kept(case):
    found = []
    for kept in (lambda y: y, plain):
        x, b, weight = given()
        y = CASES[case](x, b)
        assert isinstance(y, CheapTensor)
        ops.linear(kept(y), weight).backward(numpy.ones((5, 3), "float32"))
        found.append((x.grad, weight.grad))
    for again, once in zip(*found):
        numpy.testing.assert_array_equal(again, once)


@pytest.mark.parametrize("case", CASES)
def test_its_array_goes_after_the_forward_also_where_weight_gradients_come_later(case):
    x, b, weight = given()
    y = CASES[case](x, b)
    array = weakref.ref(y.array)
    out = ops.linear(y, weight)
    del y
    assert array() is None
    later = backward_inputs(out, numpy.ones((5, 3), "float32"))
    later.run()
    y = CASES[case](x, b)
    numpy.testing.assert_array_equal(weight.grad, numpy.ones((3, 5), "float32") @ y.array)


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_go_through_what_is_made_again(case):
    def second(kept):
        x, b, weight = given("float64")
        out = ops.linear(kept(CASES[case](x, b)), weight)
        (first,) = grad(out, weight, numpy.ones((5, 3)), create_graph=True)
        (found,) = grad(first, x, numpy.ones((3, 8)))
        return found.array

    numpy.testing.assert_allclose(second(lambda y: y), second(plain), rtol=1e-14)
    assert numpy.abs(second(plain)).max() > 0.1


def test_a_change_of_what_it_is_made_from_is_noticed():
    x, b, weight = given()
    hidden = x * 1.0
    out = ops.linear(ops.bias_gelu(hidden, b), weight)
    hidden.detach().zero_()
    with pytest.raises(AutogradError, match="linear needs was changed in place"):
        out.backward(numpy.ones((5, 3), "float32"))


def test_without_gradients_it_is_a_plain_tensor():
    x, b, _ = given()
    assert type(ops.bias_gelu(x.detach(), b.detach())) is Tensor
