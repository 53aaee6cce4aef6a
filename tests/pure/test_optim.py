"""Rules, clipping and learning rates against their definitions and PyTorch."""

import math

import numpy
import pytest

import shardkit
from shardkit import SGD, Adam, AdamW, ConfigurationError, Lion, Momentum, Muon, schedules
from shardkit.testing import optim
from shardkit.testing.optim import Optimizer, clip_factor

RULES = {
    "SGD": (
        SGD(lr=0.1, weight_decay=0.01),
        lambda t, p: t.optim.SGD([p], lr=0.1, weight_decay=0.01),
    ),
    "Momentum": (Momentum(lr=0.1, beta=0.8), lambda t, p: t.optim.SGD([p], lr=0.1, momentum=0.8)),
    "Nesterov": (
        Momentum(lr=0.1, beta=0.8, nesterov=True),
        lambda t, p: t.optim.SGD([p], lr=0.1, momentum=0.8, nesterov=True),
    ),
    "SGD with momentum": (
        SGD(lr=0.1, weight_decay=0.1, momentum=0.8, nesterov=True),
        lambda t, p: t.optim.SGD([p], lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    "Adam": (
        Adam(lr=0.1, weight_decay=0.1),
        lambda t, p: t.optim.Adam([p], lr=0.1, weight_decay=0.1),
    ),
    "AdamW": (
        AdamW(lr=0.1, beta2=0.99),
        lambda t, p: t.optim.AdamW([p], lr=0.1, betas=(0.9, 0.99)),
    ),
}


def gradients(step, size=1000):
    return numpy.random.default_rng(step).standard_normal(size)


def run(rule, spans, size=1000, steps=5):
    """Parameters after some steps, each span of them updated by itself."""
    parameters = numpy.linspace(-1, 1, size)
    states = [
        {name: numpy.zeros(stop - start) for name in rule.state_names} for start, stop in spans
    ]
    for step in range(1, steps + 1):
        for (start, stop), state in zip(spans, states):
            rule.update(parameters[start:stop], gradients(step, size)[start:stop], state, step)
    return parameters


def test_lion_follows_its_paper():
    rule = Lion(lr=0.01, beta1=0.8, beta2=0.95, weight_decay=0.1)
    found = run(rule, [(0, 1000)])
    p, m = numpy.linspace(-1, 1, 1000), numpy.zeros(1000)
    for step in range(1, 6):
        g = gradients(step)
        p = p - 0.01 * (numpy.sign(0.8 * m + 0.2 * g) + 0.1 * p)
        m = 0.95 * m + 0.05 * g
    numpy.testing.assert_allclose(found, p, rtol=1e-13, atol=1e-15)
    numpy.testing.assert_array_equal(run(rule, [(0, 300), (300, 301), (301, 1000)]), found)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_follows_pytorch(name):
    torch = pytest.importorskip("torch")
    rule, make = RULES[name]
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 1000, dtype=torch.float64))
    optimizer = make(torch, parameter)
    for step in range(1, 6):
        parameter.grad = torch.from_numpy(gradients(step))
        optimizer.step()
    numpy.testing.assert_allclose(
        run(rule, [(0, 1000)]), parameter.detach().numpy(), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", RULES)
def test_the_result_does_not_depend_on_how_the_parameters_are_cut(name):
    rule = RULES[name][0]
    whole = run(rule, [(0, 1000)])
    assert (run(rule, [(0, 256), (256, 256), (256, 999), (999, 1000)]) == whole).all()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble"])
def test_a_scaled_update_is_the_update_of_scaled_gradients(name, dtype):
    rule, gradient = RULES[name][0], gradients(1).astype(dtype)
    results = []
    for sent, scale in ((gradient, 0.3), (gradient * numpy.dtype(dtype).type(0.3), 1.0)):
        parameters = numpy.linspace(-1, 1, 1000).astype(dtype)
        state = {name: numpy.ones(1000, dtype) for name in rule.state_names}
        rule.update(parameters, sent, state, 1, gradient_scale=scale)
        results.append([parameters.tolist(), *[array.tolist() for array in state.values()]])
    assert results[0] == results[1]
    assert (gradient == gradients(1).astype(dtype)).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 8), (8, 5)])
@pytest.mark.parametrize("dtype, digits", [("float32", 1e-5), ("float64", 1e-12)])
def test_muon_makes_a_matrix_orthogonal(shape, dtype, digits):
    matrix = numpy.random.default_rng(0).standard_normal(shape).astype(dtype)
    kept = matrix.copy()
    found = Muon(ns_steps=30, ns_coefficients=(1.5, -0.5, 0.0)).of_matrix(matrix)
    left, _, right = numpy.linalg.svd(matrix.astype("float64"), full_matrices=False)
    scale = math.sqrt(max(1, shape[0] / shape[1]))
    numpy.testing.assert_allclose(found, scale * left @ right, rtol=digits, atol=digits)
    assert found.dtype == dtype and (matrix == kept).all()
    turned = Muon().of_matrix(numpy.asfortranarray(matrix))
    numpy.testing.assert_array_equal(turned, Muon().of_matrix(matrix))
    assert not Muon().of_matrix(numpy.zeros_like(matrix)).any()


