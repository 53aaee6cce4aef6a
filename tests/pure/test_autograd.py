"""The tape: order, accumulation, memory, changes in place, the split backward."""

import gc
import threading
import weakref

import numpy
import pytest

from shardkit import AutogradError, ShapeError
from shardkit.nn import Tensor, backward_inputs, is_grad_enabled, no_grad, ops, record
from shardkit.testing.array import Device


class FakeParameter(Tensor):
    """A parameter as a sharded model has it: its array is a property, gone after release, in
    another buffer later.
    """

    is_parameter = True

    def __init__(self, array):
        self._begin(requires_grad=True)
        self.bound = array

    @property
    def array(self):
        assert self.bound is not None, "a released parameter was read"
        return self.bound


def leaf(*shape, seed=0, dtype="float32"):
    return Tensor(
        numpy.random.default_rng(seed).standard_normal(shape).astype(dtype), requires_grad=True
    )


# Values and accumulation.


def test_a_tensor_used_twice_gets_both_gradients():
    x = leaf(3)
    (x * x + x).backward(numpy.ones(3, "float32"))
    numpy.testing.assert_allclose(x.grad, 2 * x.array + 1, rtol=1e-6)


def test_a_diamond_is_walked_once_per_node():
    calls = []
    x = leaf(2)

    def counted(gradient, wanted):
        calls.append(gradient.copy())
        return (gradient,)

    middle = record(x.array * 1, (x,), counted)
    (middle * 2 + middle * 3).sum().backward()
    assert len(calls) == 1
    numpy.testing.assert_array_equal(x.grad, [5, 5])


def test_gradients_of_two_backwards_add_up():
    x = leaf(3)
    for _ in range(2):
        (x * 3).sum().backward()
    numpy.testing.assert_array_equal(x.grad, numpy.full(3, 6, "float32"))


def test_an_existing_grad_is_added_to_in_its_own_memory():
    flat = numpy.ones(10, "float32")
    x = leaf(2, 3)
    x.grad = view = flat[2:8].reshape(2, 3)
    (x * 2).sum().backward()
    assert x.grad is view
    assert flat.tolist() == [1, 1, 3, 3, 3, 3, 3, 3, 1, 1]


def test_a_new_grad_shares_memory_with_nothing():
    x, y = leaf(3), leaf(3)
    sent = numpy.ones(3, "float32")
    (x + y).backward(sent)
    assert not any(
        numpy.shares_memory(a, b) for a, b in [(x.grad, y.grad), (x.grad, sent), (y.grad, sent)]
    )
    assert x.grad.flags.writeable


def test_a_leaf_keeps_a_new_gradient_which_stays_its_own():
    made = []

    def backward(gradient, wanted):
        made.append(2 * gradient)
        return (made[-1],)

    x = Tensor(numpy.ones(3), requires_grad=True)
    y = record(2 * x.array, (x,), backward, gives_new=True)
    y.backward(numpy.ones(3), retain_graph=True)
    assert x.grad is made[0]
    y.backward(numpy.ones(3))
    assert x.grad is made[0]
    numpy.testing.assert_array_equal(x.grad, [4, 4, 4])
    numpy.testing.assert_array_equal(made[1], [2, 2, 2])


def test_a_grad_bound_to_another_shape_is_refused():
    x = leaf(2, 3)
    x.grad = numpy.zeros(3, "float32")
    with pytest.raises(ShapeError, match="own shape"):
        x.sum().backward()


def test_backward_of_a_leaf_is_its_own_gradient():
    x = leaf(2)
    x.backward(numpy.array([3, 4], "float32"))
    assert x.grad.tolist() == [3, 4]


def test_the_seed_gradient_of_a_nan_loss_is_one():
    x = Tensor(numpy.array([numpy.nan], "float32"), requires_grad=True)
    (x + 0).sum().backward()
    assert x.grad.tolist() == [1]


def test_python_numbers_and_arrays_keep_float32():
    x = leaf(3)
    for y in (
        x + 1,
        2.5 * x,
        x / 3,
        1 - x,
        x**2,
        x * numpy.ones(3, "float32"),
        numpy.ones(3, "float32") - x,
        -x,
    ):
        assert isinstance(y, Tensor) and y.dtype == numpy.float32
        y.sum().backward()
    assert x.grad.dtype == numpy.float32


