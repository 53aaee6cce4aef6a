"""Buffers: kept with a module, not trained; what a forward pass may say about them."""

import copy

import numpy
import pytest

from shardkit import ConfigurationError, ShapeError, ShardingError, nn
from shardkit.nn import Buffer, ForwardContext, forward_context
from shardkit.testing.nn import Fill

TRAINING = ForwardContext(training=True)


class Tracked(nn.Module):
    """A linear layer that keeps the running mean of its input."""

    def __init__(self, momentum=0.25):
        self.linear = nn.Linear(3, 2)
        self.mean = Buffer(3, Fill(0.0))
        self.steps = Buffer((), Fill(0), "int64")
        self.momentum = momentum
        self.finish(0)

    def forward(self, x):
        self.steps.advance()
        count = self.steps if self.momentum is None else None
        self.mean.observe(x.array.mean(0), self.momentum, count=count)
        return self.linear(x)


def rows(number):
    return numpy.random.default_rng(number).standard_normal((4, 3)).astype("float32")


def test_buffers_have_names_and_are_no_parameters():
    model = Tracked()
    assert list(model.named_buffers()) == ["mean", "steps"]
    assert list(model.named_parameters()) == ["linear.weight", "linear.bias"]
    assert (model.mean.name, model.parameter_count) == ("mean", 8)
    assert "'mean', (3,), float32, fresh" in repr(model.mean)


def test_a_buffer_of_two_modules_is_listed_once():
    model = Tracked()
    outer = nn.Sequential(model, model)
    assert list(outer.named_buffers()) == ["0.mean", "0.steps"]


def test_nothing_is_observed_outside_of_training():
    model = Tracked()
    model.predict(rows(0))
    assert model.steps.is_fresh and model.mean.is_fresh


def test_without_an_engine_each_observation_is_applied_at_once():
    model, expected = Tracked(), numpy.zeros(3)
    for number in range(3):
        with forward_context(TRAINING):
            model(nn.Tensor(rows(number)))
        expected = 0.75 * expected + 0.25 * rows(number).mean(0)
    numpy.testing.assert_allclose(model.mean.numpy(), expected, rtol=1e-6)
    assert model.steps.item() == 3 and model.steps.array.dtype == "int64"


def test_no_momentum_is_the_mean_over_all_steps():
    model = Tracked(momentum=None)
    for number in range(5):
        with forward_context(TRAINING):
            model(nn.Tensor(rows(number)))
    expected = numpy.mean([rows(number).mean(0) for number in range(5)], 0)
    numpy.testing.assert_allclose(model.mean.numpy(), expected, rtol=1e-6)


def test_an_observer_takes_what_is_observed_and_nothing_changes():
    seen, model = [], Tracked()
    observer = lambda buffer, observation: seen.append((buffer.name, observation))  # noqa: E731
    with forward_context(ForwardContext(training=True, observer=observer)):
        model(nn.Tensor(rows(0)))
    assert [name for name, _ in seen] == ["steps", "mean"]
    assert seen[1][1].value.dtype == "float64" and seen[1][1].momentum == 0.25
    assert model.mean.is_fresh


def test_what_was_observed_is_a_copy():
    seen, buffer, value = [], Buffer(3, Fill(0.0)), numpy.ones(3)
    observer = lambda _, observation: seen.append(observation.value)  # noqa: E731
    with forward_context(ForwardContext(training=True, observer=observer)):
        buffer.observe(value)
    value[...] = 7
    assert seen[0].tolist() == [1, 1, 1]


def test_a_state_dict_holds_buffers_and_loads_them():
    one, other = Tracked(), Tracked()
    one.mean.array = numpy.array([1, 2, 3])
    one.steps.array = 9
    other.load_state_dict(one.state_dict())
    assert other.mean.numpy().tolist() == [1, 2, 3] and other.steps.item() == 9
    state = {name: value for name, value in one.state_dict().items() if name != "steps"}
    report = other.load_state_dict({**state, "more": numpy.zeros(1)}, strict=False)
    assert report == {"missing_names": ["steps"], "unexpected_names": ["more"]}
    with pytest.raises(Exception, match="1 names missing \\(steps\\)"):
        other.load_state_dict(state)
    with pytest.raises(ShapeError, match="buffer mean has shape"):
        other.load_state_dict({"mean": numpy.zeros(4)}, strict=False)


