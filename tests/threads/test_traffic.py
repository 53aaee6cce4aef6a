"""Bytes that each rank sends in a step, counted at the backend of each axis, against the formulas:
equal, not close.

Big messages. N parameters (elements of the flat buffers, padding included), d data ranks, t tensor
ranks, A bytes of an activation [micro-batch, sequence, width]:

    data       DDP, ZeRO-1, ZeRO-2   2 N (d-1)/d     gradients to their owners; sums or updated
                                                     parameters to all
               FSDP                  3 N (d-1)/d     parameters for forward and for backward,
                                                     gradients to their owners;
                                                     the last unit stays gathered between the two,
                                                     and is sent once less
    tensor     an all-reduce is 2 A (t-1)/t per micro-batch: 2 forward and 2 backward per layer, 1
               for the embedding, 1 for the gradient of the head's input. Sequence parallelism sends
               the same as all-gathers and reduce-scatters. The loss: all-reduces of one and of two
               numbers per token
    pipeline   A each way per boundary between ranks and micro-batch

Small ones, 8 bytes a number, to each other rank of the axis: data 2 (samples and items of the
batch) + 1 (loss) + if clipped one per 256 elements of the shard and one for whether the step is
good; tensor and pipeline one per unit of the model if clipped; pipeline 1 (loss) from the last
stage; and over all ranks a vote of a byte on the batch, with 8 bytes that compare the structure of
its trees, and, unless clipped, a byte on whether the step is good. They are part of what must be
equal.
"""

import numpy
import pytest
from hybrids import POLICIES, SEQUENCE, WIDTH, batch, gpt, groups_of_two, hybrid

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import NORM_BLOCK, program_of, unit_places_of, units_of
from shardkit.testing.schedule import Kind

NUMBER, ITEM, HALF = 8, 4, 2  # bytes of a small number, of float32, and of float16
UNIT = 48 * 64  # elements of a layer below: 12 x 256, so 2, 3 and 4 ranks share it without padding


