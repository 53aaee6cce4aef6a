"""A model without blocks() is gathered and released as its modules are called, with the bits of the
serial run; and no order of calls, and no error in the midst of them, makes a rank wait.
"""

from functools import cache

import numpy
import pytest
from builders import STRATEGIES, sha256
from called_models import WIDTH, Choosing, Odd, UNet, UNetLike, batch

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops
from shardkit.testing.base import errors
from shardkit.testing.parallel import device_of, units_of

MODELS = {"unet": UNetLike, "odd": Odd}


def made(strategy, model, backend, **settings):
    """Return a sharded model whose units are single modules, but for the smallest."""
    settings = {"minimum_parameter_group_size": 256, "optimizer": sk.AdamW(lr=1e-2), **settings}
    return STRATEGIES[strategy](model, sk.ShardingConfiguration(backend, **settings))


def trained(strategy, name, num_ranks, micro_batch, steps=2, **settings):
    """Return the SHA-256 of all parameters and buffers after some steps, and of a prediction."""

    def run(backend):
        settings_ = {"max_gradient_norm": 0.5, **settings}
        num = 24 // backend.world_size // micro_batch
        sharded = made(strategy, MODELS[name](), backend, micro_batches=num, **settings_)
        for step in range(steps):
            sharded.train(*sk.split_batch(sharded.mesh, *batch(step)))
        predicted = sharded.predict(batch(9)[0])
        values = [sharded.gather_full_parameters(), predicted]
        values += [b.array for b in sharded.wrapped_model.named_buffers().values()]
        return [sha256(numpy.ascontiguousarray(value)) for value in values]

    first, *others = sk.run_ranks(num_ranks, run)
    assert all(other == first for other in others)
    return first


@cache
def serial(name, micro_batch, **settings):
    return trained("DDP", name, 1, micro_batch, **settings)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_ranks, micro_batch", [(1, 3), (2, 3), (3, 2), (4, 3)])
def test_bits_are_those_of_one_rank(num_ranks, micro_batch, strategy, name):
    assert trained(strategy, name, num_ranks, micro_batch) == serial(name, micro_batch)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "settings",
    [
        {"activation_checkpointing": True},
        {"compute_dtype": "bfloat16"},
        {"overlap": True},
    ],
    ids=["recomputed", "mixed", "overlap"],
)
def test_bits_are_those_of_one_rank_with_other_settings(settings, name):
    plain = {key: value for key, value in settings.items() if key == "compute_dtype"}
    assert trained("FSDP", name, 2, 3, **settings) == serial(name, 3, **plain)


# ---- memory --------------------------------------------------------------------------------------


class Deep(nn.Module):
    """16 layers of 64 KiB with skip connections from the way down to the way up."""

    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.down = nn.ModuleList(nn.Linear(128, 128, bias=False) for _ in range(8))
        self.up = nn.ModuleList(nn.Linear(128, 128, bias=False) for _ in range(8))

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        for layer in self.up:
            x = layer(x + skips.pop())
        return x


class Chain(Deep):
    """The same layers one behind the other, as blocks."""

    def blocks(self):
        return [(f"{index}", layer) for index, layer in enumerate((*self.down, *self.up))]


def peaks(make, micro_batches=1, **settings):
    """Return the peaks of gathered parameters, of gradients on their way and of all but
    activations in a step on 4 ranks, and what lasts between steps, in bytes.
    """

    def run(backend):
        sharded = made("FSDP", make(), backend, overlap=False, **settings)
        accounts = device_of(sharded).accounts
        x = numpy.ones((2, 128), "float32")
        sharded.train(x, x)
        accounts.reset_peak()
        sharded.train(x, x)
        sharded.predict(x)
        return (
            accounts.peak_bytes("gathered parameters"),
            accounts.peak_bytes("gradients in flight"),
            accounts.peak_bytes() - accounts.peak_bytes("activations"),
            accounts.live_bytes("parameters", "gradients", "optimizer state"),
        )

    return sk.run_ranks(4, run)[0]


@pytest.mark.parametrize("settings", [{}, {"activation_checkpointing": True}], ids=str)
def test_the_peak_is_the_shard_and_the_largest_unit(settings):
    unit = 1 << 16
    gathered, in_flight, peak, lasting = peaks(Deep, **settings)
    assert lasting == 16 * unit  # weights, gradients and two moments, a quarter of each
    assert (gathered, in_flight) == (unit, unit)
    assert peak <= 1.1 * (lasting + 2 * unit)
    assert peak <= 1.01 * peaks(Chain)[2]


