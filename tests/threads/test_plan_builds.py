"""What the planner recommends, the runtime takes: such layouts are built on ranks that are threads,
in the stages and groups of the plan, and train a step.
"""

import random
from dataclasses import replace

import pytest
from planned import sharded, train_steps

import shardkit as sk
from shardkit.testing.parallel import stages_of
from shardkit.testing.plan import (
    MIXED,
    SHARDKIT,
    MLPShape,
    ModelShape,
    blocks_per_stage,
    read_cluster,
    search,
)

SHAPES = [
    ModelShape(4, 24, 4, 24, 12),
    ModelShape(6, 24, 12, 24, 12, kv_heads=3, style="llama", tied=True),
    ModelShape(3, 48, 6, 40, 8, dropout=0.1, hidden=36),
    ModelShape(7, 32, 8, 64, 16, tied=True),
    ModelShape(2, 40, 5, 30, 10, style="llama"),
    MLPShape((12, 40, 48, 40, 3), is_of_classes=True),
]


TAKEN = {(0, 1), (0, 3), (1, 4), (1, 6), (2, 2), (2, 8), (3, 3), (4, 4), (4, 5), (5, 2), (5, 3)}
RUNS = [
    pytest.param(number, devices, marks=[pytest.mark.sweep] * ((number, devices) not in TAKEN))
    for number in range(len(SHAPES))
    for devices in (1, 2, 3, 4, 5, 6, 8)
]


@pytest.mark.thorough
@pytest.mark.parametrize("number, devices", RUNS)
def test_every_recommended_layout_trains(number, devices):
    shape, draw = SHAPES[number], random.Random(100 * number + devices)
    found = search(
        shape,
        SHARDKIT,
        read_cluster("cpu-node"),
        devices,
        draw.choice([devices, 2 * devices, 12, 24]),
    )
    chosen = found.rows(99) + draw.sample(
        found.fitting, min(2, len(found.fitting))
    )  # every mesh, and two more
    for layout in dict.fromkeys(candidate.layout for candidate in chosen):
        check_training(layout, shape, SHARDKIT)


def check_training(layout, shape, software):
    """Build and train a step, in stages of as many blocks as the plan says."""

    def run(backend):
        units = {"minimum_parameter_group_size": software.merges_below}
        model = sharded(backend, layout, shape, software, **units)
        place = model.mesh.coordinates.pipeline
        built = {s: len(blocks) for s, blocks in stages_of(model).blocks_of(place).items()}
        groups = model.get_model_metadata()["shard_ranks"]
        return built, groups, train_steps(model, layout, shape)

    results = sk.run_ranks(layout.devices, run)
    stages = {stage: blocks for built, _, _ in results for stage, blocks in built.items()}
    planned = blocks_per_stage(shape, software, layout.num_stages, layout.tensor)
    assert tuple(stages[stage] for stage in sorted(stages)) == planned, str(layout)
    if layout.shard_ranks is not None:
        assert {groups for _, groups, _ in results} == {layout.shard_ranks}
    losses = [of_rank for *_, of_rank in results]
    assert losses[0][0] > 0 and all(of_rank == losses[0] for of_rank in losses), str(layout)


def drawn(seed):
    """Return the arguments of a random search of a small model on nodes of a few devices."""
    draw = random.Random(seed)
    heads = draw.choice([2, 4, 6])
    style = draw.choice(["gpt2", "llama"])
    layers, sequence = draw.randint(1, 9), draw.choice([8, 12])
    width, vocabulary = heads * draw.choice([4, 6, 8]), draw.choice([24, 29, 48])
    shape = ModelShape(
        layers, width, heads, vocabulary, sequence, style=style, tied=draw.random() < 0.5
    )
    software, name = draw.choice([(SHARDKIT, "cpu-node"), (MIXED, "h100-80gb-ndr")])
    cluster = replace(read_cluster(name), devices=draw.choice([1, 2, 4, 8]))
    devices = draw.choice([1, 2, 3, 4, 6, 8])
    return shape, software, cluster, devices, devices * draw.choice([1, 2, 4])


def most_like(wanted, candidates):
    """Return the quickest candidates of this kind, or none."""
    return [candidate for candidate in candidates if wanted(candidate.layout)][:1]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.sweep] * (seed >= 12)) for seed in range(500)]
)
@pytest.mark.thorough(but=2)
def test_the_best_layout_of_each_kind_trains_as_planned(seed):
    """The best one, the best in groups of ranks, and the best on stages that are not alike."""
    shape, software, *where = drawn(seed)
    found = search(shape, software, *where).fitting

    def is_uneven(layout):
        cut = blocks_per_stage(shape, software, layout.num_stages, layout.tensor)
        return layout.pipeline > 1 and len(set(cut)) > 1

    chosen = [*found[:1], *most_like(lambda layout: layout.shard_ranks is not None, found)]
    chosen += most_like(is_uneven, found)
    assert chosen
    for layout in dict.fromkeys(candidate.layout for candidate in chosen):
        check_training(layout, shape, software)


def test_the_default_seeds_have_groups_and_uneven_stages_of_both_programs():
    kinds = set()
    for seed in range(12):
        shape, software, *where = drawn(seed)
        for candidate in search(shape, software, *where).fitting:
            layout = candidate.layout
            cut = blocks_per_stage(shape, software, layout.num_stages, layout.tensor)
            kinds.add((software.name, "groups", layout.shard_ranks is not None))
            kinds.add((software.name, "uneven", layout.pipeline > 1 and len(set(cut)) > 1))
    names, both = (SHARDKIT.name, MIXED.name), (True, False)
    assert kinds == {(n, k, is_it) for n in names for k in ("groups", "uneven") for is_it in both}