def test_rules_are_values():
    assert AdamW(lr=0.1) == AdamW(lr=0.1) != AdamW(lr=0.2)
    with pytest.raises(AttributeError):
        AdamW().lr = 1


def test_a_learning_rate_can_be_a_function_of_the_step_or_be_overridden():
    rule = SGD(lr=schedules.Linear(1.0, decay_steps=10, floor=0.0))
    assert (
        rule.rate(1) == 1.0
        and rule.rate(6) == pytest.approx(0.5)
        and rule.rate(11) == 0.0
        and rule.rate(1, 7.0) == 7.0
    )


@pytest.mark.parametrize(
    "kind, ending",
    [
        (schedules.Constant, {}),
        (schedules.Linear, {"decay_steps": 20, "floor": 0.1}),
        (schedules.Cosine, {"decay_steps": 20, "floor": 0.1}),
        (schedules.WarmupStableDecay, {"decay_steps": 20, "floor": 0.1}),
    ],
)
def test_every_schedule_warms_up_linearly_and_stays_at_its_floor(kind, ending):
    rate = kind(2.0, warmup_steps=4, **ending)
    assert [rate(step) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert rate(20) == rate(1000) == pytest.approx(2.0 if kind is schedules.Constant else 0.2)


@pytest.mark.parametrize("kind", [schedules.Linear, schedules.Cosine, schedules.WarmupStableDecay])
def test_without_a_floor_the_rate_comes_down_to_zero(kind):
    rate = kind(2.0, decay_steps=10)
    rates = [rate(step) for step in range(12)]
    assert (
        rates[0] == 2.0 and rates == sorted(rates, reverse=True) and rates[10] == rates[11] == 0.0
    )
    assert [kind(2.0, decay_steps=1)(step) for step in (0, 1, 2)] == [2.0, 0.0, 0.0]


@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_cosine_and_linear_follow_pytorch(floor):
    torch = pytest.importorskip("torch")
    schedulers = torch.optim.lr_scheduler
    for ours, theirs in (
        (
            schedules.Cosine(0.1, decay_steps=10, floor=floor),
            lambda o: schedulers.CosineAnnealingLR(o, 10, eta_min=0.1 * floor),
        ),
        (
            schedules.Linear(0.1, decay_steps=10, floor=floor),
            lambda o: schedulers.LinearLR(o, 1.0, floor, total_iters=10),
        ),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler = theirs(optimizer)
        for step in range(11):
            assert ours(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9, abs=1e-12)
            optimizer.step()
            scheduler.step()


@pytest.mark.thorough
def test_warmup_stable_decay_falls_in_the_last_part_alone_and_a_longer_run_has_the_same_rates():
    rate = schedules.WarmupStableDecay(2.0, 4, decay_steps=20, floor=0.1, decay_part=0.25)
    assert {rate(step) for step in range(3, 16)} == {2.0}
    assert [rate(step) for step in (17, 19)] == pytest.approx([2 * (0.1 + 0.9 * 0.6), 0.2 + 0.36])
    longer = schedules.WarmupStableDecay(2.0, 4, decay_steps=40, floor=0.1, decay_part=0.125)
    assert all(longer(step) == rate(step) for step in range(16)) and longer(35) == 2.0
    after_warmup = schedules.WarmupStableDecay(1.0, 8, decay_steps=10, decay_part=1.0)
    assert [after_warmup(step) for step in (7, 8, 9, 10)] == [1.0, 1.0, 0.5, 0.0]
    torch = pytest.importorskip("torch")
    optimization = pytest.importorskip("transformers.optimization")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = optimization.get_wsd_schedule(
        optimizer, 0, 5, num_training_steps=20, decay_type="linear", min_lr_ratio=0.1
    )
    ours = schedules.WarmupStableDecay(2.0, 0, decay_steps=20, floor=0.1, decay_part=0.25)
    for step in range(22):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


def test_a_setting_of_one_schedule_is_refused_with_another():
    given = Optimizer(decay="wsd", decay_part=0.5, decay_steps=100)
    assert given.rule().lr.first_falling_step == 50
    with pytest.raises(ConfigurationError, match="decay_part = 0.5 goes with .* 'wsd', not with"):
        Optimizer(decay="cosine", decay_part=0.5, decay_steps=100).rule()


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "kind, given, name",
    [
        (schedules.Constant, {"peak": NAN}, "peak"),
        (schedules.Constant, {"peak": -0.1}, "peak"),
        (schedules.Constant, {"peak": INF}, "peak"),
        (schedules.Constant, {"peak": "0.1"}, "peak"),
        (schedules.Constant, {"warmup_steps": -1}, "warmup_steps"),
        (schedules.Constant, {"warmup_steps": 2.5}, "warmup_steps"),
        (schedules.Constant, {"warmup_steps": True}, "warmup_steps"),
        (schedules.Cosine, {}, "decay_steps"),
        (schedules.Linear, {}, "decay_steps"),
        (schedules.Cosine, {"decay_steps": 10.5}, "decay_steps"),
        (schedules.Cosine, {"decay_steps": NAN}, "decay_steps"),
        (schedules.Linear, {"warmup_steps": 5, "decay_steps": 5}, "decay_steps"),
        (schedules.Cosine, {"decay_steps": 10, "floor": -0.1}, "floor"),
        (schedules.Cosine, {"decay_steps": 10, "floor": 1.1}, "floor"),
        (schedules.Linear, {"decay_steps": 10, "floor": NAN}, "floor"),
        (schedules.WarmupStableDecay, {"decay_steps": 10, "decay_part": 0.0}, "decay_part"),
        (schedules.WarmupStableDecay, {"decay_steps": 10, "decay_part": 1.5}, "decay_part"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused_by_name(kind, given, name):
    with pytest.raises(ConfigurationError, match=f"^{name} = .*; wanted "):
        kind(**{"peak": 0.1, **given})


WRONG_RATES = (NAN, INF, -1e-3, "0.1", None, True, schedules.Cosine)


@pytest.mark.parametrize(
    "kind, name, wrong",
    [
        *((kind, "lr", WRONG_RATES) for kind in (SGD, Momentum, Adam, AdamW)),
        *(
            (kind, "weight_decay", (NAN, INF, -0.1, "0", False))
            for kind in (SGD, Momentum, Adam, AdamW)
        ),
        *(
            (kind, name, (NAN, INF, -0.1, 1.0, 2, "0.9"))
            for kind, name in (
                (Momentum, "beta"),
                (Adam, "beta1"),
                (Adam, "beta2"),
                (AdamW, "beta1"),
                (AdamW, "beta2"),
            )
        ),
        *((kind, "eps", (NAN, INF, 0.0, -1e-8)) for kind in (Adam, AdamW)),
        (Momentum, "nesterov", (1, "yes")),
    ],
)
def test_a_rule_refuses_by_name_what_would_spoil_parameters(kind, name, wrong):
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{name} = .*; wanted "):
            kind(**{name: value})


def test_nesterov_needs_momentum():
    with pytest.raises(ConfigurationError, match="nesterov = True; wanted False where beta = 0"):
        Momentum(lr=0.1, beta=0.0, nesterov=True)


def test_rules_take_numbers_of_numpy_and_a_rate_of_zero():
    assert SGD(lr=numpy.float32(0.5)).rate(1) == 0.5 and AdamW(lr=0).rate(1) == 0


@pytest.mark.parametrize("rate", [NAN, INF, -1.0, None, "fast"])
def test_a_function_that_gives_no_learning_rate_is_refused_with_its_step(rate):
    with pytest.raises(
        ConfigurationError,
        match=r"learning rate of step 3, lr\(2\) .*; wanted a finite number, at least 0",
    ):
        SGD(lr=lambda step: rate if step == 2 else 0.1).rate(3)


def test_cosine_is_half_way_down_in_the_middle():
    assert schedules.Cosine(1.0, 0, 10, 0.0)(5) == pytest.approx(0.5)
    assert schedules.Cosine(1.0, 0, 12, 0.0)(3) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_clipping_brings_a_large_norm_to_the_maximum_and_leaves_a_small_one():
    assert clip_factor(10.0, 1.0) * 10.0 == pytest.approx(1.0, rel=1e-6)
    assert clip_factor(0.5, 1.0) == 1.0


def test_schedules_are_no_top_level_names_and_the_error_says_where_they_are():
    with pytest.raises(AttributeError, match=r"shardkit\.schedules\.Linear.*shardkit\.nn\.Linear"):
        shardkit.Linear(784, 128)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'$"):
        shardkit.Nothing
    assert shardkit.schedules is schedules and issubclass(schedules.Cosine, schedules.Schedule)


def test_a_rule_that_is_entered_is_found_by_its_name_and_says_which_settings_it_takes():
    assert set(optim.RULES) == {"sgd", "momentum", "adam", "adamw", "lion"}
    for cls in optim.RULES.values():
        made = cls(**{argument: 0.5 for argument in cls.settings})
        assert isinstance(made, optim.Rule)