@pytest.mark.thorough
def test_a_unet_of_convolutions_needs_its_shard_and_the_largest_unit_twice():
    images = numpy.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype("float32")

    def run(backend, strategy):
        sharded = made(strategy, UNet(), backend, overlap=False, max_gradient_norm=0.5)
        part = sk.split_batch(sharded.mesh, images, images)
        sharded.train(*part)
        accounts = device_of(sharded).accounts
        accounts.reset_peak()
        sharded.train(*part)
        peak = accounts.peak_bytes() - accounts.peak_bytes("activations")
        lasting = accounts.live_bytes("parameters", "gradients", "optimizer state")
        largest = 4 * max(unit.layout.size for unit in units_of(sharded))
        return sha256(sharded.gather_full_parameters()), peak, lasting + 2 * largest

    (bits, peak, formula), (bits_of_ddp, *_) = [
        sk.run_ranks(4, lambda backend: run(backend, strategy))[0] for strategy in ("FSDP", "DDP")
    ]
    assert bits == bits_of_ddp and peak <= 1.01 * formula


def test_small_neighbors_are_merged_into_units_of_the_minimum():
    gathered, _, _, _ = peaks(Deep, minimum_parameter_group_size=3 * 128 * 128)
    assert gathered == 4 << 16  # 5 units of 3 layers, and the last layer joins the last of them


# ---- orders of calls, and errors -----------------------------------------------------------------


ORDERS = {"swapped": [1, 0, 2, 3], "fewer": [0, 1], "more": [0, 1, 2, 3, 2, 1], "none": []}


def step_with(sharded, order, act="train"):
    """Do this while the model calls its layers in the order."""
    sharded.wrapped_model.order = lambda: order
    x, y = sk.split_batch(sharded.mesh, *batch(0))
    return {"train": sharded.train, "predict": lambda x, y: sharded.predict(x)}[act](x, y)


@pytest.mark.parametrize("act", ["train", "predict"])
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_of_calls_that_differs_between_ranks_is_refused_on_all(order, act):
    def run(backend):
        sharded = made("FSDP", Choosing(), backend, micro_batches=2)
        step_with(sharded, range(4))
        before = sharded.gather_full_parameters()
        is_odd = backend.rank == backend.world_size - 1
        with pytest.raises(sk.ShardingError, match=r"data rank 2 .* layers\.\d\.weight"):
            step_with(sharded, ORDERS[order] if is_odd else range(4), act)
        assert (sharded.gather_full_parameters() == before).all()
        return numpy.isfinite(step_with(sharded, range(4))).all()

    assert all(sk.run_ranks(3, run, timeout=500))


