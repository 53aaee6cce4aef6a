"""Buffers of sharded models: the same bits on every mesh and policy, in files and in copies."""

import numpy
import pytest
from builders import sha256
from hybrids import POLICIES, groups_of_two

import shardkit as sk
from shardkit import nn
from shardkit.nn import Buffer
from shardkit.testing.nn import Fill
from shardkit.testing.parallel import (
    Neighbors,
    own_buffers_of,
    parts_of,
    restore,
    synchronize_replicas,
)

MESHES = {"1": (1, 1, 1), "data 2": (1, 2, 1), "data 4": (1, 4, 1), "pipeline 2": (2, 1, 1)}
MESHES |= {"2 x 2": (2, 2, 1), "tensor 2": (1, 1, 2), "data 3": (1, 3, 1)}
MICRO_BATCHES = 8  # of the global batch of 24: the same tree on 1, 2 and 4 data ranks


class Tracked(nn.Module):
    """Two linear layers of what comes in, less its running mean where a mask says so; it also
    counts the steps.
    """

    def __init__(self, width, momentum):
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.mean = Buffer(width, Fill(0.0))
        self.steps = Buffer((), Fill(0), "int64")
        self.masked = Buffer(numpy.arange(width) % 3 > 0)
        self.momentum = momentum

    def forward(self, x):
        self.steps.advance()
        count = self.steps if self.momentum is None else None
        self.mean.observe(x.array.mean(0), self.momentum, count=count)
        x = nn.ops.where(self.masked, x - nn.ops.cast(self.mean, x.dtype), x)
        return self.down(self.up(x))


class Chain(nn.Module):
    loss = nn.MeanSquaredError()

    def __init__(self, width=4, seed=0):
        self.width = width
        self.first = Tracked(width, 0.25)
        self.second = Tracked(width, None)
        self.finish(seed)

    def blocks(self):
        return [("first", self.first), ("second", self.second)]

    def forward(self, x):
        return self.second(self.first(x))

    def configuration(self):
        return {"width": self.width}


def batch(step):
    draw = numpy.random.default_rng(step)
    shape = (24, 4)
    return draw.standard_normal(shape).astype("float32"), draw.random(shape).astype("float32")


def sharded(backend, mesh="1", policy="ddp", module=None, **settings):
    pipeline, data, tensor = MESHES[mesh]
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=0.01),
        micro_batches=settings.pop("micro_batches", MICRO_BATCHES // data),
        minimum_parameter_group_size=1,
        **groups_of_two(policy, data),
        max_gradient_norm=1.0,
        **settings,
    )
    return sk.HybridShardedModel(module or Chain(), config, pipeline, tensor, data, policy=policy)


def train(model, steps, start=0):
    for step in range(start, start + steps):
        model.train(*sk.split_batch(model.mesh, *batch(step)))


def buffers_of(model):
    """{name: value} of all buffers of the model, whichever rank holds them. Collective."""
    own = {name: buffer.numpy().copy() for name, buffer in own_buffers_of(model).items()}
    everyones = model.mesh.world.all_gather_object(own)
    return {name: value for part in everyones for name, value in part.items()}


def bits(model):
    values = buffers_of(model)
    return sha256(model.gather_full_parameters()), {
        name: (str(values[name].dtype), values[name].tobytes()) for name in sorted(values)
    }


def on(mesh, run):
    """The results of `run` on this mesh, which must be equal on all ranks."""
    first, *others = sk.run_ranks(int(numpy.prod(MESHES[mesh])), run)
    assert all(other == first for other in others)
    return first


def trained(mesh, policy="ddp", **settings):
    def run(backend):
        model = sharded(backend, mesh, policy, **settings)
        train(model, 3)
        return bits(model), model.predict(batch(9)[0]).tobytes()

    return on(mesh, run)


@pytest.fixture(scope="module")
def serial():
    return trained("1")


