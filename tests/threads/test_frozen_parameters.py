"""Frozen parameters keep their bits, and own no gradient, no state and no step, on any mesh."""

from math import prod

import numpy
import pytest
from builders import STRATEGIES, full_gradient, hsdp, sha256, small_gpt, token_batch

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import gradient_norm_of, program_of, stages_of, units_of

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def hybrid(pipeline, tensor=1, policy="fsdp"):
    return lambda model, config: sk.HybridShardedModel(
        model, config, pipeline, tensor, policy=policy
    )


MESHES = {  # ranks, maker, other settings
    "ddp": (2, sk.DDPModel, {}),
    "zero1": (4, sk.ZeRO1Model, {}),
    "zero2": (2, sk.ZeRO2Model, {}),
    "fsdp": (4, sk.FSDPModel, {"activation_checkpointing": True}),
    "hsdp": (4, hsdp, {}),
    "pipeline": (2, hybrid(2), {}),
    "pipeline of 3": (3, hybrid(3), {}),
    "pipeline x fsdp": (4, hybrid(2), {"schedule": "zb-h1"}),
}
CHOICES = {  # patterns of what is frozen, changes to the model
    "first units": (("embedding.*", "blocks.0.*"), {}),
    "parts of units": (("*.bias", "*norm*"), {}),
    "tied": (("embedding.tokens.weight",), {"tied": True}),
    "beside tied": (("embedding.positions.weight", "blocks.1.*"), {"tied": True}),
    "all but the end": (("embedding.*", "blocks.*"), {}),
}


def trained(backend, maker, frozen, model=None, steps=2, optimizer=None, **settings):
    config = sk.ShardingConfiguration(
        backend,
        **{
            "optimizer": optimizer or sk.AdamW(lr=1e-2, weight_decay=0.1),
            "max_gradient_norm": 0.1,
            "minimum_parameter_group_size": 64,
            "frozen": frozen,
            "micro_batches": 4,
            **settings,
        },
    )
    sharded = maker(model or small_gpt(), config)
    for step in range(steps):
        sharded.train(*sk.split_batch(sharded.mesh, *token_batch(step, 16)))
    return sharded


def result_on(num_ranks, maker, frozen, changes={}, **settings):
    """Return SHA-256 of the parameters and the gradient norm, on which all ranks agree."""

    def run(backend):
        num_replicas = 4 // settings["micro_batches"]
        model = trained(backend, maker, frozen, small_gpt(**changes), **settings)
        assert model.mesh.size("data") == num_replicas
        return sha256(model.get_parameters()), gradient_norm_of(model)

    results = set(sk.run_ranks(num_ranks, run))
    assert len(results) == 1
    return results.pop()


@pytest.fixture(scope="module")
def serial():
    """What each choice comes to on one rank."""
    return {
        name: result_on(1, sk.DDPModel, frozen, changes, micro_batches=4)
        for name, (frozen, changes) in CHOICES.items()
    }


@pytest.mark.strength(1)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.thorough(but=3)
def test_the_trained_bits_and_the_norm_do_not_depend_on_the_mesh(serial, mesh, choice):
    num_ranks, maker, settings = MESHES[mesh]
    replicas = 1 if num_ranks == 3 or mesh == "pipeline" else num_ranks // (1 + ("x" in mesh))
    frozen, changes = CHOICES[choice]
    result = result_on(num_ranks, maker, frozen, changes, micro_batches=4 // replicas, **settings)
    assert result == serial[choice]


def by_name(model):
    """Return {name: values} of all parameters. Collective."""
    vector, at, values = model.get_parameters(), 0, {}
    for name, parameter in model.wrapped_model.named_parameters().items():
        size = prod(parameter.global_shape)
        values[name] = vector[at : at + size]
        at += size
    return values


RULES = {
    "sgd": sk.SGD(lr=0.1, weight_decay=0.1),
    "momentum": sk.Momentum(lr=0.1, weight_decay=0.1),
    "adam": sk.Adam(lr=1e-2, weight_decay=0.1),
    "adamw": sk.AdamW(lr=1e-2, weight_decay=0.1),
    "lion": sk.Lion(lr=1e-2, weight_decay=0.1),
    "ema": sk.EMA(sk.AdamW(lr=1e-2, weight_decay=0.1), decay=0.9),
}


@pytest.mark.strength(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("maker", [sk.FSDPModel, hybrid(2), hybrid(1, 2)], ids=["fsdp", "p", "t"])
@pytest.mark.thorough(but=3)
def test_frozen_weights_keep_their_bits_over_five_steps_and_all_others_move(rule, maker):
    frozen = ("embedding.*", "blocks.0.*", "*norm*")

    def run(backend):
        model = trained(backend, maker, frozen, steps=0, optimizer=RULES[rule], micro_batches=1)
        before = by_name(model)
        for step in range(5):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 4)))
        after = by_name(model)
        held = {n for n, p in model.wrapped_model.named_parameters().items() if not p.requires_grad}
        assert held and {n for n in before if (before[n] == after[n]).all()} == held

    sk.run_ranks(2, run)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("maker", [sk.FSDPModel, sk.ZeRO2Model, sk.DDPModel], ids=str)
