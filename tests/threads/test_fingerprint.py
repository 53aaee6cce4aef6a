"""Ranks that build different models, or train them by different rules, are told so on all ranks;
they do not train apart.
"""

import functools

import numpy
import pytest
from builders import small_gpt, token_batch

import shardkit as sk
from shardkit.nn import CrossEntropy, Sequential
from shardkit.testing.comm import check_same
from shardkit.testing.nn import Normal


def mean_square(prediction, y):
    return ((prediction - y) * (prediction - y)).mean()


def halved(rate, step):
    return rate / 2


GPT_CHANGES = {
    "width": {"width": 32},
    "heads": {"heads": 4},
    "layers": {"layers": 3},
    "seed": {"seed": 4},
    "style": {"style": "llama"},
    "dropout": {"dropout": 0.1},
    "dtype": {"dtype": "float64"},
    "tied": {"tied": True},
    "eps": {"norm_eps": 1e-4},
}
SETTINGS = {
    "max_gradient_norm": (1.0, None),
    "minimum_parameter_group_size": (64, 4096),
    "micro_batches": (1, 2),
    "seed": (0, 1),
    "schedule": ("1f1b", "gpipe"),
    "deterministic": (True, False),
    "gradient_compression": (None, "float16"),
    "overlap": (False, True),
    "compute_dtype": (None, "bfloat16"),
    "activation_checkpointing": (False, True),
    "auto_synchronize_gradients": (True, False),
    "stage_balance": ("compute", "uniform"),
    "loss": (None, CrossEntropy(ignore_index=-1)),
    "learning_rate": (0.01, 0.02),
    "check": (False, True),
    "optimizer": (sk.AdamW(lr=1e-3), sk.AdamW(lr=1e-4)),
}


def wrapped(schedule):
    """Return a schedule around another one, with its name."""
    return functools.wraps(schedule)(lambda step: schedule(step))


