"""Copies that several ranks hold, their drift, and what tensor-parallel ranks hold apart, on ranks
that are threads.
"""

import math

import numpy
import pytest
from builders import token_batch

import shardkit as sk
from shardkit.testing.parallel import gradient_norm_of, units_of

OPTIMIZERS = {
    "DDP": sk.DDPOptimizer,
    "ZeRO-1": sk.ZeRO1Optimizer,
    "ZeRO-2": sk.ZeRO2Optimizer,
    "FSDP": sk.FSDPOptimizer,
    "pipeline": sk.PipelineParallelOptimizer,
    "tensor": sk.TensorParallelOptimizer,
}


def gpt(**changes):
    """Cut by 2, 3 and 4 tensor ranks."""
    return sk.models.GPT(
        60, 12, **{"width": 24, "layers": 2, "heads": 12, "seed": 3, "dtype": "float64", **changes}
    )


def gpt_batch(step):
    x, y = token_batch(step)
    return x % 60, y % 60


def held_bits(sharded):
    """{(tensor, box): bits} of all that this rank keeps."""
    return {
        (f"{h.group}/{p.name}", str(unit.plan.parameters[p.name].box), str(p.box)): h.values[
            p.start : p.stop
        ].tobytes()
        for unit in units_of(sharded)
        for h in unit.holdings()
        for p in h.pieces
    }


def disagreements(backend, sharded):
    """Boxes that two ranks hold with different bits. Collective."""
    everyones, wrong = backend.all_gather_object(held_bits(sharded)), set()
    for one in everyones:
        for other in everyones:
            wrong |= {key[0] for key in one.keys() & other.keys() if one[key] != other[key]}
    return wrong


def perturb(sharded, tensor, amount):
    """Add to one element of a tensor on this rank; False if this rank holds nothing of it."""
    group, _, name = tensor.rpartition("/")
    for unit in units_of(sharded):
        for holding in unit.holdings():
            for piece in holding.pieces:
                if (holding.group, piece.name) == (group, name):
                    holding.values[piece.stop - 1] += amount
                    return True
    return False


