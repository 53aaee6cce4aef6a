"""Whole models whose samples several ranks share, on meshes of threads, against one rank: losses,
weights, predictions and figures to 1e-10 in float64.
"""

from contextlib import nullcontext
from itertools import product

import numpy
import pytest

import shardkit as sk
from shardkit import models, nn
from shardkit.testing.nn import RMSE
from shardkit.testing.parallel import SampleParts, gradient_norm_of

TOLERANCE = 1e-10
F64 = {"dtype": "float64"}
STEPS = 2


@nn.partwise
class Skip(nn.Module):
    def __init__(self, inside):
        self.inside = inside

    def forward(self, x):
        return nn.ops.relu(x + self.inside(x))


def net(dtype="float64"):
    """A net of convolutions whose number of rows, 23, no rank count divides."""
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=2, padding_mode="circular", dtype=dtype),
        Skip(
            nn.Sequential(
                nn.BatchNorm1d(8, dtype=dtype), nn.Conv1d(8, 8, 3, padding=1, dtype=dtype)
            )
        ),
        nn.Dropout(0.2),
        nn.MaxPool1d(3, stride=2, padding=1),
        nn.ConvTranspose1d(8, 4, 3, stride=2, padding=1, dtype=dtype),
        nn.Conv1d(4, 3, 1, dtype=dtype),
    )


def tokens():
    return nn.Sequential(
        nn.Embedding(17, 12, **F64),
        nn.LayerNorm(12, **F64),
        nn.FeedForward(12, 24, **F64),
        nn.Dropout(0.2),
        nn.Linear(12, 17, **F64),
    )


def texts():
    """Return the ends of a GPT: tokens, learned positions and dropout; a norm, and logits."""
    gpt = models.GPT(17, 11, width=12, layers=1, heads=2, dropout=0.2, **F64)
    return nn.Sequential(gpt.embedding, nn.FeedForward(12, 24, dropout=0.1, **F64), gpt.head)


def patches():
    """Return a ViT that says something of each token: ranks share rows of x, and tokens of y."""
    vit = models.ViT((10, 6), 2, 2, 5, width=8, depth=1, heads=2, dropout=0.2, **F64)
    return nn.Sequential(vit.embedding, *vit.layers, nn.Linear(8, 3, **F64))


def normal(*shape):
    return lambda rng, n: rng.normal(size=(n, *shape))


def numbers(below, *shape):
    return lambda rng, n: rng.integers(0, below, (n, *shape))


def edges(nodes=13, count=40):
    """Return senders and receivers: each node hears of others that lie anywhere."""
    return numpy.random.default_rng(4).integers(0, nodes, (2, count))


class Sensor(nn.Module):
    """Attention of readings to themselves and to what came before, without positions."""

    def __init__(self):
        self.lift = nn.Linear(3, 8, **F64)
        self.past = nn.MultiheadAttention(8, 2, batch_first=True, **F64)
        self.layer = nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=True, **F64)
        self.down = nn.Linear(8, 2, **F64)

    def forward(self, x):
        x = self.lift(x)
        x = x + self.past(x, x, x, need_weights=False, is_causal=True)[0]
        return self.down(self.layer(x))


nn.partwise(Sensor)