def test_operands_of_two_dtypes_get_gradients_of_their_own_dtype():
    x, y = leaf(3), leaf(3, dtype="float64")
    (x * y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (numpy.float32, numpy.float64)


def test_equal_programs_have_equal_bits():
    def run():
        x, w = leaf(4, 8), leaf(8, 8, seed=1)
        h = x
        for _ in range(5):
            h = ops.gelu(h @ w) + h + ops.tanh(h)
        h.sum().backward()
        return x.grad.tobytes() + w.grad.tobytes()

    assert run() == run()


# Deep tapes and memory.


@pytest.mark.thorough
def test_a_chain_of_a_hundred_thousand_ops_runs_backward_without_recursion():
    x = leaf(1)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward(numpy.ones(1, "float32"))
    assert x.grad.tolist() == [1]


@pytest.mark.thorough
def test_a_deep_tape_that_is_never_used_is_freed_without_recursion():
    y = leaf(1)
    for _ in range(100_000):
        y = ops.tanh(y)
    del y


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_alive(arrays):
    return sum(array() is not None for array in arrays)


def activations(x, w, layers=6):
    """The output of a small network, and weak references to the arrays inside it."""
    alive = []
    for _ in range(layers):
        x = ops.gelu(ops.linear(x, w))
        x = ops.softmax(x) + x
        alive.append(weakref.ref(x.array))
    return x.sum(), alive


def test_dropping_a_tape_frees_its_activations_at_once(no_garbage_collection):
    x, w = leaf(4, 8), leaf(8, 8)
    output, alive = activations(x, w)
    assert count_alive(alive) >= 5
    del output
    assert count_alive(alive) == 0


def test_a_backward_frees_the_activations_although_the_output_is_kept(no_garbage_collection):
    x, w = leaf(4, 8), leaf(8, 8)
    output, alive = activations(x, w)
    output.backward()
    assert count_alive(alive) == 0
    assert output.size == 1


def test_activations_are_freed_while_the_backward_goes_on(no_garbage_collection):
    x, w = leaf(4, 8), leaf(8, 8)
    seen = []

    def look(gradient, wanted):
        seen.append(count_alive(alive))
        return (gradient,)

    start = record(x.array * 1, (x,), look)
    output, alive = activations(start, w)
    output.backward()
    assert seen == [0]


def test_ops_that_do_not_need_their_inputs_do_not_keep_them():
    device = Device("cpu")
    x = Tensor(device.zeros((4, 4), purpose="activations"), requires_grad=True)
    h = x + 0

    def fresh():
        array = device.zeros((4, 4), purpose="activations")
        return record(array, (h,), lambda gradient, wanted: (gradient,))

    kept = [
        fresh() + 1,
        fresh() - 1,
        fresh() * 2,
        -fresh(),
        fresh().sum(),
        fresh().mean(0),
        ops.cast(fresh(), "float64"),
        ops.tanh(fresh()),
        ops.exp(fresh()),
        ops.softmax(fresh()),
        ops.concatenate([fresh(), fresh()]),
    ]
    assert device.bytes_in_use("activations") == x.array.nbytes
    sum((y.sum() for y in kept[1:]), kept[0].sum()).backward()


def test_no_grad_keeps_nothing(no_garbage_collection):
    x, w = leaf(4, 8), leaf(8, 8)
    with no_grad():
        output, alive = activations(x, w)
    assert count_alive(alive) == 0 and not output.requires_grad and output.is_leaf


# no_grad.


def test_no_grad_ends_with_its_block_even_after_an_error():
    with pytest.raises(KeyError):
        with no_grad():
            assert not is_grad_enabled()
            with no_grad():
                pass
            assert not is_grad_enabled()
            raise KeyError
    assert is_grad_enabled()


def test_no_grad_holds_for_its_own_thread_only():
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_no_grad_decorates_functions():
    @no_grad()
    def double(x):
        return x * 2

    x = leaf(2)
    assert not double(x).requires_grad and (x * 2).requires_grad


def test_detach_shares_memory_and_stops_the_gradient():
    x = leaf(2)
    y = x * 1
    assert y.detach().array is y.array and not y.detach().requires_grad
    (y.detach() * y).sum().backward()
    numpy.testing.assert_array_equal(x.grad, x.array)


# Misuse.


def test_a_second_backward_over_a_freed_tape_is_refused():
    y = (leaf(2) * 2).sum()
    y.backward()
    with pytest.raises(AutogradError, match="retain_graph=True"):
        y.backward()


def test_a_backward_through_a_part_that_another_one_freed_is_refused():
    h = leaf(2) * 2
    h.sum().backward()
    with pytest.raises(AutogradError, match="second backward"):
        (h + 1).sum().backward()


def test_a_retained_tape_runs_twice():
    x = leaf(2)
    y = ops.exp(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    numpy.testing.assert_allclose(x.grad, 2 * numpy.exp(x.array), rtol=1e-6)


def test_backward_without_anything_to_differentiate_is_refused():
    with pytest.raises(AutogradError, match="no gradient flows"):
        Tensor(numpy.ones(1)).backward()


def test_backward_of_many_elements_needs_a_gradient():
    with pytest.raises(AutogradError, match="single element"):
        (leaf(2) * 1).backward()


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match=r"\(2, 1\).*\(2,\)"):
        (leaf(2) * 1).backward(numpy.ones((2, 1)))


def test_integers_never_take_gradients():
    with pytest.raises(AutogradError, match="int64"):
        Tensor(numpy.arange(3), requires_grad=True)
    assert not ops.cast(leaf(3), "int32").requires_grad
    assert not (leaf(3) > 0).requires_grad


# Changes in place.

CHANGES = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(Tensor(numpy.float32(2))),
    "copy_": lambda x: x.copy_(numpy.zeros(3)),
    "zero_": lambda x: x.zero_(),
    "setitem": lambda x: x.__setitem__(slice(0, 2), 5),
    "through a view": lambda x: x.reshape(3, 1).add_(1),
    "through a slice": lambda x: x[1:].zero_(),
    "through detach": lambda x: x.detach().zero_(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_in_place_is_counted_and_stops_a_backward_that_needs_the_old_value(change):
    x, w = Tensor(numpy.ones(3, "float32")), leaf(3)
    y = (x * w).sum()
    change(x)
    assert x.version == 1
    with pytest.raises(AutogradError, match="multiply needs was changed in place 1 time"):
        y.backward()


def test_a_change_in_place_is_told_with_the_name_of_the_operation():
    x, w = Tensor(numpy.ones((1, 2, 5), "float32")), leaf(3, 2, 3)
    y = ops.conv1d(x, w).sum()
    x.zero_()
    with pytest.raises(AutogradError, match="backward of convolution needs was changed in place"):
        y.backward()


def test_a_change_in_place_of_what_no_backward_needs_is_fine():
    x, w = Tensor(numpy.ones(3, "float32")), leaf(3)
    y = (x + w).sum()
    x.zero_()
    y.backward()
    assert w.grad.tolist() == [1, 1, 1]


def test_the_values_of_changes_in_place():
    x = Tensor(numpy.arange(3, dtype="float32"))
    x.add_(1).mul_(2)
    x[0] = Tensor(numpy.float32(7))
    assert x.array.tolist() == [7, 4, 6] and x.version == 3
    assert x.copy_([1, 2, 3]).array.tolist() == [1, 2, 3] and x.zero_().array.tolist() == [0, 0, 0]


def test_a_change_that_the_tape_would_miss_is_refused():
    w = leaf(3)
    for change in (
        lambda: w.add_(1),
        lambda: Tensor(numpy.ones(3)).mul_(w),
        lambda: (w * 1).zero_(),
        lambda: w.__setitem__(0, 1),
    ):
        with pytest.raises(AutogradError, match="no_grad"):
            change()
    with no_grad():
        w.zero_()
    assert not w.array.any()


def test_a_view_of_memory_that_was_given_back_cannot_be_differentiated():
    x, weight = leaf(2, 3), FakeParameter(numpy.ones((4, 3), "float32"))
    through_view = (x @ ops.transpose(weight, 0, 1)).sum()
    direct = ops.linear(x, weight).sum()
    weight.stale_views()
    direct.backward()
    with pytest.raises(AutogradError, match="changed in place"):
        through_view.backward()


# Parameters that come and go, and the split backward.


def test_a_backward_reads_the_parameters_of_its_own_time():
    """Between forward and backward a sharded model releases its parameters and gathers them into
    another buffer.
    """
    x = leaf(2, 3)
    layers = {
        name: numpy.random.default_rng(1).standard_normal(shape).astype("float32")
        for name, shape in {
            "w": (4, 3),
            "b": (4,),
            "n": (4,),
            "c": (4,),
            "r": (4,),
            "e": (5, 4),
            "s": (4,),
        }.items()
    }
    p = {name: FakeParameter(array) for name, array in layers.items()}

    def forward():
        h = ops.layer_norm(ops.linear(x, p["w"], p["b"]), p["n"], p["c"])
        h = ops.rms_norm(h, p["r"]) * p["s"] / (p["s"] * p["s"] + 1) + ops.embedding(p["e"], [1, 3])
        return (h @ ops.transpose(p["e"], 0, 1)).sum()

    forward().backward()
    wanted = {name: parameter.grad for name, parameter in p.items()}
    output = forward()
    for name, parameter in p.items():
        parameter.bound, parameter.grad = None, None
    for name, parameter in p.items():
        parameter.bound = layers[name].copy()
    output.backward()
    for name, parameter in p.items():
        numpy.testing.assert_array_equal(parameter.grad, wanted[name])


def network(seed=0):
    """Parameters and the loss of a network in which every kind of sharing occurs."""
    rng = numpy.random.default_rng(seed)

    def parameter(*shape):
        return FakeParameter(rng.standard_normal(shape).astype("float32"))

    x = leaf(2, 3, 4)
    p = [
        parameter(4, 4),
        parameter(4),
        parameter(4),
        parameter(4),
        parameter(6, 4),
        parameter(4, 4),
    ]
    h = x + ops.embedding(p[4], numpy.array([[1, 0, 1], [5, 5, 2]]))
    for _ in range(3):  # the same weights in every layer
        h = h + ops.gelu(ops.linear(ops.layer_norm(h, p[2], p[3]), p[0], p[1]))
        h = h @ ops.transpose(p[5], 0, 1) * p[2]  # a parameter through a view
    return x, p, ops.cross_entropy(ops.linear(h, p[4]), numpy.array([[1, 0, 1], [5, 5, 2]]))


def test_the_split_backward_gives_the_bits_of_the_plain_one():
    x, plain, loss = network()
    loss.backward(numpy.float32(0.3))
    x2, split, loss = network()
    for parameter in split:
        parameter.grad = numpy.zeros_like(parameter.array)
    weights = backward_inputs(loss, numpy.float32(0.3))
    assert x2.grad.tobytes() == x.grad.tobytes()
    weights.run()
    for one, two in zip(plain, split, strict=True):
        assert (one.grad + 0).tobytes() == (two.grad + 0).tobytes()


def test_backward_inputs_leaves_parameters_without_gradients():
    _, parameters, loss = network()
    weights = backward_inputs(loss)
    assert all(parameter.grad is None for parameter in parameters)
    weights.run()
    assert all(parameter.grad is not None for parameter in parameters)


def test_the_input_half_computes_no_weight_gradient():
    asked = []
    x, w = leaf(2), FakeParameter(numpy.ones(2, "float32"))

    def backward(gradient, wanted):
        asked.append(wanted)
        return gradient if wanted[0] else None, gradient if wanted[1] else None

    backward_inputs(record(x.array * 1, (x, w), backward), numpy.ones(2, "float32")).run()
    assert asked == [(True, False), (False, True)]


def test_a_split_backward_may_wait_while_other_backwards_run():
    _, plain, loss = network()
    loss.backward()
    x, split, loss = network()
    weights = backward_inputs(loss)
    ops.linear(x, split[0]).sum()  # another micro-batch passes meanwhile
    weights.run()
    for one, two in zip(plain, split, strict=True):
        numpy.testing.assert_array_equal(one.grad, two.grad)


def test_weight_gradients_run_once_and_notice_changes_in_place():
    x, w = Tensor(numpy.ones((2, 3), "float32")), FakeParameter(numpy.ones((4, 3), "float32"))
    weights = backward_inputs(ops.linear(x, w).sum())
    weights.run()
    with pytest.raises(AutogradError, match="once"):
        weights.run()
    weights = backward_inputs(ops.linear(x, w).sum())
    x.zero_()
    with pytest.raises(AutogradError, match="linear needs was changed"):
        weights.run()


def test_the_second_half_frees_what_it_kept(no_garbage_collection):
    x, w = leaf(4, 8), FakeParameter(numpy.ones((8, 8), "float32"))
    output, alive = activations(x, w)
    weights = backward_inputs(output)
    assert 0 < count_alive(alive) <= len(alive)
    weights.run()
    assert count_alive(alive) == 0
