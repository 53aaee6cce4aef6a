"""Decisions that all ranks take alike: steps that are skipped, memory that runs out on one rank,
and stopping.
"""

import threading

import numpy
import pytest
from builders import STRATEGIES, small_gpt, token_batch
from sabotage import WAYS, sabotage, threads_without_room

import shardkit as sk
from shardkit import OutOfMemoryError, StopVoted
from shardkit.testing.base import PeerError
from shardkit.testing.comm import Ballot
from shardkit.testing.parallel import (
    has_pending_gradients,
    pools_of,
    skips_of,
    training_state_of,
    voting,
)

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)
CLIPPING = pytest.mark.parametrize("clip", [1.0, None], ids=["clipped", "not clipped"])
MEMORY = [way for way in WAYS if way.startswith("memory")]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN is the point here


def make(backend, strategy, how=None, rank=1, steps=(1,), **settings):
    """A small model whose second block goes wrong on this rank in these steps."""
    model = small_gpt()
    settings = {
        "optimizer": sk.AdamW(lr=1e-2),
        "max_gradient_norm": 1.0,
        "minimum_parameter_group_size": 64,
        **settings,
    }
    sharded = STRATEGIES[strategy](model, sk.ShardingConfiguration(backend, **settings))
    if how is not None:
        sabotage(model, 1, how, lambda: backend.rank == rank and sharded.step_number in steps)
    return sharded


def state_of(model):
    """Everything that a step may change on this rank, as bytes."""
    return [array.tobytes() for _, _, array in training_state_of(model).owned_boxes()]


def step(model, number, samples=8):
    return model.train(*sk.split_batch(model.mesh, *token_batch(number, samples)))


def test_a_batch_that_one_rank_has_no_room_for_is_an_error_of_all(monkeypatch):
    """As on a GPU, where the batch of a step is copied to."""
    without_room = threads_without_room(monkeypatch)

    def run(backend):
        model = make(backend, "FSDP")
        step(model, 0)
        before = state_of(model)
        if backend.rank == 1:
            without_room.add(threading.get_ident())
        for call in (model.train, model.compute_gradients):
            wanted = "^rank 1 ran out of memory in the batch of step 2: Out of memory allocating"
            with pytest.raises(OutOfMemoryError, match=wanted):
                call(*sk.split_batch(model.mesh, *token_batch(1)))
        without_room.clear()
        assert state_of(model) == before
        assert 0 < step(model, 1) < 5

    sk.run_ranks(2, run)


@EVERY_STRATEGY
@CLIPPING
@pytest.mark.parametrize("how", ["nan", "infinite gradient"])
@pytest.mark.thorough(but=2)
def test_a_bad_number_on_one_rank_skips_the_step_on_all(strategy, clip, how):
    def run(backend):
        model = make(backend, strategy, how, max_gradient_norm=clip)
        step(model, 0)
        before = state_of(model)
        loss = step(model, 1)
        assert state_of(model) == before and model.step_number == 2
        skipped = skips_of(model)
        after = step(model, 2)
        assert state_of(model) != before and numpy.isfinite(after)
        return loss, skipped.total, model.get_model_metadata()["history"]["skipped_steps"]

    for loss, *counts in sk.run_ranks(3, lambda backend: run(backend)):
        assert numpy.isnan(loss) == (how == "nan") and counts == [1, 1]


def test_a_skip_names_the_ranks_whose_loss_was_bad():
    def run(backend):
        model = make(backend, "FSDP", "nan")
        step(model, 0)
        step(model, 1)
        text = str(skips_of(model).last)
        step(model, 2)
        return text, skips_of(model).last

    for text, last in sk.run_ranks(3, run):
        assert (
            text == "step 2 skipped: loss nan, gradient norm nan, in the loss on rank 1"
            and last is None
        )


@pytest.mark.thorough
def test_a_skipped_step_is_for_the_rule_as_if_it_had_not_been():
    """Moments, bias correction and learning rate: the next batches train to the bits of a run
    without the bad one.
    """

    def run(backend, how, batches):
        rate = sk.schedules.Cosine(1e-2, warmup_steps=2, decay_steps=6)
        model = make(backend, "ZeRO-2", how, optimizer=sk.AdamW(lr=rate))
        for number in batches:
            step(model, number)
        return model.gather_full_parameters()

    spoilt = sk.run_ranks(2, lambda backend: run(backend, "nan", [0, 1, 2, 3]))[0]
    without = sk.run_ranks(2, lambda backend: run(backend, None, [0, 2, 3]))[0]
    assert (spoilt == without).all()