# {model: (how it is made, x, y, loss or None)}
MODELS = {
    "UNet 2-D": (
        lambda: models.UNet(2, 1, dims=2, width=8, depth=2, groups=2, seed=3, **F64),
        *(normal(2, 20, 8), normal(1, 20, 8), None),
    ),
    "UNet 3-D": (
        lambda: models.UNet(1, 2, dims=3, width=4, depth=1, groups=2, seed=3, **F64),
        *(normal(1, 10, 4, 6), normal(2, 10, 4, 6), None),
    ),
    "ResNet": (
        lambda: models.ResNet(2, 5, (1, 1), width=8, seed=3, **F64),
        *(normal(2, 34, 9), numbers(5), None),
    ),
    "ViT 2-D": (
        lambda: models.ViT((10, 6), 2, 2, 5, width=8, depth=2, heads=2, dropout=0.2, **F64),
        *(normal(2, 10, 6), numbers(5), None),
    ),
    "ViT 1-D": (
        lambda: models.ViT((12,), 3, 1, 3, width=12, depth=1, heads=4, **F64),
        *(normal(1, 12), numbers(3), None),
    ),
    "patches": (patches, normal(2, 10, 6), normal(16, 3), nn.MSELoss()),
    "a net": (net, normal(2, 23), normal(3, 23), nn.MSELoss()),
    "classes of rows": (net, normal(2, 23), numbers(3, 23), nn.CrossEntropyLoss()),
    "tokens": (tokens, numbers(17, 11), numbers(17, 11), nn.CrossEntropy()),
    "texts": (texts, numbers(17, 11), numbers(17, 11), nn.CrossEntropy()),
    "GPT": (
        lambda: models.GPT(17, 11, width=12, layers=2, heads=4, dropout=0.2, tied=True, **F64),
        *(numbers(17, 11), numbers(17, 11), None),
    ),
    "Llama": (
        lambda: models.GPT(17, 16, 16, 2, 4, kv_heads=2, style="llama", qk_norm="head", **F64),
        *(numbers(17, 11), numbers(17, 11), None),
    ),
    "sensor": (Sensor, normal(11, 3), normal(11, 2), nn.MSELoss()),
    "LSTM": (
        lambda: models.LSTM(3, 2, width=6, layers=2, dropout=0.2, **F64),
        *(normal(11, 3), normal(2), None),
    ),
    "LSTM of steps": (
        lambda: models.LSTM(3, 2, width=6, layers=2, readout="steps", **F64),
        *(normal(11, 3), normal(11, 2), None),
    ),
    "FNO 1-D": (
        lambda: models.FNO(2, 1, (4,), width=6, layers=2, **F64),
        *(normal(2, 15), normal(1, 15), None),
    ),
    "FNO 2-D": (
        lambda: models.FNO(1, 2, (3, 3), width=6, layers=2, **F64),
        *(normal(1, 11, 8), normal(2, 11, 8), nn.MSELoss()),
    ),
    "mesh": (
        lambda: models.MessagePassing(3, 2, *edges(), width=8, steps=2, **F64),
        *(normal(13, 3), normal(13, 2), None),
    ),
    "mesh, summed": (
        lambda: models.MessagePassing(3, 2, *edges(), width=8, steps=2, readout="sum", **F64),
        *(normal(13, 3), normal(2), None),
    ),
    "MLP of tokens": (
        lambda: models.MLP([5, 16, 8, 3], seed=3, **F64),
        *(normal(11, 5), normal(11, 3), None),
    ),
}
SAMPLES = 8
LOOKING = [
    "ViT 2-D",
    "GPT",
    "Llama",
    "LSTM",
    "FNO 1-D",
    "mesh",
]  # their layers look along all of a sample


def batch(name, step):
    _, x, y, _ = MODELS[name]
    rng = numpy.random.default_rng(step)
    return x(rng, SAMPLES), y(rng, SAMPLES)


def train(backend, name, policy="ddp", config=None, *, steps=STEPS, **sizes):
    """Return what some steps leave: losses, weights, a prediction, figures, buffers."""
    make, _, _, loss = MODELS[name]
    wrapped = make()
    wrapped.finish(3)
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.SGD(lr=0.05, momentum=0.9),
        loss=loss,
        seed=7,
        max_gradient_norm=1.0,
        micro_batches=2,
        minimum_parameter_group_size=64,
        **(config or {}),
    )
    model = sk.HybridShardedModel(wrapped, config, policy=policy, **sizes)
    losses = [model.train(*sk.split_batch(model.mesh, *batch(name, step))) for step in range(steps)]
    x, y = batch(name, steps)
    mine, own_y = sk.split_batch(model.mesh, x, y)
    prediction = model.predict(mine)
    with model.evaluation({"rmse": RMSE()} if y.dtype.kind == "f" else {}) as measured:
        measured.add(mine, own_y)
    found = {
        "losses": numpy.array(losses),
        "weights": model.get_parameters(),
        "figures": numpy.array([measured.loss, measured.samples, *measured.metrics.values()]),
        "norm": numpy.array([gradient_norm_of(model)]),
    }
    part = model.mesh.sample_part[0]
    model.close()
    return found, part, prediction