# kind or sizes, ranks, model, tensor, rank whose copy is changed, does the first holder keep its
# bits
CASES = {
    "norm over tensor": (
        "tensor",
        2,
        {},
        "optimizer/first_moment/blocks.0.attention_norm.weight",
        1,
        True,
    ),
    "row bias over tensor": (
        "tensor",
        3,
        {},
        "optimizer/second_moment/blocks.1.mlp.down.bias",
        2,
        True,
    ),
    "parameter over tensor": ("tensor", 4, {}, "model/head.norm.weight", 3, True),
    "first holder over tensor": (
        "tensor",
        2,
        {},
        "optimizer/first_moment/blocks.0.attention_norm.weight",
        0,
        False,
    ),
    "key head of a sub-group": (
        "tensor",
        4,
        {"kv_heads": 2},
        "optimizer/first_moment/blocks.0.attention.key.weight",
        3,
        True,
    ),
    "state over data": ("DDP", 3, {}, "optimizer/second_moment/blocks.0.mlp.up.weight", 2, True),
    "parameter over data": ("ZeRO-1", 2, {}, "model/blocks.0.mlp.up.weight", 1, True),
    "tied over pipeline": (
        "pipeline",
        2,
        {"tied": True},
        "optimizer/first_moment/embedding.tokens.weight",
        1,
        True,
    ),
    "tied owner over pipeline": (
        "pipeline",
        3,
        {"tied": True},
        "model/embedding.tokens.weight",
        0,
        False,
    ),
    "row bias under FSDP": (
        (1, 2),
        4,
        {},
        "optimizer/first_moment/blocks.0.mlp.down.bias",
        3,
        True,
    ),
    "tied over three axes": (
        (2, 2),
        8,
        {"tied": True},
        "optimizer/first_moment/embedding.tokens.weight",
        7,
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.thorough(but=4)
def test_a_drifted_copy_is_reported_and_becomes_the_first_holders_bits(case):
    kind, num_ranks, changes, tensor, changed_rank, is_restored = CASES[case]

    def trained(backend):
        config = sk.ShardingConfiguration(
            backend, max_gradient_norm=0.7, minimum_parameter_group_size=64
        )
        if isinstance(kind, tuple):
            sizes = {
                "pipeline_parallel_size": kind[0],
                "tensor_parallel_size": kind[1],
                "policy": "ddp" if changes else "fsdp",
            }
            optimizer = sk.HybridShardedOptimizer(
                sk.AdamW(lr=1e-2), config, model=gpt(**changes), **sizes
            )
        else:
            optimizer = OPTIMIZERS[kind](sk.AdamW(lr=1e-2), config, model=gpt(**changes))
        for step in range(2):
            optimizer.model.train(*sk.split_batch(optimizer.model.mesh, *gpt_batch(step)))
        return optimizer

    def run(backend):
        optimizer = trained(backend)
        sharded = optimizer.model
        clean = optimizer.synchronize_optimizer_state()
        assert (
            clean.largest == 0
            and clean.tensor is None
            and tensor in clean.by_tensor
            and "no drift" in str(clean)
        )
        before = held_bits(sharded)
        if backend.rank == changed_rank:
            assert perturb(sharded, tensor, 1e-3)
        assert disagreements(backend, sharded) == {tensor}
        drift = optimizer.synchronize_optimizer_state()
        assert not disagreements(backend, sharded)
        assert optimizer.synchronize_optimizer_state() == clean
        assert (held_bits(sharded) == before) == is_restored or not any(
            key[0] == tensor for key in before
        )
        return drift

    drifts = sk.run_ranks(num_ranks, run)
    assert all(drift == drifts[0] for drift in drifts)
    drift = drifts[0]
    assert drift.tensor == tensor and drift.largest == drift.by_tensor[tensor] == pytest.approx(
        1e-3, rel=1e-6
    )
    assert [t for t, gap in drift.by_tensor.items() if gap] == [tensor]
    assert tensor in str(drift) and "\n" not in str(drift)


def test_nothing_is_reported_that_one_rank_alone_holds():
    def shared(kind, num_ranks, **changes):
        def run(backend):
            config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=64)
            optimizer = OPTIMIZERS[kind](sk.AdamW(), config, model=gpt(**changes))
            return set(optimizer.synchronize_optimizer_state().by_tensor)

        return sk.run_ranks(num_ranks, run)[0]

    assert (
        shared("FSDP", 3)
        == shared("pipeline", 3)
        == shared("DDP", 1)
        == shared("tensor", 1)
        == set()
    )
    assert shared("ZeRO-2", 2) == {f"model/{name}" for name in gpt().named_parameters()}
    groups = ("model", "optimizer/first_moment", "optimizer/second_moment")
    assert shared("pipeline", 3, tied=True) == {
        f"{group}/embedding.{name}.weight" for group in groups for name in ("tokens", "positions")
    }  # a copy is of the whole unit
    whole = {
        name
        for name in gpt().named_parameters()
        if "norm" in name or "positions" in name or name.endswith(("output.bias", "down.bias"))
    }
    assert shared("tensor", 2) == {f"{group}/{name}" for name in whole for group in groups}


def test_numbers_that_are_not_finite_are_an_infinite_drift():
    def run(backend):
        optimizer = sk.DDPOptimizer(
            sk.AdamW(), sk.ShardingConfiguration(backend), model=sk.models.MLP([6, 12, 2])
        )
        if backend.rank == 1:
            perturb(optimizer.model, "model/layers.0.bias", math.nan)
        return [optimizer.synchronize_optimizer_state().largest for _ in range(2)]

    assert sk.run_ranks(2, run) == [[math.inf, 0.0]] * 2


# ---- tensor parallelism --------------------------------------------------------------------------


def tensor_run(steps, load=None, save=None, **changes):
    """What each rank has after some steps of a TensorParallelOptimizer: slices, replicated bits,
    norm, whole vector.
    """

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, max_gradient_norm=0.05, minimum_parameter_group_size=64
        )
        optimizer = sk.TensorParallelOptimizer(sk.AdamW(lr=1e-2), config, model=gpt(**changes))
        sharded, norms = optimizer.model, []
        if load:
            optimizer.load_model(load)
        for step in range(optimizer.model.step_number, steps):
            optimizer.model.train(*gpt_batch(step))
            norms.append(gradient_norm_of(sharded))
        if save:
            optimizer.save_model(save)
        held = {
            f"{h.group}/{p.name}": h.values[p.start : p.stop].copy()
            for unit in units_of(sharded)
            for h in unit.holdings()
            for p in h.pieces
        }
        return held, norms, optimizer.model.gather_full_parameters()

    return run


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_slices_differ_and_replicated_parameters_and_their_state_are_equal_bits(num_ranks):
    results = sk.run_ranks(num_ranks, tensor_run(4))
    _, norms, expected = sk.run_ranks(1, tensor_run(4))[0]
    first = results[0][0]
    for held, got_norms, parameters in results[1:]:
        for tensor, values in held.items():
            is_cut = (
                "norm" not in tensor
                and "positions" not in tensor
                and not tensor.endswith(("output.bias", "down.bias"))
            )
            assert (
                values.tobytes() != first[tensor].tobytes()
                if is_cut
                else values.tobytes() == first[tensor].tobytes()
            ), tensor
        numpy.testing.assert_allclose(parameters, expected, rtol=1e-8, atol=1e-11)
        numpy.testing.assert_allclose(got_norms, norms, rtol=1e-10)  # every element counts once
        assert min(norms) > 0.05, "nothing was clipped"


@pytest.mark.parametrize("loaded", [1, 4])
@pytest.mark.thorough(but=1)
def test_state_saved_by_two_tensor_ranks_goes_on_under_another_tensor_size_as_the_serial_run(
    loaded, tmp_path
):
    sk.run_ranks(2, tensor_run(3, save=tmp_path))
    _, norms, expected = sk.run_ranks(1, tensor_run(6))[0]
    for _, got_norms, parameters in sk.run_ranks(loaded, tensor_run(6, load=tmp_path)):
        numpy.testing.assert_allclose(parameters, expected, rtol=1e-8, atol=1e-11)
        numpy.testing.assert_allclose(got_norms, norms[3:], rtol=1e-9)