@pytest.mark.strength(1)
@pytest.mark.parametrize("mesh", ["data 2", "data 4", "pipeline 2", "2 x 2"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_bits_are_those_of_one_rank(mesh, policy, serial):
    assert trained(mesh, policy) == serial


@pytest.mark.parametrize("mesh, policy", [("1", "ddp"), ("data 2", "fsdp"), ("2 x 2", "fsdp")])
def test_the_second_forward_of_recomputation_does_not_count(mesh, policy, serial):
    assert trained(mesh, policy, activation_checkpointing=True) == serial


def test_half_floats_keep_buffers_in_their_own_dtype(serial):
    def run(backend):
        model = sharded(backend, "data 2", "fsdp", compute_dtype="float16")
        train(model, 3)
        return {name: value.tolist() for name, value in buffers_of(model).items()}

    found = on("data 2", run)
    mean = numpy.frombuffer(serial[0][1]["second.mean"][1], "float32")
    assert found["second.steps"] == 3
    numpy.testing.assert_allclose(found["second.mean"], mean, atol=2e-3)


def test_one_observation_a_step_is_a_loop_by_hand():
    """The definition, in float64; the chain's first mean needs no weights."""
    expected = numpy.zeros(4)
    for step in range(3):
        means = batch(step)[0].reshape(12, 2, 4).mean(1)
        expected = 0.75 * expected + 0.25 * means.mean(0)

    def run(backend):
        model = sharded(backend, "data 3", "fsdp", micro_batches=4)
        train(model, 3)
        return buffers_of(model)

    values = sk.run_ranks(3, run)[0]
    numpy.testing.assert_allclose(values["first.mean"], expected, rtol=1e-5)
    assert values["first.steps"] == values["second.steps"] == 3


def test_tensor_ranks_hold_the_same_bits_and_those_of_one_rank_to_rounding(serial):
    def run(backend):
        plan = {"*.up": "column", "*.down": "row"}
        model = sharded(backend, "tensor 2", tensor_plan=plan)
        train(model, 3)
        return buffers_of(model)["second.mean"].tobytes()

    found = numpy.frombuffer(on("tensor 2", run), "float32")
    expected = numpy.frombuffer(serial[0][1]["second.mean"][1], "float32")
    numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mesh", ["data 2", "2 x 2"])
def test_a_skipped_step_changes_nothing(mesh):
    def run(backend):
        model = sharded(backend, mesh, "fsdp")
        train(model, 1)
        before = bits(model)
        x, y = batch(1)
        y[3] = numpy.nan
        model.train(*sk.split_batch(model.mesh, x, y))
        return model.step_number, bits(model) == before

    assert on(mesh, run) == (2, True)


def test_only_the_stage_that_computes_with_a_buffer_holds_it():
    def run(backend):
        model = sharded(backend, "pipeline 2")
        return sorted(own_buffers_of(model)), [
            name for name, b in model.wrapped_model.named_buffers().items() if b.is_released
        ]

    first, second = [
        [f"{block}.{name}" for name in ("masked", "mean", "steps")] for block in ("first", "second")
    ]
    assert [(held, sorted(others)) for held, others in sk.run_ranks(2, run)] == [
        (first, second),
        (second, first),
    ]


def test_accumulated_gradients_count_all_their_micro_batches(serial):
    def run(backend):
        model = sharded(backend, "data 2", micro_batches=2, auto_synchronize_gradients=False)
        for step in range(3):
            x, y = sk.split_batch(model.mesh, *batch(step))
            model.train(x[:6], y[:6])
            model.train(x[6:], y[6:])
            model.synchronize_gradients()
            model.step()
        return buffers_of(model)["second.mean"].tobytes()

    assert on("data 2", run) == serial[0][1]["second.mean"][1]


def test_gradients_that_nobody_applies_leave_buffers_alone():
    def run(backend):
        model = sharded(backend, "data 2")
        before = bits(model)
        model.compute_gradients(*sk.split_batch(model.mesh, *batch(0)))
        return bits(model) == before

    assert on("data 2", run)


@pytest.mark.parametrize("there", ["data 4", "2 x 2", "1"])
def test_a_run_goes_on_under_another_mesh(there, tmp_path):
    def begin(backend):
        model = sharded(backend, "2 x 2", "fsdp")
        train(model, 2)
        model.save_model(tmp_path)
        train(model, 2, start=2)
        return bits(model)

    def go_on(backend):
        model = sharded(backend, there, "zero1")
        model.load_model(tmp_path)
        train(model, 2, start=2)
        return bits(model)

    expected = on("2 x 2", begin)
    assert on(there, go_on) == expected


def test_images_and_copies_have_the_values_and_memory_of_their_own():
    def run(backend):
        model = sharded(backend, "2 x 2", "fsdp")
        train(model, 2)
        here = bits(model)
        other = sharded(backend, "2 x 2", "ddp", Chain(seed=7))
        other.deserialize(model.serialize())
        parameters = sharded(backend, "2 x 2", "ddp", Chain(seed=7))
        parameters.deserialize(model.serialize(), only="model")
        copied, vector = model.deep_copy(), model.with_parameters(model.get_parameters())
        same = [bits(each) == here for each in (other, parameters, copied, vector, model.clone())]
        train(copied, 1)
        return same, bits(model) == here, bits(copied) == here

    assert on("2 x 2", run) == ([True] * 5, True, False)


@pytest.mark.parametrize("dead, mesh, left", [({3}, "2 x 2", "data 2"), ({0}, "data 4", "1")])
def test_survivors_of_a_dead_rank_have_the_buffers_of_the_last_step(dead, mesh, left):
    def run(backend):
        model = sharded(backend, mesh, "fsdp")
        copies = Neighbors(parts_of(model))
        train(model, 2)
        copies.commit()
        here = bits(model)
        living = backend.split(None if backend.rank in dead else 0)
        if living is None:
            return None
        group = living.split(0 if living.rank < numpy.prod(MESHES[left]) else None)
        other = None if group is None else sharded(group, left, "zero2")
        restore(living, [copies], other and parts_of(other))
        return None if other is None else bits(other) == here

    found = sk.run_ranks(4, run)
    assert [each for each in found if each is not None] == [True] * int(numpy.prod(MESHES[left]))


@pytest.mark.parametrize("mesh", ["data 2", "2 x 2", "tensor 2"])
def test_synchronizing_makes_replicas_of_buffers_alike_and_says_how_far_they_were(mesh):
    def run(backend):
        model = sharded(backend, mesh, tensor_plan={"*.up": "column", "*.down": "row"})
        at = model.mesh.coordinates
        if at.data + at.tensor > 0 and "second.mean" in own_buffers_of(model):
            own_buffers_of(model)["second.mean"].array = numpy.full(4, 0.5)
            own_buffers_of(model)["second.masked"].array = numpy.ones(4, bool)
        drift = synchronize_replicas(model)
        ours = own_buffers_of(model).values()
        are_first = all((buffer.numpy() == buffer.initial_values()).all() for buffer in ours)
        return drift.by_tensor["buffers/second.mean"], drift.tensor, drift.largest, are_first

    assert on(mesh, run) == (0.5, "buffers/second.masked", 1.0, True)


def test_a_checkpoint_without_buffers_begins_with_initial_ones_and_says_so(tmp_path):
    class Old(Chain):
        def __init__(self):
            super().__init__()
            for block in (self.first, self.second):
                del block.mean, block.steps, block.masked

    Old.__name__ = "Chain"

    def write(backend):
        sharded(backend, module=Old()).save_model(tmp_path)

    def read(backend):
        model = sharded(backend)
        train(model, 1)
        with pytest.warns(UserWarning, match="holds no buffers; first.mean, .* initial values"):
            model.load_model(tmp_path)
        return {name: value.tolist() for name, value in buffers_of(model).items()}

    sk.run_ranks(1, write)
    assert sk.run_ranks(1, read)[0]["first.mean"] == [0] * 4


def test_a_checkpoint_with_other_buffers_is_refused(tmp_path):
    class Other(Chain):
        def __init__(self):
            super().__init__()
            self.first.mean = Buffer(2, Fill(0.0))
            self.finish(0)

    def run(backend):
        sharded(backend).save_model(tmp_path)
        with pytest.raises(sk.CheckpointError, match="buffers/first.mean is of shape .4."):
            sharded(backend, module=Other()).load_model(tmp_path)

    sk.run_ranks(1, run)


def test_tools_show_buffers_and_do_not_count_them(tmp_path):
    from shardkit.testing.checkpoint import Checkpoint, compare, describe

    def run(backend):
        model = sharded(backend, "data 2")
        train(model, 1)
        return model.save_model(tmp_path / "a"), model.parameter_count

    (path, count), _ = sk.run_ranks(2, run)
    text = str(describe(path, verify=True))
    assert "152 parameters" in text and count == 152 and "buffers" in text and "int64" in text
    here = Checkpoint(path)
    assert here.read_whole("buffers/first.steps").tolist() == 1
    assert compare(here, here, model_only=True).num_compared == 14


def test_a_buffer_of_blocks_on_two_pipeline_ranks_is_refused():
    def run(backend):
        chain = Chain()
        chain.second.mean = chain.first.mean
        with pytest.raises(sk.ShardingError, match="in blocks of pipeline ranks 0, 1"):
            sharded(backend, "pipeline 2", module=chain)

    sk.run_ranks(2, run)


def test_a_buffer_outside_of_all_blocks_is_refused():
    def run(backend):
        chain = Chain()
        chain.spare = Buffer(2, Fill(0.0))
        with pytest.raises(sk.ShardingError, match="does not reach buffer spare"):
            sharded(backend, module=chain)

    sk.run_ranks(1, run)


def test_ranks_with_other_buffers_are_refused():
    def run(backend):
        chain = Chain()
        chain.first.mean.array = numpy.full(4, backend.rank)
        with pytest.raises(sk.ShardingError, match="buffer first.mean"):
            sharded(backend, "data 2", module=chain)

    sk.run_ranks(2, run)