@pytest.mark.thorough
def test_skipped_steps_are_remembered_in_a_checkpoint(tmp_path):
    def run(backend):
        model = make(backend, "FSDP", "infinite gradient")
        step(model, 0)
        step(model, 1)
        model.save_model(tmp_path)
        again = make(backend, "DDP")
        again.load_model(tmp_path)
        for number in (2, 3):
            step(model, number)
            step(again, number)
        assert skips_of(again).total == 1
        return (model.gather_full_parameters() == again.gather_full_parameters()).all()

    assert all(sk.run_ranks(2, run))


def test_skips_in_a_row_begin_anew_after_a_good_step():
    def run(backend):
        model = make(backend, "DDP", "nan", steps=(0, 2, 3))
        rows = []
        for number in range(5):
            step(model, number)
            rows.append(skips_of(model).in_a_row)
        return rows, skips_of(model).total

    assert sk.run_ranks(2, run) == [([1, 0, 1, 2, 0], 3)] * 2


@pytest.mark.parametrize("pipeline, tensor", [(2, 1), (1, 2), (2, 2)])
@pytest.mark.thorough
def test_a_bad_number_anywhere_on_a_mesh_skips_the_step_everywhere(pipeline, tensor):
    def run(backend, rank, clip):
        model = sk.models.GPT(64, 12, width=16, layers=2, heads=2)
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=1e-2),
            max_gradient_norm=clip,
            minimum_parameter_group_size=64,
            micro_batches=2,
        )
        sharded = sk.HybridShardedModel(model, config, pipeline, tensor)
        before = state_of(sharded)
        for number in (1, 2):
            block = 0 if sharded.mesh.coordinates.pipeline == 0 else -1
            sabotage(
                model,
                block,
                "nan",
                lambda: number == 1 and sharded.step_number == 0 and backend.rank == rank,
            )
            step(sharded, number)
            if number == 1:
                assert state_of(sharded) == before
        return state_of(sharded) != before, skips_of(sharded).total

    for rank in range(2 * pipeline * tensor):
        clip = [1.0, None][rank.bit_count() % 2]  # each on both sides of every axis
        assert sk.run_ranks(2 * pipeline * tensor, lambda backend: run(backend, rank, clip)) == [
            (True, 1)
        ] * (2 * pipeline * tensor)


@pytest.mark.strength(1)
@EVERY_STRATEGY
@pytest.mark.parametrize("how", MEMORY)
@pytest.mark.thorough(but=2)
def test_memory_that_runs_out_on_one_rank_is_the_same_error_on_all_and_changes_nothing(
    strategy, how
):
    clip = [1.0, None][(list(STRATEGIES).index(strategy) + MEMORY.index(how)) % 2]

    def run(backend):
        model = make(backend, strategy, how, max_gradient_norm=clip, micro_batches=2)
        step(model, 0, 12)
        before = state_of(model)
        with pytest.raises(OutOfMemoryError) as caught:
            step(model, 1, 12)
        assert (
            isinstance(caught.value, MemoryError)
            and model.step_number == 1
            and state_of(model) == before
        )
        pool = pools_of(model).whole_gradients
        assert not pool._out, "a gradient buffer was lost"
        backend.barrier()
        training_state_of(model).step_number = 5  # past the sabotage
        assert numpy.isfinite(step(model, 2, 12))
        return str(caught.value)

    texts = sk.run_ranks(3, run)
    assert len(set(texts)) == 1
    assert (
        texts[0].startswith("rank 1 ran out of memory in 0.")
        and "8.00 EiB" in texts[0]
        and "parameters" in texts[0]
    )