ALONE: dict = {}


def alone(name, data, steps):
    """Return what one rank computes, with as many micro-batches as `data` ranks have in all."""
    key = name, data, steps
    if key not in ALONE:
        ALONE[key] = sk.run_ranks(data, lambda backend: train(backend, name, steps=steps))
    return ALONE[key]


def check(name, data, policy, config=None, *, steps=STEPS, **sizes):
    """Compare training with domain ranks to the same data ranks without them."""
    num_ranks = data * numpy.prod([*sizes.values()]).item()
    sizes = {f"{axis}_parallel_size": size for axis, size in sizes.items()}
    wanted = alone(name, data, steps)
    for found, part, prediction in sk.run_ranks(
        num_ranks, lambda backend: train(backend, name, policy, config, steps=steps, **sizes)
    ):
        for what, value in wanted[part][0].items():
            scale = max(numpy.abs(value).max(), 1e-3)
            assert numpy.abs(found[what] - value).max() <= TOLERANCE * scale, what
        assert prediction.shape == wanted[part][2].shape
        assert numpy.abs(prediction - wanted[part][2]).max() <= TOLERANCE * 10


@pytest.mark.strength(1)
@pytest.mark.parametrize("domain", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_on_one_rank(name, domain):
    check(name, 1, "ddp", domain=domain)


@pytest.mark.thorough(but=1)
@pytest.mark.strength(1)
@pytest.mark.parametrize("policy", ["fsdp", "zero2", "zero1", "ddp"])
@pytest.mark.parametrize(
    "name", ["UNet 2-D", "ResNet", "a net", "tokens", "GPT", "FNO 1-D", "mesh"]
)
def test_policies_shard_over_data_and_domain_together(name, policy):
    check(name, 2, policy, domain=2)


@pytest.mark.thorough
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_ranks_share_a_copy(groups):
    check("UNet 2-D", 2, "hsdp", {"shard_ranks": groups}, domain=2)


@pytest.mark.parametrize("name", ["ResNet", "a net", "tokens", "MLP of tokens", *LOOKING])
def test_stages_work_on_parts(name):
    check(name, 1, "fsdp", domain=2, pipeline=2)


@pytest.mark.parametrize("name", ["a net", "LSTM"])
def test_gradients_of_weights_wait_where_those_of_inputs_go_on(name):
    check(name, 1, "ddp", {"schedule": "zb-h1"}, domain=2, pipeline=2)


MESHES = {2: "zero1", 3: "fsdp", 4: "zero2"}


@pytest.mark.strength(1)
@pytest.mark.parametrize("domain", MESHES)
@pytest.mark.parametrize("name", LOOKING)
def test_data_and_stages_stand_beside_ranks_that_look_along_samples(name, domain):
    check(name, 2, MESHES[domain], domain=domain, pipeline=2)


@pytest.mark.parametrize("name", ["MLP of tokens", "GPT", "Llama"])
def test_tensor_ranks_share_layers_of_parts(name):
    check(name, 1, "fsdp", domain=3, tensor=2)


SWEPT = ["UNet 2-D", "UNet 3-D", "ResNet", "ViT 2-D", "FNO 2-D", "GPT", "Llama", "LSTM", "mesh"]
WITHOUT_STAGES = ("UNet 2-D", "UNet 3-D")  # skips go round their blocks
WITH_TENSOR_PLANS = ("ViT 2-D", "GPT", "Llama")
POLICIES = ["ddp", "zero1", "zero2", "fsdp"]


def swept():
    """Yield (model, policy, sizes), each policy with some sizes of each model."""
    for name in SWEPT:
        stages = (1,) if name in WITHOUT_STAGES else (1, 2)
        tensors = (1, 2) if name in WITH_TENSOR_PLANS else (1,)
        sizes = product((2, 3, 4), (1, 2), stages, tensors)
        for number, each in enumerate(sizes):
            yield name, POLICIES[(number + number // 4) % 4], each


@pytest.mark.sweep
@pytest.mark.parametrize("name, policy, sizes", list(swept()))
def test_twenty_steps_beside_every_axis_equal_those_of_one_rank(name, policy, sizes):
    domain, data, pipeline, tensor = sizes
    check(name, data, policy, steps=20, domain=domain, pipeline=pipeline, tensor=tensor)


PLANS = {
    "a part, and the whole": {"1": "column", "3": "row"},
    "by name": {"1": "column", "2": "column_dropout", "3": "row", "4": "whole_dropout"},
    "in a region": {"0": "vocabulary", "1": "column", "3": "row", "5": "region"},
}
FORWARD = {"5.up": "column", "5.down": "row"}


@pytest.mark.strength(1)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("domain, tensor", [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_dropouts_and_copies_are_those_of_one_rank_on_tensor_ranks_too(plan, domain, tensor):
    rng = numpy.random.default_rng(5)
    ids, y = rng.integers(0, 18, (4, 11)), rng.integers(0, 6, (4, 11))

    def on_rank(backend, **how):
        wrapped = nn.Sequential(
            nn.Embedding(18, 6, **F64),
            nn.Linear(6, 12, **F64),
            nn.Dropout(0.3),
            nn.Linear(12, 6, **F64),
            nn.Dropout(0.2),
            nn.FeedForward(6, 12, dropout=0.1, **F64),
        )
        wrapped.finish(3)
        config = sk.ShardingConfiguration(
            backend, loss=nn.CrossEntropy(), seed=7, micro_batches=2, **how
        )
        data = {"tensor_parallel_size": tensor, "domain_parallel_size": domain}
        model = sk.HybridShardedModel(wrapped, config, **(data if how else {}))
        losses = [model.train(ids, y)]
        copy = model.deep_copy()
        losses += [model.train(ids, y), copy.train(ids, y)]
        found = losses, vector(model), vector(copy), copy.predict(ids)
        for each in (copy, model):
            each.close()
        return found

    wanted = sk.run_ranks(1, on_rank)[0]
    how = {"tensor_plan": PLANS[plan] | FORWARD}
    for result in sk.run_ranks(domain * tensor, lambda backend: on_rank(backend, **how)):
        for found in zip(wanted, result):
            assert numpy.abs(numpy.subtract(*found)).max() < TOLERANCE


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ["UNet 2-D", "a net", "ResNet", *LOOKING])
def test_blocks_are_computed_again_on_parts(name):
    check(name, 2, "fsdp", {"activation_checkpointing": True}, domain=2)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "name, data",
    [(name, (4, 2)[turn % 2]) for turn, name in enumerate(["a net", "ResNet", "tokens", *LOOKING])],
)
def test_bits_do_not_depend_on_data_and_stages_beside_the_same_domain_ranks(name, data):
    """Eight samples in micro-batches of two."""

    def on_rank(backend, **sizes):
        make, _, _, loss = MODELS[name]
        wrapped = make()
        wrapped.finish(3)
        data = backend.world_size // numpy.prod([*sizes.values()]).item()
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=0.01),
            loss=loss,
            seed=7,
            max_gradient_norm=1.0,
            micro_batches=4 // data,
            minimum_parameter_group_size=64,
        )
        sizes = {f"{axis}_parallel_size": size for axis, size in sizes.items()}
        model = sk.HybridShardedModel(wrapped, config, **sizes)
        losses = [step(model, name, number) for number in range(2)]
        weights = vector(model)
        model.close()
        return losses, weights.tobytes()

    wanted = sk.run_ranks(2, lambda backend: on_rank(backend, domain=2))[0]
    assert sk.run_ranks(2 * data, lambda backend: on_rank(backend, domain=2))[0] == wanted
    assert sk.run_ranks(4, lambda backend: on_rank(backend, domain=2, pipeline=2))[0] == wanted


# ---- what a model can do besides -----------------------------------------------------------------


def made(backend, name, policy="fsdp", change=None, **sizes):
    make, _, _, loss = MODELS[name]
    wrapped = make()
    wrapped.finish(3)
    if change is not None:
        wrapped = change(wrapped) or wrapped
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=0.01), loss=loss, seed=7, minimum_parameter_group_size=64
    )
    sizes = {f"{axis}_parallel_size": size for axis, size in sizes.items()}
    return sk.HybridShardedModel(wrapped, config, policy=policy, **sizes)