def test_gradients_of_the_trained_equal_those_of_one_backward(maker, num_ranks):
    x, y = token_batch(0)
    plain = small_gpt(dtype="float64")
    frozen = plain.freeze("blocks.0.*", "*.bias")
    plain.loss(plain(nn.Tensor(x)), y).backward()
    assert all(plain.named_parameters()[name].grad is None for name in frozen)
    expected = numpy.concatenate(
        [p.grad.ravel() if p.requires_grad else numpy.zeros(p.size) for p in plain.parameters()]
    )

    def run(backend):
        model = trained(
            backend, maker, tuple(frozen), small_gpt(dtype="float64"), 0, micro_batches=1
        )
        return full_gradient(model, *sk.split_batch(model.mesh, x, y))

    for gradient in sk.run_ranks(num_ranks, run):
        numpy.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)


@EVERY_STRATEGY
def test_a_frozen_half_has_no_bytes_of_state_and_gradients_and_is_not_reduced(strategy):
    """The bytes are those of the arrays that units keep after a step's gradients are there."""

    def run(backend, frozen):
        model = trained(backend, STRATEGIES[strategy], frozen, steps=1, micro_batches=1)
        model.compute_gradients(*sk.split_batch(model.mesh, *token_batch(0, 16)))
        units = units_of(model)
        kept = [state.kept for unit in units for state in unit.optimizer.state.values()]
        gradients = [unit.gradients.updated for unit in units if unit.gradients is not None]
        kinds = ("REDUCE", "STEP", "BEGIN_REDUCE")
        acts = [a for a in program_of(model) if a.kind.name in kinds]
        at = [(place.stage, place.unit) for place in stages_of(model).frozen]
        assert not [a for a in acts if (a.stage, a.unit) in at]
        return sum(a.nbytes for a in kept), sum(a.nbytes for a in gradients)

    def total(frozen):
        return numpy.sum(sk.run_ranks(2, lambda backend: run(backend, frozen)), axis=0)

    model = small_gpt()
    held = sum(p.size for n, p in model.named_parameters().items() if n.startswith("blocks"))
    copies = numpy.array({"DDP": (2, 2), "ZeRO-1": (1, 1)}.get(strategy, (1, 1)))
    expected = 4 * held * copies * (2, 1)
    numpy.testing.assert_array_equal(total(()) - total(("blocks.*",)), expected)


class Tower(nn.Module):
    """A model without blocks(), whose modules gather their parameters when they are called."""

    def __init__(self):
        self.first, self.second = nn.Linear(6, 32), nn.Linear(32, 32)
        self.norm, self.last = nn.LayerNorm(32), nn.Linear(32, 3)
        self.loss = nn.MeanSquaredError()

    def forward(self, x):
        return self.last(self.norm(self.second(nn.ops.gelu(self.first(x)))))


@pytest.mark.parametrize("frozen", [("first.*",), ("second.weight", "norm.*"), ("last.*",)])
def test_a_model_that_is_gathered_by_calls_trains_to_the_serial_bits(frozen):
    x = numpy.random.default_rng(0).normal(size=(8, 6)).astype("float32")

    def run(backend, maker):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=1e-2, weight_decay=0.1),
            max_gradient_norm=0.1,
            minimum_parameter_group_size=16,
            frozen=frozen,
            micro_batches=4 // backend.world_size,
        )
        model = maker(Tower().finish(1), config)
        before = by_name(model)
        for _ in range(4):
            model.train(*sk.split_batch(model.mesh, x, x[:, :3]))
        after = by_name(model)
        still = {name for name in before if (before[name] == after[name]).all()}
        assert still == {n for n, p in Tower().named_parameters().items() if matches(n, frozen)}
        return sha256(model.get_parameters())

    runs = [(1, sk.DDPModel), (2, sk.DDPModel), (2, sk.FSDPModel), (4, sk.FSDPModel)]
    bits = [set(sk.run_ranks(n, lambda backend: run(backend, maker))) for n, maker in runs]
    assert all(each == bits[0] for each in bits) and len(bits[0]) == 1


def matches(name, patterns):
    return any(
        name == pattern or name.startswith(pattern.removesuffix("*")) for pattern in patterns
    )


FROZEN = ("embedding.*", "*.bias")


@pytest.mark.thorough
def test_a_checkpoint_goes_on_on_another_mesh_to_the_same_bits(tmp_path):
    def first(backend):
        model = trained(backend, sk.FSDPModel, FROZEN, steps=3, micro_batches=2)
        model.save_model(str(tmp_path))
        return sha256(train_on(model))

    def train_on(model):
        for step in range(3, 6):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 16)))
        return model.get_parameters()

    def second(backend):
        model = trained(backend, hybrid(2), FROZEN, steps=0, micro_batches=4)
        report = model.load_model(str(tmp_path))
        assert not report["missing_state"]
        return sha256(train_on(model))

    assert len({*sk.run_ranks(2, first), *sk.run_ranks(2, second)}) == 1


