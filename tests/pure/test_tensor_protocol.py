"""What Python and NumPy may ask of a Tensor: an answer that is right, or an error; never a wrong
answer.
"""

import copy
import operator
import pickle

import numpy
import pytest

from shardkit import AutogradError, ShapeError
from shardkit.nn import Parameter, Tensor
from shardkit.testing.nn import Fill

ARRAY = numpy.array([[1, 2], [3, 4]], "float32")


def tensor(requires_grad=False):
    return Tensor(ARRAY.copy(), requires_grad)


def single(value):
    return Tensor(numpy.array([value]))


@pytest.mark.parametrize("other", [2, 2.5, ARRAY.T, numpy.float64(3), Tensor(ARRAY.T)], ids=repr)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_a_comparison_is_made_element_by_element_from_either_side(name, other):
    compare, plain = getattr(operator, name), other.array if isinstance(other, Tensor) else other
    for found, expected in [
        (compare(tensor(True), other), compare(ARRAY, plain)),
        (compare(other, tensor(True)), compare(plain, ARRAY)),
    ]:
        assert isinstance(found, Tensor) and not found.requires_grad
        numpy.testing.assert_array_equal(found.array, expected, strict=True)


def test_a_comparison_of_shapes_that_do_not_broadcast_is_refused():
    with pytest.raises(ShapeError, match=r"eq of shapes \(2, 2\) and \(3,\)"):
        tensor() == numpy.ones(3)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: bool(tensor() > 0),
        lambda: tensor() and 1,
        lambda: not tensor(),
        lambda: [tensor(), tensor()].index(tensor()),
        lambda: min(tensor(), tensor()),
        lambda: bool(Tensor(numpy.ones(0))),
        lambda: bool(Parameter((2,), Fill(1.0))),
    ],
)
def test_several_elements_or_none_have_no_truth(ask):
    with pytest.raises(ShapeError, match="ambiguous.*any"):
        ask()


@pytest.mark.parametrize(
    "ask, expected",
    [
        (lambda: bool(single(3.0) > 2), True),
        (lambda: bool(single(3.0) < 2), False),
        (lambda: bool(single(0)), False),
        (lambda: float(single(1.5)), 1.5),
        (lambda: int(single(7.9)), 7),
        (lambda: complex(single(1.5)), 1.5),
        (lambda: range(9)[Tensor(numpy.array(4))], 4),
        (lambda: 3.0 in tensor(), True),
        (lambda: 7.0 in tensor(), False),
        (lambda: len(tensor()), 2),
        (lambda: abs(-tensor()).array.tolist(), ARRAY.tolist()),
        (lambda: [row.array.tolist() for row in tensor()], ARRAY.tolist()),
        (lambda: numpy.asarray(tensor()).tolist(), ARRAY.tolist()),
        (lambda: numpy.array(tensor(), "int8").dtype, numpy.int8),
        (lambda: numpy.stack([tensor(), tensor()]).shape, (2, 2, 2)),
        (lambda: numpy.array_equal(tensor(), ARRAY), True),
        (lambda: len({tensor(), tensor()}), 2),
        (lambda: {(t := tensor()): 5}[t], 5),
        (lambda: Tensor(tensor()).array.tolist(), ARRAY.tolist()),
    ],
)
def test_python_and_numpy_get_the_numbers_that_an_array_would_give(ask, expected):
    assert ask() == expected


@pytest.mark.parametrize(
    "ask, error",
    [
        (lambda: float(tensor()), ValueError),
        (lambda: range(9)[single(1.5)], TypeError),
        (lambda: iter(Tensor(1.0)), TypeError),
        (lambda: len(Tensor(1.0)), TypeError),
        (lambda: numpy.exp(tensor()), TypeError),
        (lambda: tensor() // 2, TypeError),
        (lambda: tensor() % 2, TypeError),
        (lambda: divmod(tensor(), 2), TypeError),
        (lambda: round(tensor()), TypeError),
        (lambda: ~tensor(), TypeError),
        (lambda: tensor() & tensor(), TypeError),
        (lambda: operator.iadd(ARRAY.copy(), tensor()), TypeError),
        (lambda: setattr(tensor(), "data", ARRAY), AttributeError),
        (lambda: operator.setitem(tensor(True), 0, 1), AutogradError),
    ],
)
def test_what_a_tensor_cannot_do_is_refused(ask, error):
    with pytest.raises(error):
        ask()


@pytest.mark.parametrize(
    "ask",
    [
        numpy.asarray,
        numpy.array,
        Tensor,
        lambda t: numpy.where(ARRAY > 2, t, 0),
        lambda t: numpy.dot(ARRAY, t),
        lambda t: numpy.concatenate([t, t]),
    ],
)
def test_numpy_gets_no_tensor_whose_gradient_it_would_lose(ask):
    with pytest.raises(AutogradError, match=r"gradient.*detach\(\)"):
        ask(tensor(True))
    ask(tensor(True).detach())


def test_rows_that_a_loop_takes_lead_gradients_back():
    x = tensor(True)
    first, second = x
    (first * 2 + second).sum().backward()
    assert x.grad.tolist() == [[2, 2], [1, 1]]


def test_an_addition_in_place_makes_a_new_tensor_and_leaves_the_old_one():
    x = kept = tensor(True)
    x += 1
    assert x is not kept and not x.is_leaf and kept.array.tolist() == ARRAY.tolist()


def test_a_copy_of_a_leaf_has_its_values_and_none_of_its_memory():
    x = tensor(True)
    x.sum().backward()
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert (
            twin.requires_grad
            and twin.array.tolist() == ARRAY.tolist()
            and twin.grad.tolist() == x.grad.tolist()
        )
        assert not numpy.shares_memory(twin.array, x.array) and not numpy.shares_memory(
            twin.grad, x.grad
        )


def test_a_deep_copy_of_a_result_is_refused_because_its_gradient_would_reach_copies_only():
    with pytest.raises(AutogradError, match="deep copy.*detach"):
        copy.deepcopy(tensor(True) * 2)