def step(model, name, number):
    return model.train(*sk.split_batch(model.mesh, *batch(name, number)))


def vector(model):
    return numpy.asarray(model.get_parameters()).copy()


@pytest.mark.strength(1)
@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["a net", "GPT", "FNO 1-D"])
def test_a_checkpoint_opens_on_another_number_of_domain_ranks(name, after, tmp_path):

    def first(backend):
        model = made(backend, name, domain=3)
        step(model, name, 0)
        model.save_model(tmp_path)
        step(model, name, 1)
        weights, mesh = vector(model), str(model.mesh.shape)
        model.close()
        return weights, mesh

    def then(backend):
        model = made(backend, name, "zero2", domain=after)
        about = model.load_model(tmp_path)
        step(model, name, 1)
        weights = vector(model)
        model.close()
        return weights, about["mesh"]

    wanted, mesh = sk.run_ranks(3, first)[0]
    found, stored = sk.run_ranks(after, then)[0]
    assert stored["domain"] == 3 and "domain 3" in mesh
    assert numpy.abs(found - wanted).max() < 1e-9


@pytest.mark.parametrize("name", ["a net", *LOOKING])
def test_copies_and_clones_share_the_ranks(name):

    def on_rank(backend):
        model = made(backend, name, domain=2)
        step(model, name, 0)
        other, clone = model.deep_copy(), model.clone()
        losses = step(model, name, 1), step(other, name, 1)
        same = numpy.array_equal(vector(model), vector(other))
        third = model.with_parameters(vector(model))
        x = sk.split_batch(model.mesh, batch(name, 2)[0])[0]
        predictions = model.predict(x), third.predict(x), clone.predict(x)
        for each in (third, clone, other, model):
            each.close()
        return losses, same, [numpy.array_equal(predictions[0], p) for p in predictions]

    for losses, same, predictions in sk.run_ranks(2, on_rank):
        assert losses[0] == losses[1] and same and all(predictions)