@pytest.mark.strength(1)
@pytest.mark.parametrize("how", MEMORY)
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.thorough(but=2)
def test_memory_that_runs_out_in_a_pipeline_is_the_same_error_on_all(how, rank):
    """In the second step, when the shapes of messages are known. The schedules go round."""
    schedule = ("1f1b", "gpipe", "zb-h1")[(rank + MEMORY.index(how)) % 3]

    def run(backend):
        model = sk.models.GPT(64, 12, width=16, layers=3, heads=2)
        config = sk.ShardingConfiguration(
            backend,
            max_gradient_norm=1.0,
            minimum_parameter_group_size=64,
            micro_batches=4,
            schedule=schedule,
        )
        sharded = sk.HybridShardedModel(model, config, 2)
        sabotage(
            model,
            1 if sharded.mesh.coordinates.pipeline == 0 else -2,
            how,
            lambda: backend.rank == rank and sharded.step_number == 1,
        )
        step(sharded, 0, 16)
        with pytest.raises(OutOfMemoryError, match=f"^rank {rank} ran out of memory") as caught:
            step(sharded, 1, 16)
        training_state_of(sharded).step_number = 5
        assert numpy.isfinite(step(sharded, 2, 16))
        return str(caught.value)

    assert len(set(sk.run_ranks(4, run))) == 1


def test_memory_that_runs_out_before_shapes_are_known_names_the_rank_too():
    def run(backend):
        model = sk.models.GPT(64, 12, width=16, layers=2, heads=2)
        sharded = sk.PipelineParallelModel(
            model, sk.ShardingConfiguration(backend, minimum_parameter_group_size=64)
        )
        sabotage(model, 0, "memory in forward", lambda: backend.rank == 0)
        step(sharded, 0)

    with pytest.raises(sk.ShardkitError, match="rank 0 .*ran out of memory"):
        sk.run_ranks(2, run)


@pytest.mark.parametrize(
    "act",
    [lambda m, x, y: m.compute_gradients(x, y), lambda m, x, y: m.train(x, y)],
    ids=["compute_gradients", "accumulate"],
)
def test_memory_that_runs_out_without_a_step_is_the_same_error_on_all(act):
    def run(backend):
        model = make(
            backend, "FSDP", "memory in forward", steps=(0,), auto_synchronize_gradients=False
        )
        x, y = sk.split_batch(model.mesh, *token_batch(0, 8))
        with pytest.raises(OutOfMemoryError) as caught:
            act(model, x, y)
        assert not has_pending_gradients(model)
        return str(caught.value)

    texts = sk.run_ranks(2, run)
    assert len(set(texts)) == 1 and texts[0].startswith("rank 1 ran out of memory")


def test_one_ranks_wish_to_stop_stops_all_ranks_before_the_same_step():
    def run(backend):
        model = make(backend, "ZeRO-1")
        ballot = Ballot(
            signal=lambda: backend.rank == 2 and model.step_number == 2, time=lambda: False
        )
        with pytest.raises(StopVoted) as caught, voting(model, ballot):
            for number in range(5):
                step(model, number)
        return model.step_number, caught.value.reasons

    assert sk.run_ranks(3, run) == [(2, ("signal",))] * 3


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("error", [OSError, KeyError])
def test_a_question_that_fails_on_one_rank_is_an_error_on_all_and_no_step(error, auto):
    def run(backend):
        def fails():
            if backend.rank == 1 and model.step_number == 1:
                raise error("no clock")
            return False

        model = make(backend, "ZeRO-1", auto_synchronize_gradients=auto)
        with voting(model, Ballot(signal=lambda: False, time=fails, patience=lambda: False)):
            train_on(model, 0, auto)
            with pytest.raises((error, PeerError), match="no clock") as caught:
                train_on(model, 1, auto)
        train_on(model, 1, auto)
        return model.step_number, type(caught.value)

    other = OSError if error is OSError else PeerError  # KeyError is nobody's to handle
    results = sk.run_ranks(3, run, timeout=500)
    assert results == [(2, other), (2, error), (2, other)]


def train_on(model, number, auto):
    model.train(*sk.split_batch(model.mesh, *token_batch(number, 12)))
    if not auto:
        model.synchronize_gradients()
        model.step()


def test_the_vote_to_stop_and_a_good_step_cost_no_message():
    def messages(backend, ballot):
        model = make(backend, "FSDP")
        step(model, 0)
        model.mesh.world.traffic.reset()
        with voting(model, ballot):
            step(model, 1)
        return dict(model.mesh.world.traffic.calls)

    without = sk.run_ranks(2, lambda backend: messages(backend, None))
    with_votes = sk.run_ranks(
        2, lambda backend: messages(backend, Ballot(signal=lambda: False, time=lambda: False))
    )
    assert without == with_votes and without[0] == {"all_reduce": 1}