class Compiled:
    """A function as a compiler returns it: with its name, code and defaults, and no others."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.__code__ = function.__code__
        self.__defaults__ = function.__defaults__

    def __call__(self, step):
        return self.__wrapped__(step)


def keeping(seen):
    """Return a schedule that keeps the steps that it saw."""

    def schedule(step, seen=seen, *, rates=()):
        seen.append(step)
        return 0.1

    return schedule


def itself(step, me=None):
    """Return a rate, by a function that has itself as a default."""
    return 0.1


itself.__defaults__ = (itself,)
RULES = {
    "another rule": (sk.SGD(lr=1e-3), sk.Adam(lr=1e-3)),
    "another schedule": tuple(
        sk.AdamW(lr=sk.schedules.Cosine(1e-3, decay_steps=steps, floor=0.0)) for steps in (9, 10)
    ),
    "another function": (
        sk.SGD(lr=functools.partial(halved, 0.1)),
        sk.SGD(lr=functools.partial(halved, 0.2)),
    ),
    "another lambda": (sk.SGD(lr=lambda step: 0.1 / step), sk.SGD(lr=lambda step: 0.2 / step)),
    "another wrapped lambda": (
        sk.SGD(lr=wrapped(lambda step: 0.1 / step)),
        sk.SGD(lr=wrapped(lambda step: 0.2 / step)),
    ),
    "another default": tuple(sk.SGD(lr=lambda step, rate=rate: rate) for rate in (0.1, 0.2)),
}
# The same text is the same rule: lines and what stands around a function are a rank's own.
SAME_RULES = {
    "the same lambda": (
        sk.SGD(lr=lambda step: 0.1 if step in {"one", "two", 3} else 0.2),
        sk.SGD(lr=lambda step: 0.1 if step in {"one", "two", 3} else 0.2),
    ),
    "another name around it": tuple(sk.SGD(lr=lambda step: 0.1 * len(x)) for x in ("a", "b")),
    "of a wrapper": tuple(sk.SGD(lr=wrapped(lambda step: 0.1)) for _ in range(2)),
    "of what is compiled": tuple(sk.SGD(lr=Compiled(lambda step: 0.1)) for _ in range(2)),
    "what calls left in a default": tuple(sk.SGD(lr=keeping(seen)) for seen in ([], [1, 2])),
    "itself as a default": tuple(sk.SGD(lr=itself) for _ in range(2)),
}


def refused_on_all_ranks(build, match, ranks=3, odd=2):
    """build(backend, is_odd) raises the same ShardingError on all ranks; then they build the same
    together.
    """

    def run(backend):
        with pytest.raises(sk.ShardingError, match=match) as caught:
            build(backend, backend.rank == odd)
        assert build(backend, False).rank == backend.rank
        return str(caught.value)

    texts = sk.run_ranks(ranks, run, timeout=500)
    assert len(set(texts)) == 1 and f"on rank {odd}" in texts[0]
    return texts[0]


@pytest.mark.parametrize("name", GPT_CHANGES)
def test_another_model_on_one_rank_is_named(name):
    def build(backend, is_odd):
        return sk.FSDPModel(
            small_gpt(**GPT_CHANGES[name] if is_odd else {}), sk.ShardingConfiguration(backend)
        )

    refused_on_all_ranks(build, "on rank 2, but .* on ranks 0, 1")


@pytest.mark.parametrize("name", SETTINGS)
def test_another_setting_on_one_rank_is_named_with_both_values(name):
    def build(backend, is_odd):
        return sk.DDPModel(
            small_gpt(), sk.ShardingConfiguration(backend, **{name: SETTINGS[name][is_odd]})
        )

    text = refused_on_all_ranks(build, "checked mode" if name == "check" else f"^{name} is ")
    if name in ("micro_batches", "learning_rate", "schedule"):
        usual, other = map(repr, SETTINGS[name])
        assert text.startswith(f"{name} is {other} on rank 2, but {usual} on ranks 0, 1; ")


@pytest.mark.parametrize("name", RULES)
def test_another_rule_or_schedule_on_one_rank_is_named(name):
    def build(backend, is_odd):
        return sk.ZeRO1Model(
            small_gpt(), sk.ShardingConfiguration(backend, optimizer=RULES[name][is_odd])
        )

    refused_on_all_ranks(build, "^optimizer is ")


@pytest.mark.parametrize("name", SAME_RULES)
def test_functions_of_the_same_text_are_the_same_rule(name):
    def build(backend):
        rule = SAME_RULES[name][backend.rank]
        return sk.ZeRO1Model(small_gpt(), sk.ShardingConfiguration(backend, optimizer=rule)).rank

    assert sk.run_ranks(2, build) == [0, 1]


def test_another_lambda_as_loss_on_one_rank_is_named():
    losses = (lambda prediction, y: prediction.mean(), lambda prediction, y: prediction.sum())

    def build(backend, is_odd):
        config = sk.ShardingConfiguration(backend, loss=losses[is_odd])
        return sk.DDPModel(small_gpt(), config)

    assert "lambda> with code" in refused_on_all_ranks(build, "^loss is ")


class Noting:
    """A loss that keeps what its rank has seen."""

    def __init__(self, scale=1.0):
        self.scale, self.last, self.seen = scale, 0.0, []

    def __call__(self, prediction, y):
        loss = mean_square(prediction, y) * self.scale
        self.last = loss.item()
        self.seen.append(self.last)
        return loss


class NotingLoss(sk.nn.Loss, Noting):
    __call__ = sk.nn.Loss.__call__

    def total(self, prediction, y):
        return Noting.__call__(self, prediction, y) * self.count(y)

    def count(self, y):
        return len(y)


@pytest.mark.parametrize("kind", [Noting, NotingLoss])
def test_what_a_loss_has_seen_is_of_its_rank_alone(kind):
    """And is no other loss: in a later call, nor in the next model."""

    def run(backend):
        loss, x = kind(), numpy.full((2, 3), 1.0 + backend.rank)
        for config in ({"loss": loss}, {"loss": mean_square}):
            model = Sequential(sk.nn.Linear(3, 1))
            if config["loss"] is mean_square:
                model.loss = loss
            sharded = sk.DDPModel(model, sk.ShardingConfiguration(backend, **config))
            for _ in range(2):
                sharded.train(x, x[:, :1])
                sharded.compute_gradients(x, x[:, :1], loss=loss)
        return tuple(loss.seen)

    assert len({*sk.run_ranks(2, run)}) == 2

    def build(backend, is_odd):
        config = sk.ShardingConfiguration(backend, loss=kind(2.0 + is_odd))
        return sk.DDPModel(Sequential(sk.nn.Linear(3, 1)), config)

    refused_on_all_ranks(build, "^loss is .*scale=3.0")


def test_another_policy_on_one_rank_is_named():
    def build(backend, is_odd):
        return (sk.DDPModel if is_odd else sk.FSDPModel)(
            small_gpt(), sk.ShardingConfiguration(backend)
        )

    assert refused_on_all_ranks(build, "policy").startswith(
        "the policy is DDP on rank 2, but FSDP on ranks 0, 1; "
    )


def test_a_rank_of_a_pipeline_and_a_tensor_rank_that_differ_are_named():
    for mesh in ((2, 1), (1, 2)):

        def build(backend, is_odd):
            config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=64)
            model = sk.models.GPT(64, 8, width=32 if is_odd else 16, layers=2, heads=2)
            return sk.HybridShardedModel(model, config, *mesh)

        refused_on_all_ranks(
            build, "^the model's width is 32 on rank 1, but 16 on rank 0; ", ranks=2, odd=1
        )


def test_weights_of_ones_own_that_differ_between_ranks_are_refused():
    def build(backend, is_odd):
        model = Sequential(sk.nn.Linear(3, 2), sk.nn.Linear(2, 2))
        model.loss = mean_square
        model.finish(0)
        model.load_state_dict({**model.state_dict(), "1.bias": numpy.full(2, 1.0 + is_odd)})
        return sk.DDPModel(model, sk.ShardingConfiguration(backend))

    refused_on_all_ranks(build, r"^parameter 1.bias is \(2,\) float32.* checksum")


def test_an_initializer_that_differs_between_ranks_is_refused():
    def build(backend, is_odd):
        model = Sequential(sk.nn.Linear(3, 2, init=Normal(1.0 + is_odd)))
        model.loss = mean_square
        return sk.DDPModel(model, sk.ShardingConfiguration(backend))

    refused_on_all_ranks(build, r"^parameter 0.weight is .*std=2.0.* on rank 2, but .*std=1.0")


class Own(Sequential):
    loss = staticmethod(mean_square)


def test_a_module_of_ones_own_may_keep_what_is_of_one_rank_alone():
    def run(backend):
        model = Own(sk.nn.Linear(3, 2))
        model.rank = backend.rank
        return sk.DDPModel(model, sk.ShardingConfiguration(backend)).world_size

    assert sk.run_ranks(2, run) == [2, 2]


def test_what_is_no_model_on_one_rank_is_an_error_on_all():
    def run(backend):
        with pytest.raises(TypeError, match="FSDPModel needs an nn.Module"):
            sk.FSDPModel(None if backend.rank else small_gpt(), sk.ShardingConfiguration(backend))
        with pytest.raises(sk.ConfigurationError, match="policy = 'zero9'"):
            sk.HybridShardedModel(
                small_gpt(),
                sk.ShardingConfiguration(backend),
                policy="zero9" if backend.rank else "fsdp",
            )
        return sk.FSDPModel(small_gpt(), sk.ShardingConfiguration(backend)).world_size

    assert sk.run_ranks(2, run, timeout=500) == [2, 2]


# ---- what is passed later ------------------------------------------------------------------------


def refused_by(backend, act, match):
    model = sk.DDPModel(small_gpt(), sk.ShardingConfiguration(backend))
    before = model.gather_full_parameters()
    with pytest.raises(sk.ShardingError, match=match):
        act(model)
    assert (model.gather_full_parameters() == before).all()
    return model


def test_a_rule_a_vector_and_a_learning_rate_that_differ_between_ranks_are_refused():
    def run(backend):
        rank = backend.rank
        is_named = r"rule is SGD\(lr=1.1.* on rank 1, but SGD\(lr=0.1"
        model = refused_by(backend, lambda m: m.use_rule(sk.SGD(lr=0.1 + rank)), is_named)
        assert model.sharding_configuration.optimizer is None
        refused_by(
            backend,
            lambda m: m.set_parameters(m.get_parameters() + rank),
            "^the parameter vector is .* checksum",
        )
        refused_by(
            backend,
            lambda m: m.with_parameters(m.get_parameters() + rank),
            "^the parameter vector is ",
        )
        gradients = model.compute_gradients(*token_batch(0, 2))
        refused_by(
            backend,
            lambda m: m.apply_gradients(gradients, 0.1 + rank),
            "^learning_rate is 1.1 on rank 1, but 0.1",
        )

    sk.run_ranks(2, run, timeout=500)


def test_active_features_that_differ_between_ranks_are_refused():
    def run(backend):
        model = sk.DDPModel(sk.models.MLP([3, 4, 1]), sk.ShardingConfiguration(backend))
        with pytest.raises(
            sk.ShardingError, match=r"^active features is \[0, 1\] on rank 1, but \[0\] on rank 0"
        ):
            model.set_active_feature_indices([0, 1][: 1 + backend.rank])
        return model.get_active_feature_indices()

    assert sk.run_ranks(2, run, timeout=500) == [[0, 1, 2]] * 2


def test_an_optimizer_whose_rule_differs_between_ranks_is_refused():
    def run(backend):
        config = sk.ShardingConfiguration(backend)
        model = sk.FSDPModel(small_gpt(), config)
        with pytest.raises(sk.ShardingError, match="lr=1.0.* on rank 1"):
            sk.FSDPOptimizer(sk.SGD(lr=float(backend.rank)), config, model=model)
        assert (
            sk.FSDPOptimizer(sk.SGD(lr=0.5), config, model=model).model.train(*token_batch(0, 2))
            > 0
        )

    sk.run_ranks(2, run, timeout=500)


def test_equal_models_cost_one_short_message_to_compare():
    def run(backend):
        backend.traffic.reset()
        check_same(backend, {"seed": "0"})
        return dict(backend.traffic.calls), backend.traffic.bytes_sent

    for calls, sent in sk.run_ranks(2, run):
        assert calls == {"all_reduce": 1} and sent <= 16