def test_copies_take_samples_of_another_length_than_the_model_did():
    def on_rank(backend):
        model = made(backend, "a net", domain=2)
        step(model, "a net", 0)
        copies = model.deep_copy(), model.clone(), model.with_parameters(vector(model))
        lengths = [
            each.predict(numpy.ones((2, 2, 31 + i))).shape[2] for i, each in enumerate(copies)
        ]
        for each in (*copies, model):
            each.close()
        return lengths

    assert sk.run_ranks(2, on_rank) == [[31, 31, 33]] * 2


@pytest.mark.parametrize("name", ["UNet 2-D", "a net", "tokens"])
def test_predictions_of_no_samples_have_none(name):
    def on_rank(backend):
        model = made(backend, name, domain=backend.world_size)
        shape = model.predict(batch(name, 0)[0][:0]).shape
        model.close()
        return shape

    wanted = sk.run_ranks(1, on_rank)[0]
    assert wanted[0] == 0 and sk.run_ranks(2, on_rank) == [wanted] * 2


def test_norms_of_grids_behind_a_join_say_nothing_of_what_is_cut():
    """A model of tokens: its batch norm gets whole samples, and is no layer of grids."""
    rng = numpy.random.default_rng(5)
    x, y = rng.normal(size=(8, 11, 5)), rng.normal(size=(8, 3))

    def on_rank(backend):
        wrapped = nn.Sequential(
            nn.Linear(5, 4, **F64),
            nn.Flatten(),
            nn.Linear(44, 6, **F64),
            nn.BatchNorm1d(6, **F64),
            nn.Linear(6, 3, **F64),
        )
        wrapped.finish(3)
        config = sk.ShardingConfiguration(backend, loss=nn.MSELoss(), micro_batches=2)
        model = sk.HybridShardedModel(wrapped, config, domain_parallel_size=backend.world_size)
        losses = [model.train(x, y) for _ in range(2)]
        found = losses, vector(model), model.predict(x)
        model.close()
        return found

    wanted = sk.run_ranks(1, on_rank)[0]
    for found in zip(wanted, sk.run_ranks(3, on_rank)[2]):
        assert numpy.abs(numpy.subtract(*found)).max() < TOLERANCE