class ThreeLayers(nn.Module):
    """x [batch, 64] -> [batch, 48], in three units of 48 x 64 parameters."""

    def __init__(self):
        self.layers = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in ((64, 48), (48, 64), (64, 48))
        )
        self.loss = nn.MeanSquaredError()

    def blocks(self):
        return [(f"layers.{index}", layer) for index, layer in enumerate(self.layers)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def sent(model, x, y):
    """{axis: bytes this rank sends in a second step, "world" among them}; the first one also agrees
    on shapes.
    """
    groups = {
        "world": (model.mesh.world,),
        **{axis: model.mesh.carriers(axis) for axis in ("pipeline", "data", "tensor")},
    }
    part = sk.split_batch(model.mesh, x, y)
    model.train(*part)
    for group in (group for along in groups.values() for group in along):
        group.traffic.reset()
    model.train(*part)
    return {axis: sum(g.traffic.bytes_sent for g in along) for axis, along in groups.items()}


def shared(num_bytes, num_ranks):
    """num_bytes (n-1)/n, which must be whole."""
    assert num_bytes * (num_ranks - 1) % num_ranks == 0
    return num_bytes * (num_ranks - 1) // num_ranks


def votes(num_ranks, clips=True):
    """The bytes of the votes of all ranks: whether the batch is good, and a number of its trees
    that is compared; without clipping, whether the step is.
    """
    sizes = [1 + 8] if clips else [1 + 8, 1]
    return sum(2 * size * (num_ranks - 1) // num_ranks for size in sizes)


def data_bytes(
    policy, unit_sizes, num_ranks, *, gathers=None, clips=False, lent=ITEM, sharing=None
):
    """The formula for the data axis. unit_sizes: elements of each unit; gathers: of units in
    elements, under FSDP.

    lent      bytes of a parameter that is gathered
    sharing   ranks of a group under HSDP
    """
    count = sum(unit_sizes)
    numbers = NUMBER * (num_ranks - 1) * (2 + 1)
    if policy == "hsdp":
        groups = num_ranks // sharing
        inside = data_bytes("fsdp", unit_sizes, sharing, gathers=gathers, clips=clips, lent=lent)
        inside -= NUMBER * (sharing - 1) * (2 + 1)
        if sharing == 1:  # as DDP, which gathers and squares nothing of others
            inside = 0
        between = shared(2 * ITEM * count // sharing, groups) + NUMBER * clips * (groups - 1)
        return inside + between + numbers
    whole, spread = ITEM * count, lent * count
    times = {
        "ddp": 2 * whole,
        "zero1": whole + spread,
        "zero2": whole + spread,
        "fsdp": whole + lent * (gathers or 0),
    }[policy]
    squares = sum(size // num_ranks // NORM_BLOCK for size in unit_sizes) + 1 if clips else 0
    return shared(times, num_ranks) + numbers + NUMBER * (num_ranks - 1) * squares


# ---- the data axis -------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_gradients_and_parameters_over_the_data_axis(policy, num_ranks, clips, deterministic):
    rng = numpy.random.default_rng(0)
    x, y = rng.standard_normal((24, 64), "float32"), rng.standard_normal((24, 48), "float32")

    def run(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(),
            schedule="gpipe",
            micro_batches=2,
            max_gradient_norm=0.1 if clips else None,
            deterministic=deterministic,
            **groups_of_two(policy, num_ranks),
        )
        model = sk.HybridShardedModel(ThreeLayers(), config, policy=policy)
        assert (
            model.parameter_count == 3 * UNIT == sum(unit.layout.size for unit in units_of(model))
        ), "padding"
        return sent(model, x, y)

    sharing = groups_of_two("hsdp", num_ranks)["shard_ranks"]
    wanted = data_bytes(
        policy, [UNIT] * 3, num_ranks, gathers=(3 + 2) * UNIT, clips=clips, sharing=sharing
    )
    assert (
        sk.run_ranks(num_ranks, run)
        == [{"data": wanted, "world": votes(num_ranks, clips), "pipeline": 0, "tensor": 0}]
        * num_ranks
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_half_floats_halve_what_is_gathered_and_leave_gradients_float32(policy, num_ranks):
    def run(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(),
            schedule="gpipe",
            compute_dtype="float16",
            **groups_of_two(policy, num_ranks),
        )
        x, y = numpy.full((12, 64), 0.1, "float32"), numpy.ones((12, 48), "float32")
        return sent(sk.HybridShardedModel(ThreeLayers(), config, policy=policy), x, y)["data"]

    sharing = groups_of_two("hsdp", num_ranks)["shard_ranks"]
    wanted = data_bytes(
        policy, [UNIT] * 3, num_ranks, gathers=(3 + 2) * UNIT, lent=HALF, sharing=sharing
    )
    assert sk.run_ranks(num_ranks, run) == [wanted] * num_ranks


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_1f1b_on_one_stage_gathers_anew_for_every_micro_batch(micro_batches):
    """The price of keeping the activations of one micro-batch: gpipe goes through a unit with all
    of them at once.
    """

    def run(backend):
        config = sk.ShardingConfiguration(backend, schedule="1f1b", micro_batches=micro_batches)
        return sent(
            sk.FSDPModel(ThreeLayers(), config),
            numpy.ones((8, 64), "float32"),
            numpy.ones((8, 48), "float32"),
        )

    units = (
        2 * 3 * micro_batches - micro_batches - (micro_batches - 1)
    )  # at a turn the last or first unit stays gathered
    assert sk.run_ranks(2, run)[1]["data"] == data_bytes(
        "fsdp", [UNIT] * 3, 2, gathers=units * UNIT
    )


# ---- the tensor axis -----------------------------------------------------------------------------


def tensor_bytes(num_ranks, layers, micro_batches, samples, *, units, partial=0):
    """The formula for the tensor axis. partial: elements whose gradients are terms of a sum."""
    tokens = samples // micro_batches * SEQUENCE
    activations = (4 * layers + 1 + 1) * tokens * WIDTH * ITEM
    loss = (1 + 2) * tokens * ITEM
    return (
        shared(2 * micro_batches * (activations + loss), num_ranks)
        + shared(2 * partial * ITEM, num_ranks)
        + NUMBER * (num_ranks - 1) * units
    )


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("layers, micro_batches", [(1, 1), (2, 3)])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_activations_over_the_tensor_axis(num_ranks, layers, micro_batches, sequence_parallel):
    def run(backend):
        model = hybrid(
            backend,
            (1, 1, num_ranks),
            model=gpt(layers, dtype="float32"),
            micro_batches=micro_batches,
            sequence_parallel=sequence_parallel,
        )
        return sent(model, *batch(0))

    norms, positions, biases = 2 * WIDTH * (2 * layers + 1), SEQUENCE * WIDTH, 2 * WIDTH * layers
    wanted = tensor_bytes(
        num_ranks,
        layers,
        micro_batches,
        samples=24,
        units=layers + 2,
        partial=norms + positions + biases if sequence_parallel else 0,
    )
    assert (
        sk.run_ranks(num_ranks, run)
        == [{"tensor": wanted, "world": votes(num_ranks), "pipeline": 0, "data": 0}] * num_ranks
    )


# ---- the pipeline axis ---------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [(2, 1, 1), (1, 1, 2)], ids=str)
def test_half_floats_halve_activations_between_stages_and_over_tensor_ranks(mesh):
    """But for the numbers per token of the loss."""

    def run(backend, compute_dtype):
        model = hybrid(
            backend,
            mesh,
            micro_batches=4,
            model=gpt(dtype="float32"),
            max_gradient_norm=None,
            compute_dtype=compute_dtype,
        )
        return sent(model, *batch(0))["pipeline" if mesh[0] > 1 else "tensor"]

    half, whole = [
        sk.run_ranks(2, lambda backend: run(backend, dtype))[0] for dtype in ("float16", None)
    ]
    loss = 3 * 2 * (SEQUENCE * 24) * ITEM // 2 if mesh[2] > 1 else 0
    assert half - loss == (whole - loss) // 2


def pipeline_bytes(num_ranks, crossings, micro_batches, samples, *, units):
    """All ranks together. crossings: boundaries between stages on two ranks; units: of the model,
    if the norm is clipped.
    """
    activation = samples // micro_batches * SEQUENCE * WIDTH * ITEM
    return 2 * crossings * micro_batches * activation + NUMBER * (num_ranks - 1) * (
        1 + num_ranks * units
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_one_activation_each_way_per_boundary_and_micro_batch(num_ranks, schedule):
    def run(backend):
        return sent(
            hybrid(
                backend,
                (num_ranks, 1, 1),
                schedule=schedule,
                micro_batches=4,
                max_gradient_norm=None,
                model=gpt(dtype="float32"),
            ),
            *batch(0),
        )

    activation = 6 * SEQUENCE * WIDTH * ITEM
    ends, loss = (
        [1] + [2] * (num_ranks - 2) + [1],
        [0] * (num_ranks - 1) + [NUMBER * (num_ranks - 1)],
    )
    assert sk.run_ranks(num_ranks, run) == [
        {
            "pipeline": 4 * activation * ways + last,
            "world": votes(num_ranks, False),
            "data": 0,
            "tensor": 0,
        }
        for ways, last in zip(ends, loss)
    ]


@pytest.mark.parametrize("schedule, crossings", [("interleaved", 2 * 3 - 1), ("zb-v", 2 * 3 - 2)])
def test_virtual_stages_send_once_per_boundary_that_lies_between_two_ranks(schedule, crossings):
    def run(backend):
        return sent(
            hybrid(
                backend,
                (3, 1, 1),
                schedule=schedule,
                micro_batches=4,
                model=gpt(4, dtype="float32"),
            ),
            *batch(0),
        )

    assert sum(rank["pipeline"] for rank in sk.run_ranks(3, run)) == pipeline_bytes(
        3, crossings, 4, samples=24, units=6
    )


# ---- all at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.thorough(but=1)
def test_every_axis_sends_what_it_would_send_alone(policy):
    """2 x 2 x 2, 4 layers, 3 micro-batches of 4 samples per data rank, 1f1b."""

    def run(backend):
        model = hybrid(backend, (2, 2, 2), policy, model=gpt(4, dtype="float32"), micro_batches=3)
        figures = sent(model, *batch(0))
        sizes = {
            (*place, Kind.GATHER): unit.layout.size for place, unit in unit_places_of(model).items()
        }
        gathers = sum(
            sizes.get((action.stage, action.unit, action.kind), 0) for action in program_of(model)
        )
        assert figures["data"] == data_bytes(
            policy, sizes.values(), 2, gathers=gathers, clips=True, sharing=2
        )
        return figures

    results = sk.run_ranks(8, run)
    two_stages = [results[0], results[4]]  # of one data replica and tensor coordinate
    assert {rank["world"] for rank in results} == {votes(8)}
    assert sum(rank["pipeline"] for rank in two_stages) == pipeline_bytes(
        2, 1, 3, samples=12, units=6
    )
    assert sum(rank["tensor"] for rank in two_stages) == tensor_bytes(
        2, 4, 3, samples=12, units=2 * 6
    )