@pytest.mark.filterwarnings("ignore:.*written under")
@pytest.mark.parametrize(
    "there, here, missing",
    [
        ((), FROZEN, []),  # what is frozen now leaves its state out
        (FROZEN, (), ["first_moment", "second_moment"]),  # what thaws has none: all begins at zero
        (FROZEN, ("embedding.*",), ["first_moment", "second_moment"]),
    ],
)
def test_a_run_goes_on_with_other_parameters_frozen(tmp_path, there, here, missing):
    def run(backend):
        model = trained(backend, sk.FSDPModel, there, steps=2, micro_batches=2)
        model.save_model(str(tmp_path))
        other = trained(backend, sk.ZeRO1Model, here, steps=0, micro_batches=2)
        assert other.load_model(str(tmp_path))["missing_state"] == missing
        numpy.testing.assert_array_equal(other.get_parameters(), model.get_parameters())
        held = [n for n, p in other.wrapped_model.named_parameters().items() if not p.requires_grad]
        before = by_name(other)
        other.train(*sk.split_batch(other.mesh, *token_batch(5, 16)))
        after = by_name(other)
        assert [name for name in before if (before[name] == after[name]).all()] == held
        return True

    assert all(sk.run_ranks(2, run))


def test_averages_of_frozen_weights_are_the_weights(tmp_path):
    def run(backend):
        rule = sk.EMA(sk.AdamW(lr=1e-2), decay=0.5)
        model = trained(backend, sk.FSDPModel, FROZEN, optimizer=rule, micro_batches=2)
        weights = by_name(model)
        with model.with_averaged_parameters():
            averages = by_name(model)
        model.save_model(str(tmp_path))
        same = {name for name in weights if (weights[name] == averages[name]).all()}
        frozen = {n for n, p in model.wrapped_model.named_parameters().items() if p.requires_grad}
        assert same == weights.keys() - frozen
        return averages

    averages = sk.run_ranks(2, run)[0]
    loaded = sk.load(str(tmp_path), averaged=True)
    for name, parameter in loaded.named_parameters().items():
        numpy.testing.assert_array_equal(parameter.numpy().ravel(), averages[name])


def test_copies_and_images_stay_frozen():
    def run(backend):
        model = trained(backend, sk.FSDPModel, FROZEN, micro_batches=2)
        other = trained(backend, hybrid(2, policy="zero1"), FROZEN, steps=0, micro_batches=4)
        other.deserialize(model.serialize())
        copied = model.deep_copy()
        for each in (model, copied, other):
            each.train(*sk.split_batch(each.mesh, *token_batch(7, 16)))
        return {sha256(each.get_parameters()) for each in (model, copied, other)}

    assert all(len(bits) == 1 for bits in sk.run_ranks(2, run))


def test_gradients_by_hand_are_those_of_what_is_trained():
    def run(backend):
        models = [trained(backend, hybrid(2), ("embedding.*", "blocks.0.*"), steps=0)] * 1
        models.append(trained(backend, hybrid(2), ("embedding.*", "blocks.0.*"), steps=0))
        batch = sk.split_batch(models[0].mesh, *token_batch(0, 16))
        models[1].apply_gradients(models[0].compute_gradients(*batch), 0.1)
        models[0].apply_gradients(models[0].compute_gradients(*batch), 0.1)
        with pytest.raises(sk.ShardingError, match="no synchronized gradients"):
            models[0].step()
        return [sha256(model.get_parameters()) for model in models]

    for first, second in sk.run_ranks(2, run):
        assert first == second


def test_what_cannot_be_frozen_is_refused_on_all_ranks():
    def run(backend):
        with pytest.raises(sk.ShardingError, match="all .* parameters of GPT are frozen"):
            trained(backend, sk.FSDPModel, ("*",))
        with pytest.raises(sk.ConfigurationError, match="'block.0' matches no parameter"):
            trained(backend, sk.FSDPModel, ("block.0",))
        model = trained(backend, sk.FSDPModel, ("embedding.*",), micro_batches=1)
        parameters = model.wrapped_model.named_parameters()
        with pytest.raises(sk.ShardingError, match="blocks.0.* cannot become False"):
            parameters["blocks.0.mlp.up.weight"].requires_grad = False
        with pytest.raises(sk.ShardingError, match="cannot become True"):
            parameters["embedding.tokens.weight"].requires_grad = True
        with pytest.raises(sk.ShardingError, match="same"):
            trained(backend, sk.FSDPModel, ("embedding.*",) if backend.rank else ("head.*",))
        return model.train(*sk.split_batch(model.mesh, *token_batch(0, 16)))

    assert len(set(sk.run_ranks(2, run))) == 1
