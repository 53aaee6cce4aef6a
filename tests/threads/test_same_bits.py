"""float32: one SHA-256 per tensor size, whatever the data and pipeline sizes, the policy, the
schedule and the rank order.

    python -m pytest tests/threads/test_same_bits.py                covering runs
    python -m pytest tests/threads/test_same_bits.py -m sweep       all meshes, policies and
                                                                    schedules of up to 8 ranks

The claim needs micro-batches of one size, and a power of two of them on each data rank (or all on
one): 8 micro-batches for 1, 2, 4 and 8 data ranks, 12 for 1, 3 and 6.
"""

import dataclasses
import re
from math import prod

import numpy
import pytest
from builders import sha256
from hybrids import POLICIES, SCHEDULES, batch, gpt, hybrid, meshes, policy_and_schedule, step_once
from quick import covering

import shardkit as sk
from shardkit.testing.array import products
from shardkit.testing.parallel import gradient_norm_of
from shardkit.testing.task import Language
from shardkit.testing.train import Parallel, configuration_of, make_model

RunConfiguration = configuration_of(Language)

MICRO_BATCH, STEPS, MAXIMUM_RANKS = 2, 2, 8
FAMILIES = {8: (1, 2, 4, 8), 12: (1, 3, 6)}  # micro-batches of the global batch: data sizes
ORDERS = (("pipeline", "data", "tensor"), ("pipeline", "tensor", "data"))
LAYERS = {1: 4, 2: 4, 3: 2, 4: 2, 6: 1, 8: 1}  # of a tensor size, whose stages are fewer
SIZES = [(tensor, 8) for tensor in (1, 2, 3, 4, 6, 8)] + [(tensor, 12) for tensor in (1, 2)]


def bits(mesh, policy, schedule, num_micro_batches, order=ORDERS[0]):
    """What every rank must agree on after two steps."""
    samples = MICRO_BATCH * num_micro_batches

    def on_rank(backend):
        model = hybrid(
            backend,
            mesh,
            policy,
            schedule,
            model=gpt(LAYERS[mesh[2]], dtype="float32"),
            order=order,
            micro_batches=num_micro_batches // mesh[1],
        )
        losses = [step_once(model, step, samples) for step in range(STEPS)]
        return sha256(model.gather_full_parameters()), tuple(losses), gradient_norm_of(model)

    results = set(sk.run_ranks(mesh[0] * mesh[1] * mesh[2], on_rank))
    assert len(results) == 1, "ranks disagree"
    return results.pop()


def fits(mesh, schedule):
    """True if the model has a block for every stage."""
    stages = mesh[0] * (2 if schedule in ("interleaved", "zb-v") else 1)
    return stages <= LAYERS[mesh[2]] + 2


def meshes_with(tensor, family):
    """All meshes of up to 8 ranks with this tensor size, on which the claim holds."""
    return [
        mesh
        for num_ranks in range(1, MAXIMUM_RANKS + 1)
        for mesh in meshes(num_ranks)
        if mesh[2] == tensor and mesh[1] in FAMILIES[family] and fits(mesh, "1f1b")
    ]


def all_runs(tensor, family):
    return [
        (mesh, policy, schedule)
        for mesh in meshes_with(tensor, family)
        for policy in POLICIES
        for schedule in SCHEDULES
        if fits(mesh, schedule)
    ]


def few_meshes(tensor, family):
    """Of these meshes the fewest, from the largest on, in which each pipeline and data size is."""
    found = sorted(meshes_with(tensor, family), key=lambda mesh: (-prod(mesh), mesh))
    chosen = covering({mesh: {("pipeline", mesh[0]), ("data", mesh[1])} for mesh in found})
    return chosen if len(chosen) > 2 else found


def covering_runs(tensor, family):
    """Every pipeline and data size; policies and schedules go round, more than once where there
    are few meshes.
    """
    chosen = few_meshes(tensor, family)
    runs = []
    for turn, mesh in enumerate(chosen * (1 if len(chosen) > 2 else 2)):
        policy, wanted = policy_and_schedule(turn)
        runs.append((mesh, policy, wanted if fits(mesh, wanted) else "1f1b"))
    return runs


@pytest.mark.parametrize("tensor, family", SIZES)
@pytest.mark.thorough
def test_the_bits_depend_on_the_tensor_size_alone(tensor, family):
    found = {
        bits(*run, family, ORDERS[turn % 2])
        for turn, run in enumerate(covering_runs(tensor, family))
    }
    assert len(found) == 1


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tensor, family", SIZES)
def test_the_bits_depend_on_the_tensor_size_alone_in_the_whole_product(tensor, family):
    assert len({bits(*run, family) for run in all_runs(tensor, family)}) == 1


