"""Copies of shards at the neighbors: what is left of a model when ranks go, on the mesh of those
who stay.
"""

from functools import cache

import numpy
import pytest
from builders import small_gpt, token_batch
from hybrids import groups_of_two

import shardkit as sk
from shardkit.testing.layout import Box, flat_range_to_boxes
from shardkit.testing.parallel import Neighbors, parts_of, redistribute, restore

SAMPLES = 4


def model_on(backend, policy, pipeline=1, tensor=1):
    replicas = backend.world_size // (pipeline * tensor)
    gpt = small_gpt(layers=2)
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=1e-2),
        max_gradient_norm=1.0,
        minimum_parameter_group_size=64,
        micro_batches=SAMPLES // replicas,
        **groups_of_two(policy, replicas),
    )
    return sk.HybridShardedModel(gpt, config, pipeline, tensor, policy=policy)


def take_steps(model, num, copies=None):
    for _ in range(num):
        model.train(*sk.split_batch(model.mesh, *token_batch(model.step_number, SAMPLES)))
        if copies is not None:
            copies.commit()


def survive(backend, dead, policy, pipeline, tensor, num_left, *, lag=()):
    """Two steps on all ranks, the last of them committed by all but those in `lag`; one more on the
    first of those who live.

    Returns (step that was restored, all parameters at the end, or None on ranks that do not train).
    """
    model = model_on(backend, policy, pipeline, tensor)
    copies = Neighbors(parts_of(model))
    copies.commit()
    take_steps(model, 2, copies)
    if backend.rank in lag:  # as if the last copies had not come through
        copies._generations[0].description = None
    living = backend.split(None if backend.rank in dead else 0)
    if living is None:
        return None
    group = living.split(0 if living.rank < num_left else None)
    other = None if group is None else model_on(group, policy, pipeline, tensor)
    step = restore(living, [copies], other and parts_of(other))
    if other is None or step is None:
        return step, None
    take_steps(other, 3 - step)
    return step, other.gather_full_parameters()


@cache
def uninterrupted(num_ranks, policy, pipeline=1, tensor=1):
    def on_rank(backend):
        model = model_on(backend, policy, pipeline, tensor)
        take_steps(model, 3)
        return model.gather_full_parameters()

    return sk.run_ranks(num_ranks, on_rank)[0]


DEATHS = [  # ranks, who dies, ranks that train then, pipeline, tensor
    (2, {0}, 1, 1, 1),
    (2, {1}, 1, 1, 1),
    (3, {1}, 2, 1, 1),
    (4, {3}, 2, 1, 1),
    (4, {0, 2}, 2, 1, 1),
    (4, {1, 3}, 1, 1, 1),
    (4, {2}, 2, 2, 1),
    (4, {0}, 2, 1, 2),
]
# Each under FSDP, which keeps the least of what others need, and under another policy in turn.
OTHERS = ("ddp", "zero1", "zero2", "hsdp")


@pytest.mark.parametrize(
    "policy, num_ranks, dead, num_left, pipeline, tensor",
    [("fsdp", *death) for death in DEATHS]
    + [(OTHERS[(turn + 1) % 4], *death) for turn, death in enumerate(DEATHS)],
)
@pytest.mark.thorough
def test_those_who_live_have_the_state_of_the_last_step_and_go_on_with_the_same_bits(
    policy, num_ranks, dead, num_left, pipeline, tensor
):
    whole = uninterrupted(num_left, policy, pipeline, tensor)
    found = sk.run_ranks(
        num_ranks,
        lambda backend: (
            survive(backend, dead, policy, pipeline, tensor, num_left)
            if num_ranks != 3
            else survive_three(backend, dead, policy, num_left)
        ),
    )
    living = [result for rank, result in enumerate(found) if rank not in dead]
    assert {step for step, _ in living} == {2}
    trained = [parameters for _, parameters in living if parameters is not None]
    assert len(trained) == num_left
    for parameters in trained:
        numpy.testing.assert_array_equal(parameters, whole)