def frozen(model):
    model.freeze("0.*")


def with_lora(model):
    nn.apply_lora(model, "*", rank=2)


@pytest.mark.parametrize(
    "name, change",
    [("a net", frozen), ("tokens", frozen), ("tokens", with_lora), ("Llama", with_lora)],
)
def test_frozen_layers_and_lora_work_on_parts(name, change):
    def on_rank(backend):
        model = made(backend, name, change=change, domain=backend.world_size)
        for number in range(2):
            step(model, name, number)
        weights = vector(model)
        model.close()
        return weights

    wanted = sk.run_ranks(1, on_rank)[0]
    assert numpy.abs(sk.run_ranks(3, on_rank)[0] - wanted).max() < 1e-9


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_other_dtypes_agree_to_their_rounding(dtype):
    def on_rank(backend):
        wrapped = net("float32")
        wrapped.finish(3)
        rule, loss = sk.SGD(lr=0.05), nn.MSELoss()
        config = sk.ShardingConfiguration(backend, optimizer=rule, loss=loss, compute_dtype=dtype)
        model = sk.HybridShardedModel(wrapped, config, domain_parallel_size=backend.world_size)
        losses = [step(model, "a net", number) for number in range(2)]
        model.close()
        return losses

    wanted, found = sk.run_ranks(1, on_rank)[0], sk.run_ranks(3, on_rank)[0]
    tolerance = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}[dtype]
    assert found == pytest.approx(wanted, rel=tolerance)


def test_gradients_are_accumulated_over_calls():
    name = "a net"

    def on_rank(backend):
        wrapped = net()
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.SGD(lr=0.05),
            loss=nn.MSELoss(),
            seed=7,
            auto_synchronize_gradients=False,
        )
        wrapped.finish(3)
        model = sk.HybridShardedModel(wrapped, config, domain_parallel_size=backend.world_size)
        for number in range(2):
            model.train(*batch(name, number))
        model.synchronize_gradients()
        model.step()
        weights = vector(model)
        model.close()
        return weights

    wanted = sk.run_ranks(1, on_rank)[0]
    assert numpy.abs(sk.run_ranks(4, on_rank)[0] - wanted).max() < 1e-10


def test_one_rank_counts_the_loss_of_whole_predictions():
    """Its own and its gradient: those of the others are exact zeros."""
    x, y = batch("ResNet", 0)

    def on_rank(backend):
        wrapped = models.ResNet(2, 5, (1, 1), width=8, seed=3, **F64)
        parts = SampleParts(wrapped, backend, wrapped.loss)
        own, own_y, loss = parts.part_of_batch(x, y, wrapped.loss)
        logits = nn.Tensor(numpy.ones((SAMPLES, 5)), requires_grad=True)
        total = loss.total(logits, own_y)
        total.backward()
        return own.shape[2], loss.count(own_y), total.item(), numpy.abs(logits.grad).max()

    results = sk.run_ranks(3, on_rank)
    assert [result[0] for result in results] == [12, 11, 11]
    assert [result[1] for result in results] == [SAMPLES, 0, 0]
    for total in (2, 3):
        assert results[0][total] > 0 and results[1][total] == results[2][total] == 0