@pytest.mark.parametrize(
    "samples", (8, 12)
)  # of 8 tokens: one over their number changes no digit, or does
@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_in_one_go_has_the_bits_of_one_whose_gradients_somebody_looked_at(policy, samples):
    """In one go the mean over items may wait for the optimizer; whoever looks at the gradients
    before sees means.
    """

    def on_rank(backend):
        at_once, looked_at = [
            hybrid(backend, (1, 2, 1), policy, model=gpt(dtype="float32"), micro_batches=2)
            for _ in range(2)
        ]
        for step in range(STEPS):
            part = sk.split_batch(at_once.mesh, *batch(step, samples))
            at_once.train(*part)
            looked_at.compute_gradients(*part)
            looked_at.step()
            assert gradient_norm_of(at_once) == gradient_norm_of(looked_at)
        return sha256(at_once.gather_full_parameters()) == sha256(
            looked_at.gather_full_parameters()
        )

    assert all(sk.run_ranks(2, on_rank))


# ---- models of science ---------------------------------------------------------------------------

SMALL_GRID = {"in_channels": 2, "out_channels": 1, "width": 16, "groups": 4}
SCIENCE = {  # a model, the shapes of x and y of 8 samples or the number of classes, has choices
    "UNet 2-D": (
        lambda: sk.models.UNet(dims=2, depth=2, **SMALL_GRID),
        ((8, 2, 16, 12), (8, 1, 16, 12)),
        True,
    ),
    "UNet 3-D": (
        lambda: sk.models.UNet(dims=3, depth=1, **SMALL_GRID),
        ((8, 2, 6, 6, 8), (8, 1, 6, 6, 8)),
        True,
    ),
    "ResNet": (
        lambda: sk.models.ResNet(3, 5, width=16, layers=(1, 1), small_images=True),
        ((8, 3, 12, 12), 5),
        True,
    ),
    "LSTM": (lambda: sk.models.LSTM(3, 2, width=16), ((8, 6, 3), (8, 2)), False),
    "FNO": (
        lambda: sk.models.FNO(2, 1, modes=(3, 3), width=8, layers=2),
        ((8, 2, 12, 12), (8, 1, 12, 12)),
        False,
    ),
}