def test_a_deep_copy_has_memory_of_its_own():
    model = Tracked()
    model.mean.array = numpy.ones(3)
    copied = copy.deepcopy(model)
    copied.mean.array = numpy.zeros(3)
    assert model.mean.numpy().tolist() == [1, 1, 1]
    assert copied.mean.name == "mean" and copied.steps.item() == 0


def test_renew_makes_the_initial_values_again():
    buffer = Tracked().mean
    buffer.array = numpy.ones(3)
    buffer.renew()
    assert buffer.numpy().tolist() == [0, 0, 0]


def test_a_released_buffer_says_where_its_values_are():
    buffer = Tracked().mean
    buffer.release()
    with pytest.raises(ShardingError, match="buffer mean lives on the pipeline ranks"):
        buffer.array  # noqa: B018


def test_a_buffer_takes_part_in_operations_without_a_gradient():
    model = Tracked()
    x = nn.Tensor(rows(0), requires_grad=True)
    output = (x - model.mean) * 2.0
    output.backward(numpy.ones((4, 3), "float32"))
    assert x.grad.tolist() == [[2.0] * 3] * 4 and model.mean.grad is None


@pytest.mark.parametrize(
    "wrong, error, message",
    [
        (lambda b: b.observe(numpy.zeros(2)), ShapeError, "observed a value of shape"),
        (lambda b: b.observe(numpy.zeros(3), 1.5), ConfigurationError, "from 0 to 1"),
        (lambda b: b.observe(numpy.zeros(3), None), ConfigurationError, "buffer that counts"),
        (lambda b: Tracked().steps.observe(0.0), ConfigurationError, "only floats"),
        (lambda b: Buffer(3, Fill(0), "uint8"), ConfigurationError, "wanted one of float32"),
        (lambda b: setattr(b, "array", numpy.zeros(2)), ShapeError, "the two must be equal"),
    ],
)
def test_what_means_nothing_is_refused(wrong, error, message):
    with forward_context(TRAINING), pytest.raises(error, match=message):
        wrong(Tracked().mean)


def test_a_mask_that_is_kept_is_a_mask():
    kept = numpy.array([True, False, True])
    model = Tracked()
    model.register_buffer("kept", kept)
    x = nn.Tensor(rows(0))
    assert numpy.array_equal(x[:, model.kept].array, x.array[:, kept])
    model.load_state_dict(model.state_dict() | {"kept": ~kept})
    assert numpy.array_equal(x[:, model.kept].array, x.array[:, ~kept])


@pytest.mark.parametrize(
    "values",
    (numpy.array([1j]), numpy.array([None]), numpy.array(["1"]), numpy.array(["2020"], "M8[Y]")),
)
@pytest.mark.parametrize("made", (nn.Buffer, nn.Parameter))
def test_values_that_are_not_real_are_refused_when_made_and_when_set(made, values):
    with pytest.raises(ShapeError, match="wanted real numbers"):
        made(values)
    member = made(numpy.ones(1))
    with pytest.raises(ShapeError, match="wanted real numbers"):
        member.array = values


def test_a_plain_list_of_buffers_is_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    model.means = [Buffer(3, Fill(0.0))]
    with pytest.raises(ConfigurationError, match="plain list of modules, parameters or buffers"):
        model.finish(0)


@pytest.mark.parametrize(
    "value, dtype, fits",
    [
        (numpy.uint64(2**63 + 5), None, False),
        (numpy.uint64(2**63 - 1), None, True),
        (2**40, "int32", False),
        (-(2**31), "int32", True),
        (1.5, "int64", False),
        (2.0**63, "int64", False),
        (numpy.nan, "int64", False),
        (2, "bool", False),
        (1.0, "bool", True),
        (True, "int32", True),
        (2**53 + 1, "float64", True),
    ],
)
def test_integers_and_booleans_hold_what_they_are_given_or_refuse_it(value, dtype, fits):
    makers = [lambda: Buffer(numpy.array([0, value], numpy.asarray(value).dtype), dtype=dtype)]
    if dtype is not None:
        makers.append(lambda: Buffer(2, Fill(value), dtype))
    for make in makers:
        if fits:
            assert make().dtype == (dtype or "int64")
        else:
            with pytest.raises(ConfigurationError, match="cannot hold it; wanted other values"):
                make()
