"""HSDP on ranks that are threads: groups of every size, who owns what, and what is refused."""

from hashlib import sha256
from math import prod

import numpy
import pytest
from hybrids import batch, gpt, hybrid, step_once, trained

import shardkit as sk
from shardkit import ConfigurationError, MeshError
from shardkit.testing.layout import POLICIES, check_tree
from shardkit.testing.parallel import synchronize_replicas, training_state_of, units_of

HSDP = POLICIES["hsdp"]
# (pipeline, data, tensor), ranks of a group
GROUPS = [
    ((1, 1, 1), 1),
    ((1, 2, 1), 1),
    ((1, 2, 1), 2),
    ((1, 3, 1), 1),
    ((1, 3, 1), 3),
    ((1, 4, 1), 2),
    ((1, 6, 1), 2),
    ((1, 8, 1), 2),
    ((1, 8, 1), 4),
    ((2, 4, 1), 2),
    ((2, 2, 1), 1),
    ((3, 2, 1), 2),
    ((1, 4, 2), 2),
]


@pytest.mark.parametrize("mesh, sharing", GROUPS, ids=str)
@pytest.mark.thorough(but=1)
def test_gradients_norms_and_bits_are_those_of_ddp(mesh, sharing):
    ours, ddp = trained(mesh, "hsdp", shard_ranks=sharing), trained(mesh, "ddp")
    numpy.testing.assert_array_equal(ours.gradients, ddp.gradients)
    numpy.testing.assert_array_equal(ours.parameters, ddp.parameters)
    assert (ours.losses, ours.norms) == (ddp.losses, ddp.norms)


@pytest.mark.parametrize("mesh, sharing", [((1, 4, 1), 2), ((1, 8, 1), 4), ((2, 4, 1), 1)])
@pytest.mark.thorough(but=2)
def test_float32_bits_are_those_of_one_rank(mesh, sharing):
    """Of 8 micro-batches on any mesh."""

    def on(mesh, policy, **settings):
        return trained(
            mesh,
            policy,
            model=lambda: gpt(2, dtype="float32"),
            micro_batches=8 // mesh[1],
            **settings,
        )

    ours, serial = on(mesh, "hsdp", shard_ranks=sharing), on((1, 1, 1), "ddp")
    numpy.testing.assert_array_equal(ours.gradients, serial.gradients)
    numpy.testing.assert_array_equal(ours.parameters, serial.parameters)


@pytest.mark.parametrize(
    "settings",
    [
        {"deterministic": False},
        {"deterministic": False, "shard_ranks": 3},
        {"gradient_compression": "float16", "shard_ranks": 2},
        {"gradient_compression": "float16", "shard_ranks": 3},
    ],
    ids=str,
)
@pytest.mark.thorough(but=2)
def test_sums_in_another_order_or_of_half_floats_are_close(settings):
    """On 6 data ranks, where no half of them is a branch of the tree."""
    ours = trained((1, 6, 1), "hsdp", steps=1, **settings)
    exact = trained((1, 6, 1), "ddp", steps=1)
    far = numpy.abs(ours.gradients[0] - exact.gradients[0]).max()
    tolerance = 2e-3 if "gradient_compression" in settings else 1e-14
    assert far < tolerance * numpy.abs(exact.gradients[0]).max()


# ---- who has what --------------------------------------------------------------------------------


def owned_sizes(model):
    """Elements that this rank writes to a checkpoint, by what they are."""
    sizes = {}
    for path, piece, _ in training_state_of(model).counted_boxes():
        group = path.removesuffix(f"/{piece.name}")
        sizes[group] = sizes.get(group, 0) + prod(piece.box.shape)
    return sizes


def test_ranks_write_equal_parts_of_a_checkpoint_and_keep_a_shard_of_their_group():
    def run(backend):
        model = hybrid(backend, (1, 4, 1), "hsdp", model=gpt(2, dtype="float32"))
        step_once(model, 0)
        metadata = model.get_model_metadata()
        assert metadata["shard_ranks"] == 2 and "HSDP of 2 ranks" in model.describe()
        return owned_sizes(model), metadata["shard_size"], model.parameter_count

    results = sk.run_ranks(4, run)
    count = results[0][2]
    for group in ("model", "optimizer/first_moment", "optimizer/second_moment"):
        sizes = [sizes[group] for sizes, _, _ in results]
        assert sum(sizes) == count and max(sizes) < 1.2 * count / 4
    shards = [shard for _, shard, _ in results]
    assert shards[:2] == shards[2:] and sum(shards[:2]) == count


@pytest.mark.thorough
def test_every_group_follows_what_is_written_to_one():
    """Whole vectors, copies and optimizer state reach ranks that do not own them."""

    def run(backend):
        model = hybrid(backend, (1, 4, 1), "hsdp")
        step_once(model, 0)
        vector = model.get_parameters() + 1
        model.set_parameters(vector)
        copies = [model, model.deep_copy(), model.with_parameters(vector)]
        again = hybrid(backend, (1, 4, 1), "hsdp", model=gpt(1, seed=9))
        again.deserialize(model.serialize())
        drifts = [synchronize_replicas(one).largest for one in (*copies, again)]
        assert drifts == [0.0] * 4
        assert numpy.array_equal(again.get_parameters(), vector)
        ends = [step_once(one, 1) for one in (*copies[:2], again)]
        assert len(set(ends)) == 1
        return [sha256(one.get_parameters()).digest() for one in (*copies[:2], again)]

    (first, *same), *others = sk.run_ranks(4, run)
    assert all(bits == first for bits in same) and all(set(other) == {first} for other in others)