def bits_of_science(make, shapes, mesh, choice):
    """What every rank has of a model after two steps of 4 micro-batches of 2 samples."""

    def on_rank(backend):
        settings = {"convolutions": choice, "micro_batches": 4 // mesh[1]}
        model = hybrid(backend, mesh, model=make(), **settings)
        for step in range(STEPS):
            random = numpy.random.default_rng(step)
            x = random.standard_normal(shapes[0], dtype="float32")
            if isinstance(shapes[1], int):
                y = random.integers(0, shapes[1], len(x))
            else:
                y = random.standard_normal(shapes[1], dtype="float32")
            model.train(*sk.split_batch(model.mesh, x, y))
        return sha256(model.gather_full_parameters())

    found = set(sk.run_ranks(prod(mesh), on_rank))
    assert len(found) == 1, "ranks disagree"
    return found.pop()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", SCIENCE)
def test_models_of_science_have_one_digest_for_each_choice_of_convolutions(name):
    make, shapes, has_choices = SCIENCE[name]
    digests = []
    for choice in products.CONVOLUTIONS:
        cut = 1 if name.startswith("UNet") else 2  # a UNet is no chain of blocks
        meshes_of_choice = ((1, 1, 1), (1, 4, 1), (cut, 2, 1))
        found = {bits_of_science(make, shapes, mesh, choice) for mesh in meshes_of_choice}
        assert len(found) == 1
        digests += found
    assert (len(set(digests)) == len(products.CONVOLUTIONS)) == has_choices


# ---- what the settings say: train.settings.Parallel, and docs/determinism.md ---------------

SMALL = {
    "model.width": 24,
    "model.layers": 4,
    "model.heads": 4,
    "model.sequence_length": 16,
    "model.vocabulary_size": 256,
    "batch.sequences": 16,
    "batch.micro_batch": 2,
    "optimizer.warmup_steps": 1,
    "optimizer.max_gradient_norm": 0.1,
    "model.style": "gpt2",
    "parallel.minimum_parameter_group_size": 1000,
}
PIPELINE, TIED, HALF = (
    {"mesh.pipeline": 2},
    {"model.tied": True},
    {"parallel.compute_dtype": "float16"},
)
# (setting, another value, what else holds on both sides)
KEEP_THE_BITS = [
    *(("policy", value, {}) for value in ("ddp", "zero1", "zero2", "hsdp")),
    ("shard_ranks", 1, {"parallel.policy": "hsdp"}),
    *(("schedule", value, PIPELINE) for value in ("gpipe", "interleaved", "zb-h1", "zb-v")),
    ("stage_balance", "uniform", PIPELINE),
    ("stage_balance", "parameters", PIPELINE),
    ("blocks_per_stage", [1, 5], PIPELINE),
    ("virtual_stages", 3, {**PIPELINE, "parallel.schedule": "interleaved"}),
    ("activation_checkpointing", True, {}),
    ("overlap", "on", {}),
    ("overlap", "off", {}),
    ("gpu_transport", "mpi", {}),
]
CHANGE_THE_BITS = [
    ("domain_slabs", 2, {}),
    ("sequence_parallel", True, {"mesh.tensor": 2}),
    ("minimum_parameter_group_size", 100_000, TIED),
    ("minimum_parameter_group_size", 100_000, {"model.dtype": "float64"}),
    ("deterministic", False, {}),
    ("gradient_compression", "float16", {}),
    ("compute_dtype", "float16", {}),
    ("residual_dtype", "float32", HALF),
    ("initial_loss_scale", 1.0, HALF),
    ("loss_scale_interval", 1, {**HALF, "parallel.initial_loss_scale": 1.0}),
]
ELSEWHERE = {
    "compile",
    "device",
    "matmul_precision",
    "blas",
    "convolutions",
    "domain_grid",
    "frozen",
}  # of GPUs, of a library that may not be there, of grids, or of what is trained (frozen)


KNOWN: dict[tuple, str] = {}  # results of runs that several tests compare with


def bits_of_run(*others, num_ranks=2, steps=2):
    """What a run under these settings has trained after some steps."""
    settings = RunConfiguration().replace(
        {name: value for changes in (SMALL, *others) for name, value in changes.items()}
    )
    key = (str(settings), num_ranks, steps)
    if key not in KNOWN:
        KNOWN[key] = _trained(settings, num_ranks, steps)
    return KNOWN[key]


def _trained(settings, num_ranks, steps):
    def on_rank(backend):
        model = make_model(settings.make_task(), backend)
        for step in range(steps):
            tokens = numpy.random.default_rng(step).integers(0, 256, (settings.batch.sequences, 17))
            model.train(*sk.split_batch(model.mesh, tokens[:, :-1], tokens[:, 1:]))
        return sha256(model.gather_full_parameters())

    found = set(sk.run_ranks(num_ranks, on_rank))
    assert len(found) == 1, "ranks disagree"
    return found.pop()


@pytest.mark.parametrize("name, value, both", KEEP_THE_BITS, ids=str)
@pytest.mark.thorough
def test_settings_of_the_work_shared_keep_the_bits(name, value, both):
    assert bits_of_run(both, {f"parallel.{name}": value}) == bits_of_run(both)


@pytest.mark.parametrize("name, value, both", CHANGE_THE_BITS, ids=str)
@pytest.mark.thorough
def test_what_is_said_to_change_the_bits_does(name, value, both):
    assert bits_of_run(both, {f"parallel.{name}": value}) != bits_of_run(both)
    assert name in Parallel.__doc__, "and the page says so"


def test_every_setting_of_the_work_shared_keeps_the_bits_or_is_said_to_change_them():
    kept, changed = ({name for name, *_ in table} for table in (KEEP_THE_BITS, CHANGE_THE_BITS))
    assert kept | changed | ELSEWHERE == {field.name for field in dataclasses.fields(Parallel)}
    assert not kept & changed and not kept & set(
        re.findall(r"\w+_\w+|overlap|policy|schedule", Parallel.__doc__)
    )


@pytest.mark.parametrize("group_size", [1, 1000, 3000])
@pytest.mark.thorough
def test_without_tied_weights_and_clipping_the_size_of_units_keeps_the_bits(group_size):
    unclipped = {"optimizer.max_gradient_norm": 0.0, "model.dtype": "float64"}
    assert bits_of_run(
        unclipped, {"parallel.minimum_parameter_group_size": group_size}
    ) == bits_of_run(unclipped, {"parallel.minimum_parameter_group_size": 100_000})


@pytest.mark.thorough
def test_sequence_parallelism_has_bits_of_its_own_on_any_mesh_of_its_tensor_size():
    tensor, sequence = {"mesh.tensor": 2}, {"mesh.tensor": 2, "parallel.sequence_parallel": True}
    ours = {
        bits_of_run(sequence, changes, num_ranks=ranks)
        for ranks, changes in (
            (2, {}),
            (4, {}),
            (4, PIPELINE),
            (4, {"parallel.policy": "zero1"}),
            (8, PIPELINE),
        )
    }
    assert len(ours) == 1 and ours != {bits_of_run(tensor)}