def survive_three(backend, dead, policy, num_left):
    """Four samples do not divide by three: the mesh of the beginning has two, and a spare that has
    nothing.
    """
    first = backend.split(0 if backend.rank < 2 else None)
    model = None if first is None else model_on(first, policy)
    copies = [] if model is None else [Neighbors(parts_of(model))]
    if model is not None:
        copies[0].commit()
        take_steps(model, 2, copies[0])
    living = backend.split(None if backend.rank in dead else 0)
    if living is None:
        return None
    other = model_on(living, policy)
    step = restore(living, copies, parts_of(other))
    take_steps(other, 3 - step)
    return step, other.gather_full_parameters()


@pytest.mark.parametrize("lag", [{0}, {2}, {0, 3}])
@pytest.mark.thorough
def test_a_step_that_did_not_reach_all_neighbors_is_the_one_that_is_lost(lag):
    whole = uninterrupted(2, "fsdp")
    found = sk.run_ranks(4, lambda backend: survive(backend, {1}, "fsdp", 1, 1, 2, lag=lag))
    living = [found[rank] for rank in (0, 2, 3)]
    assert {step for step, _ in living} == {1}
    numpy.testing.assert_array_equal(living[0][1], whole)


@pytest.mark.parametrize("dead", [{1, 2}, {0, 3}, {1, 2, 3}])
@pytest.mark.thorough
def test_neighbors_that_go_together_take_their_state_with_them(dead):
    found = sk.run_ranks(4, lambda backend: survive(backend, dead, "fsdp", 1, 1, 1))
    assert all(result == (None, None) for rank, result in enumerate(found) if rank not in dead)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_whatever_is_held_somewhere_arrives_where_it_is_wanted(seed, num_ranks):
    """Two tensors and a scalar, cut at random in two ways, with empty parts."""
    rng = numpy.random.default_rng(seed)
    tensors = {
        "a": rng.normal(size=(7, 5)).astype("float32"),
        "b": rng.normal(size=13),
        "c": rng.normal(size=()),
    }

    def cut(name):
        """[(box, rank)]: flat ranges at random cuts, as boxes."""
        array = tensors[name]
        cuts = sorted([0, *rng.integers(0, array.size + 1, num_ranks - 1).tolist(), array.size])
        owners = rng.permutation(num_ranks).tolist()
        return [
            (box, owners[i])
            for i in range(num_ranks)
            for box in flat_range_to_boxes(array.shape, cuts[i], cuts[i + 1])
        ]

    held_by, wanted_by = ({name: cut(name) for name in tensors} for _ in range(2))

    def on_rank(backend):
        held = [
            (name, box, tensors[name][box.slices()])
            for name in tensors
            for box, rank in held_by[name]
            if rank == backend.rank
        ]
        wanted = [
            (name, box, numpy.full(box.size, numpy.nan, tensors[name].dtype))
            for name in tensors
            for box, rank in wanted_by[name]
            if rank == backend.rank
        ]
        wanted.append(("b", Box((3,), (4,)), numpy.full(4, numpy.nan)))  # wanted by all
        redistribute(backend, held, wanted)
        return wanted

    for wanted in sk.run_ranks(num_ranks, on_rank):
        for name, box, array in wanted:
            numpy.testing.assert_array_equal(array.reshape(box.shape), tensors[name][box.slices()])


@pytest.mark.parametrize("stored", [{}, {"epoch": 2, "sample": 3, "samples": 5, "next_step": 3}])
@pytest.mark.thorough
def test_a_rank_that_joins_knows_where_the_data_of_the_run_went_on(stored, tmp_path):
    def run(backend):
        first = model_on(backend, "fsdp")
        take_steps(first, 1)
        first.save_model(tmp_path, data_position=stored)
        model = model_on(backend, "fsdp")
        model.load_model(tmp_path)
        copies = Neighbors(parts_of(model))
        take_steps(model, 2, copies)
        living = backend.split(None if backend.rank == 0 else 0)
        if living is None:
            return None
        other = model_on(living, "fsdp")
        assert restore(living, [copies], parts_of(other)) == 3
        return parts_of(other).checkpoints.data_position

    assert sk.run_ranks(2, run)[1] == stored


def test_a_model_that_takes_weights_alone_has_no_place_in_the_data_of_others(tmp_path):
    def run(backend):
        first = model_on(backend, "fsdp")
        first.save_model(tmp_path, data_position={"epoch": 2})
        model = model_on(backend, "fsdp")
        model.load_model(tmp_path, only="model")
        return parts_of(model).checkpoints.data_position

    assert sk.run_ranks(2, run) == [{}] * 2