def test_an_optimizer_trains_on_parts_too():
    name = "a net"
    x, y = batch(name, 0)

    def on_rank(backend):
        wrapped = net()
        wrapped.finish(3)
        wrapped.loss = nn.MSELoss()
        optimizer = sk.HybridShardedOptimizer(
            sk.SGD(lr=0.05),
            sk.ShardingConfiguration(backend, seed=7),
            model=wrapped,
            domain_parallel_size=backend.world_size,
        )
        data = sk.OptimizationInputData(x, y, x, y, epochs=2, batch_size=4)
        result = optimizer.optimize(data)
        return result.iterations, optimizer.model.get_parameters(), result.fitness_history

    wanted, found = sk.run_ranks(1, on_rank)[0], sk.run_ranks(3, on_rank)[0]
    assert found[0] == wanted[0] == 4
    assert numpy.abs(found[1] - wanted[1]).max() < 1e-10
    assert found[2] == pytest.approx(wanted[2], rel=1e-10)


# ---- what is refused -----------------------------------------------------------------------------


def refused(message, on_rank, num_ranks=2, error=sk.ShardingError):
    def run(backend):
        with pytest.raises(error, match=message):
            on_rank(backend)

    sk.run_ranks(num_ranks, run)


def test_losses_that_are_no_sums_over_rows_are_refused():
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.KLDivLoss())
        wrapped = net()
        wrapped.finish(3)
        sk.HybridShardedModel(wrapped, config, domain_parallel_size=2)

    refused("KLDivLoss of predictions that are cut along dim 2", on_rank)


def test_a_loss_of_a_call_is_looked_at_too():
    def on_rank(backend):
        model = made(backend, "a net", domain=2)
        model.compute_gradients(*batch("a net", 0), loss=lambda p, y: (p * p).mean())

    refused("FunctionLoss of predictions", on_rank)


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
@pytest.mark.parametrize("what", ["samples", "rows"])
def test_other_shapes_on_ranks_that_share_samples_are_refused(call, what, pipeline):
    """On all ranks, also of stages where all were given the same."""

    def on_rank(backend):
        model = made(backend, "a net", domain=2, pipeline=pipeline)
        x, y = batch("a net", 0)
        if backend.rank == 2 * pipeline - 1:
            x, y = (x[:6], y[:6]) if what == "samples" else (x[..., :21], y[..., :21])
        getattr(model, call)(*((x,) if call == "predict" else (x, y)))

    refused("domain ranks were given x.* of several shapes", on_rank, 2 * pipeline, sk.ShapeError)


@pytest.mark.parametrize("call", ["train", "evaluate"])
@pytest.mark.parametrize("rows", [21, 22, 24])
def test_targets_of_another_length_than_predictions_are_refused_on_all_ranks(call, rows):
    """Of 23 and 24 rows on 2 ranks, one has as many of both."""

    def on_rank(backend):
        model = made(backend, "a net", domain=2, pipeline=backend.world_size // 2)
        x, y = batch("a net", 0)
        with model.evaluation({}) if call == "evaluate" else nullcontext() as measured:
            (measured.add if call == "evaluate" else model.train)(x, numpy.resize(y, (8, 3, rows)))

    refused(f"23 rows along dim 2 and targets with {rows}", on_rank, 2, sk.ShapeError)


def training_on_lines(make=nn.GELU, loss=None):
    """Return what trains, on 12 rows, a model of two convolutions and a layer between them."""

    def on_rank(backend):
        ends = [nn.Conv1d(2, 2, 3, padding=1) for _ in range(2)]
        wrapped = nn.Sequential(ends[0], make(), ends[1])
        wrapped.finish(3)
        config = sk.ShardingConfiguration(backend, loss=loss or nn.MSELoss())
        model = sk.HybridShardedModel(wrapped, config, domain_parallel_size=backend.world_size)
        model.train(numpy.ones((2, 2, 12), "float32"), numpy.ones((2, 2, 12), "float32"))

    return on_rank


@pytest.mark.parametrize("width", [6, 12])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, lambda width: nn.Linear(width, width)])
def test_layers_along_the_dim_that_is_cut_are_refused(kind, width):
    """Also one of 6, which parts of 12 rows fit and whole ones do not."""
    refused(
        "computes along the last dim", training_on_lines(lambda: kind(width)), error=sk.ShapeError
    )