def test_drift_between_groups_is_seen_and_mended():
    def run(backend):
        model = hybrid(backend, (1, 4, 1), "hsdp")
        unit = units_of(model)[0]
        if backend.rank == 3:
            unit.optimizer.parameters[-1] += 0.5
            unit.optimizer.state["first_moment"].array[0] += 0.25
        found, later = [synchronize_replicas(model) for _ in range(2)]
        return found.largest, found.tensor.partition("/")[0], later.largest

    assert set(sk.run_ranks(4, run)) == {(0.5, "model", 0.0)}


# ---- how large groups are ------------------------------------------------------------------------


def test_a_group_is_what_a_node_has_by_default():
    assert [HSDP.sharing(8, None, 4), HSDP.sharing(8, None, 8), HSDP.sharing(1, None, 1)] == [
        4,
        8,
        1,
    ]
    assert HSDP.sharing(8, 2, 4) == 2 and POLICIES["fsdp"].sharing(8, None, 4) == 8


@pytest.mark.parametrize(
    "hosts, sharing",
    [("aaaa", 4), ("aabb", 2), ("abcd", None), ("aaab", None), ("abab", None)],
)
def test_nodes_of_the_mesh_are_the_groups(monkeypatch, hosts, sharing):
    monkeypatch.setattr(
        "shardkit.testing.comm.mesh._agreed_hosts", lambda backend, shape: list(hosts)
    )

    def run(backend):
        if sharing is None:
            with pytest.raises(MeshError, match="set shard_ranks to one of 1, 2, 4"):
                hybrid(backend, (1, 4, 1), "hsdp", shard_ranks=None)
            return None
        return hybrid(backend, (1, 4, 1), "hsdp", shard_ranks=None).get_model_metadata()[
            "shard_ranks"
        ]

    assert sk.run_ranks(4, run) == [sharing] * 4


@pytest.mark.parametrize(
    "data, settings, error, match",
    [
        (4, {"shard_ranks": 3}, MeshError, "3 does not divide 4 data ranks .* one of 1, 2, 4"),
        (2, {"shard_ranks": 4}, MeshError, "4 does not divide 2 data ranks"),
        (6, {"shard_ranks": 3}, MeshError, "another order .* among 1, 2, 6, or deterministic"),
        (2, {"policy": "fsdp", "shard_ranks": 2}, ConfigurationError, "FSDP has no groups"),
        (2, {"policy": "ddp", "shard_ranks": 1}, ConfigurationError, "DDP has no groups"),
    ],
)
def test_groups_that_cannot_be_are_refused_on_all_ranks(data, settings, error, match):
    def run(backend):
        with pytest.raises(error, match=match):
            hybrid(backend, (1, data, 1), **{"policy": "hsdp", **settings})
        return True

    assert all(sk.run_ranks(data, run))


@pytest.mark.parametrize("num_ranks", range(1, 17))
def test_groups_that_pass_are_whole_branches_of_the_tree(num_ranks):
    for sharing in (size for size in range(1, num_ranks + 1) if num_ranks % size == 0):
        groups = [_tree(range(first, first + sharing)) for first in range(0, num_ranks, sharing)]
        same = _tree(groups) == _tree(range(num_ranks))
        try:
            check_tree(num_ranks, sharing)
        except MeshError:
            assert not same
        else:
            assert same


def _tree(terms):
    """The order of a sum: pairs of neighbors, level by level, an odd one carried up."""
    level = list(terms)
    while len(level) > 1:
        level = [
            tuple(level[i : i + 2]) if i + 1 < len(level) else level[i]
            for i in range(0, len(level), 2)
        ]
    return level[0]


def test_models_with_other_groups_share_a_mesh():
    def run(backend):
        models = [hybrid(backend, (1, 4, 1), "hsdp", shard_ranks=size) for size in (1, 2, 4)]
        for step in range(2):
            assert len({step_once(model, step) for model in models}) == 1
        first, *others = [model.get_parameters() for model in models]
        for model in models:
            model.close()
        return all(numpy.array_equal(first, other) for other in others)

    assert all(sk.run_ranks(4, run))


def test_messages_between_groups_begin_while_units_compute(monkeypatch):
    """Pumped, as soon as the sum within the group is complete on this rank, and not at the end."""
    from shardkit.testing.comm import InTurn

    begun, pump = [], InTurn.pump

    def counted(in_turn):
        left = len(in_turn._later)
        pump(in_turn)
        begun.append(left - len(in_turn._later))

    monkeypatch.setattr(InTurn, "pump", counted)

    def run(backend):
        model = hybrid(backend, (1, 4, 1), "hsdp", model=gpt(4), overlap=True)
        for step in range(3):
            model.train(*sk.split_batch(model.mesh, *batch(step)))

    sk.run_ranks(4, run)
    assert sum(begun) > 0