def test_an_order_of_calls_may_differ_from_step_to_step():
    def run(backend, strategy="FSDP"):
        sharded = made(strategy, Choosing(), backend, micro_batches=6 // backend.world_size)
        for order in (range(4), ORDERS["swapped"], ORDERS["more"], ORDERS["fewer"]):
            step_with(sharded, order)
        return sha256(sharded.gather_full_parameters())

    assert len({*sk.run_ranks(3, run), *sk.run_ranks(1, run)}) == 1


@pytest.mark.parametrize(
    "error, told",
    [
        (ValueError("an odd number"), ValueError),
        (MemoryError("a large array"), sk.OutOfMemoryError),
        (AssertionError("not so"), (AssertionError, errors.PeerError)),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "where, act", [("forward", "train"), ("forward", "predict"), ("backward", "train")]
)
def test_what_a_module_raises_on_one_rank_is_raised_on_all_and_changes_nothing(
    where, act, error, told
):
    def run(backend):
        sharded = made("FSDP", Choosing(), backend, micro_batches=2)
        step_with(sharded, range(4))
        before = sharded.gather_full_parameters()
        layer = sharded.wrapped_model.layers[2]
        forward = layer.forward
        if backend.rank == 1:
            layer.forward = lambda x: fail(forward(x), error, where)
        with pytest.raises(told, match=str(error)):
            step_with(sharded, range(4), act)
        assert (sharded.gather_full_parameters() == before).all() and sharded.step_number == 1
        layer.forward = forward
        return numpy.isfinite(step_with(sharded, range(4))).all()

    assert all(sk.run_ranks(3, run, timeout=500))


@pytest.mark.parametrize(
    "is_wrong, result",
    [(lambda rank: True, "done"), (lambda rank: rank == 1, "ShardingError")],
    ids=["on all ranks", "on one"],
)
def test_errors_that_modules_catch_are_their_own_business_until_orders_differ(is_wrong, result):
    def run(backend):
        sharded = made("FSDP", Choosing(), backend)
        layers = sharded.wrapped_model.layers
        forward = layers[1].forward
        if is_wrong(backend.rank):
            layers[1].forward = lambda x: fail(forward(x), KeyError("x"), "forward")
        layers[0].forward = lambda x: attempt(
            layers[3], lambda x: x, attempt(layers[1], layers[2], x)
        )
        results = [outcome(lambda: step_with(sharded, [0])) for _ in range(2)]
        layers[1].forward = forward
        del layers[0].forward
        return *results, outcome(lambda: step_with(sharded, range(4)))

    assert sk.run_ranks(3, run, timeout=500) == [(result, result, "done")] * 3


def attempt(layer, other, x):
    """Return layer(x), or other(x) if that raises anything."""
    try:
        return layer(x)
    except Exception:
        return other(x)


def outcome(act):
    """Return "done", or the name of the error."""
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "done"


def fail(x, error, where):
    """Raise the error, or return x and raise it when its gradient is wanted."""

    def backward(gradient, wanted):
        raise error

    if where == "forward":
        raise error
    return nn.record(x.array.copy(), (x,), backward)


# ---- the rest of a model's life ------------------------------------------------------------------


def test_gradients_of_several_calls_are_accumulated():
    def run(backend, strategy):
        settings = {"micro_batches": 2, "max_gradient_norm": 0.5}
        settings["auto_synchronize_gradients"] = False
        sharded = made(strategy, UNetLike(), backend, **settings)
        for call in range(2):
            sharded.train(*sk.split_batch(sharded.mesh, *batch(call)))
        sharded.synchronize_gradients()
        sharded.step()
        return sha256(sharded.gather_full_parameters())

    results = [sk.run_ranks(2, lambda b: run(b, strategy)) for strategy in ("FSDP", "DDP")]
    assert results[0] == results[1]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("compute_dtype", [None, "bfloat16"])
def test_between_programs_nothing_is_readable_and_copies_train_on_alike(compute_dtype):
    def run(backend):
        sharded = made("FSDP", UNetLike(), backend, compute_dtype=compute_dtype)
        sharded.train(*batch(0))
        copied = sharded.deep_copy()
        for each in (sharded, copied):
            each.train(*batch(1))
            assert all(p.is_released for p in each.wrapped_model.parameters())
            assert str(each.wrapped_model.middle.weight.dtype) == "float32"
        with pytest.raises(sk.ShardingError, match="was released"):
            sharded.wrapped_model.middle.weight.array
        return sha256(sharded.gather_full_parameters()), sha256(copied.gather_full_parameters())

    (one, other), *_ = sk.run_ranks(2, run)
    assert one == other


def test_a_checkpoint_goes_from_one_policy_and_number_of_ranks_to_another(tmp_path):
    def save(backend):
        sharded = made("FSDP", Odd(), backend)
        sharded.train(*batch(0))
        sharded.save_model(tmp_path)
        sharded.train(*sk.split_batch(sharded.mesh, *batch(1)))
        return sharded.gather_full_parameters()

    def load(backend):
        sharded = made("ZeRO-1", Odd(), backend)
        sharded.load_model(tmp_path)
        sharded.train(*sk.split_batch(sharded.mesh, *batch(1)))
        return sharded.gather_full_parameters()

    saved, loaded = sk.run_ranks(2, save)[0], sk.run_ranks(3, load)[0]
    assert abs(saved - loaded).max() < 1e-6


class Residual(nn.Module):
    """Two layers with a way around them."""

    def __init__(self):
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype="float64")
        self.down = nn.Linear(2 * WIDTH, WIDTH, dtype="float64")

    def forward(self, x):
        return x + self.down(ops.tanh(self.up(x)))


class Residuals(nn.Module):
    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.parts = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x):
        return self.parts[2](self.parts[1](self.parts[0](x)))


@pytest.mark.parametrize("policy", ["fsdp", "zero1"])
def test_a_tensor_plan_cuts_layers_that_are_gathered_by_calls(policy):
    def run(backend, tensor=1):
        plan = {"parts.*.up": "column", "parts.*.down": "row"}
        settings = {"tensor_plan": plan} if tensor > 1 else {}
        config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=256, **settings)
        sharded = sk.HybridShardedModel(Residuals(), config, 1, tensor, policy=policy)
        for step in range(3):
            sharded.train(*sk.split_batch(sharded.mesh, *batch(step, dtype="float64")))
        return sharded.gather_full_parameters()

    alone = sk.run_ranks(1, run)[0]
    assert abs(sk.run_ranks(4, lambda backend: run(backend, 2))[0] - alone).max() < 1e-12


# ---- pipelines -----------------------------------------------------------------------------------


def test_a_pipeline_of_a_model_without_blocks_is_refused_with_how_to_give_them():
    def run(backend):
        with pytest.raises(errors.StagesError, match=r"def blocks\(self\): return"):
            sk.HybridShardedModel(UNetLike(), sk.ShardingConfiguration(backend), 2)
        return True

    assert all(sk.run_ranks(2, run))


def stages_of(num_ranks, **settings):
    def run(backend):
        model = sk.models.MLP([4, 4, 4, 4, 4], seed=1)
        config = sk.ShardingConfiguration(backend, micro_batches=4, **settings)
        sharded = sk.HybridShardedModel(model, config, num_ranks)
        rng = numpy.random.default_rng(0)
        sharded.train(*rng.standard_normal((2, 8, 4)).astype("float32"))
        return sharded.gather_full_parameters()

    return sk.run_ranks(num_ranks, run)[0]


def test_a_small_model_has_a_unit_for_each_stage_whatever_the_minimum():
    assert (stages_of(4) == stages_of(2)).all()


def test_where_bits_depend_on_the_units_the_minimum_is_asked_for():
    with pytest.raises(errors.StagesError, match=r"set it to (\d+), on every mesh .* clips"):
        stages_of(4, max_gradient_norm=1.0)