@pytest.mark.parametrize("shape", [(12,), (6,), (2, 12)])
def test_weights_of_a_loss_that_differ_along_the_cut_are_refused(shape):
    loss = nn.BCEWithLogitsLoss(pos_weight=numpy.ones(shape))
    refused("with pos_weight of shape", training_on_lines(loss=loss))


def test_weights_of_a_loss_along_another_dim_are_not():
    loss = nn.BCEWithLogitsLoss(pos_weight=numpy.full((2, 1), 2.0))
    sk.run_ranks(2, training_on_lines(loss=loss))


@nn.partwise
class MeansInside(nn.Module):
    def forward(self, x):
        return x.mean((2,))


def test_activations_that_lose_the_dim_that_is_cut_are_refused():
    refused(r"2 got x \(2, 2\); wanted dim 2", training_on_lines(MeansInside), error=sk.ShapeError)


def test_a_group_norm_of_other_channels_is_refused_as_without_a_cut():
    refused("GroupNorm of x", training_on_lines(lambda: nn.GroupNorm(2, 4)), error=sk.ShapeError)


def test_samples_of_fewer_rows_than_ranks_are_refused():
    def on_rank(backend):
        model = made(backend, "tokens", domain=4)
        model.train(numpy.zeros((2, 3), int), numpy.zeros((2, 3), int))

    refused(r"x has shape \(2, 3\), whose dim 1 .* 4 parts", on_rank, 4, sk.ShapeError)


def test_parts_that_would_be_empty_are_refused_before_the_first_step():
    def on_rank(backend):
        wrapped = models.UNet(1, 1, dims=1, width=4, depth=3, groups=2, **F64)
        config = sk.ShardingConfiguration(backend)
        model = sk.HybridShardedModel(wrapped, config, domain_parallel_size=4)
        x = numpy.ones((2, 1, 16))
        try:
            model.train(x, x)
        finally:
            assert model.step_number == 0

    refused(r"halve makes 2 of 4 rows along dim 2: 4 domain ranks .* 1 \+ 1 \+ 0 \+ 0", on_rank, 4)


def test_devices_and_sequence_parallelism_are_refused():
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, sequence_parallel=True)
        wrapped = net()
        wrapped.finish(3)
        sk.HybridShardedModel(wrapped, config, domain_parallel_size=2)

    refused("2 domain ranks with sequence_parallel", on_rank, error=sk.ConfigurationError)


def test_activations_fall_with_the_number_of_ranks():
    """Rows of others are read, not kept, so that parts of four ranks are not much over a fourth."""
    x, y = [numpy.zeros((1, channels, 512, 128), "float32") for channels in (2, 1)]

    def peak(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
        unet = models.UNet(2, 1, width=8, depth=2, groups=2)
        model = sk.HybridShardedModel(unet, config, domain_parallel_size=backend.world_size)
        model.train(x, y)
        about = model.get_model_metadata()
        lasting = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
        return about["peak_bytes"] - sum(about[each] for each in lasting)

    (alone,), of_four = sk.run_ranks(1, peak), sk.run_ranks(4, peak)
    assert max(of_four) <= 0.3 * alone
