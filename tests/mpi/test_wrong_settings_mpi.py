"""MPI ranks: what is wrong on one rank only is refused on all, and they go on together."""

import itertools

import numpy
import pytest
from wrong_settings import CALLED, MADE, batch, mlp

import shardkit as sk

SETTINGS = (
    "micro_batches",
    "compute_dtype",
    "schedule: number",
    "AdamW lr",
    "EMA of a rule",
    "Cosine decay_steps",
    "group: lr_scale",
    "hybrid: policy",
    "optimizer: patience",
    "the model",
)
CALLS = (
    "train: micro-batches",
    "predict: dims",
    "set_parameters: length",
    "apply_gradients: rate",
    "use_rule: lr",
    "optimize: epochs",
    "save_model: path",
    "load_model: only",
)
ODD = {"the first": lambda b: b.rank == 0, "the last": lambda b: b.rank == b.world_size - 1}


def in_turn(names):
    """Each name at one rank or the other: whose it is makes no difference to what is compared."""
    return list(zip(names, itertools.cycle(ODD)))


def told_by_all(backend, act, where):
    """What each rank is told: class and message."""
    with pytest.raises((sk.ShardkitError, ValueError, TypeError)) as caught:
        act(ODD[where](backend))
    return backend.all_gather_object((type(caught.value).__name__, str(caught.value)))


def check(backend, told, words, where):
    rank = 0 if where == "the first" else backend.world_size - 1
    assert len(set(told)) == 1 and words in told[0][1], told
    assert backend.world_size == 1 or f"rank {rank}" in told[0][1]


@pytest.mark.parametrize("name, where", in_turn(SETTINGS))
def test_a_setting_that_is_wrong_on_one_rank_is_refused_on_all(backend, name, where):
    if backend.world_size == 1:
        pytest.skip("alone, a rank is told where it makes the setting")
    make, words = MADE[name]
    check(backend, told_by_all(backend, lambda wrong: make(backend, wrong), where), words, where)
    again = sk.DDPModel(mlp(), sk.ShardingConfiguration(backend))
    assert numpy.isfinite(again.train(*batch()))
    again.close()


@pytest.mark.parametrize("name, where", in_turn(CALLS))
def test_a_call_that_is_wrong_on_one_rank_is_refused_on_all(backend, name, where):
    call, words = CALLED[name]
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(), micro_batches=2)
    model = sk.DDPModel(mlp(), config)
    before = model.gather_full_parameters()
    check(backend, told_by_all(backend, lambda wrong: call(model, wrong), where), words, where)
    assert (model.gather_full_parameters() == before).all()
    model.close()
