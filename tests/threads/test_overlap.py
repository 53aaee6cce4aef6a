"""Messages between data ranks that travel while units compute: the same bits, bounded memory, and a
choice that is measured.
"""

import time

import numpy
import pytest
from hybrids import batch, gpt, hybrid
from sabotage import WAYS, sabotage
from test_traffic import UNIT, ThreeLayers

import shardkit as sk
from shardkit import ConfigurationError, OutOfMemoryError
from shardkit.testing.parallel import (
    Overlap,
    device_of,
    overlap_of,
    pools_of,
    program_of,
    runtime_of,
    training_state_of,
    units_of,
)
from shardkit.testing.schedule import Kind


def ends(num_ranks, make_model, steps=2):
    """The parameters of all ranks after some steps, and the kinds of actions in the program."""

    def run(backend):
        model = make_model(backend)
        losses = [model.train(*sk.split_batch(model.mesh, *batch(step))) for step in range(steps)]
        return (
            losses,
            model.gather_full_parameters().tobytes(),
            {action.kind for action in program_of(model)},
        )

    return sk.run_ranks(num_ranks, run)


CASES = {
    "ddp": (2, (1, 2, 1), {"policy": "ddp"}),
    "zero1 on 3": (3, (1, 3, 1), {"policy": "zero1"}),
    "zero2, gpipe": (2, (1, 2, 1), {"policy": "zero2", "schedule": "gpipe"}),
    "fsdp on 4": (4, (1, 4, 1), {"policy": "fsdp"}),
    "fsdp, gpipe": (3, (1, 3, 1), {"policy": "fsdp", "schedule": "gpipe"}),
    "fsdp, sums of MPI": (3, (1, 3, 1), {"policy": "fsdp", "deterministic": False}),
    "fsdp, compressed": (2, (1, 2, 1), {"policy": "fsdp", "gradient_compression": "float16"}),
    "fsdp, checkpointed": (2, (1, 2, 1), {"policy": "fsdp", "activation_checkpointing": True}),
    "hsdp": (4, (1, 4, 1), {"policy": "hsdp"}),
    "hsdp of 1 on 3": (3, (1, 3, 1), {"policy": "hsdp"}),
    "hsdp of 4, gpipe": (8, (1, 8, 1), {"policy": "hsdp", "schedule": "gpipe", "shard_ranks": 4}),
    "pipeline": (4, (2, 2, 1), {"policy": "fsdp", "schedule": "1f1b"}),
    "v": (4, (2, 2, 1), {"policy": "zero2", "schedule": "zb-v"}),
    "hybrid": (8, (2, 2, 2), {"policy": "fsdp", "schedule": "interleaved"}),
}


@pytest.mark.parametrize(
    "case, tied",
    [(case, False) for case in CASES] + [(case, True) for case in ("ddp", "fsdp, gpipe", "v")],
)
@pytest.mark.thorough(but=1)
def test_the_bits_are_those_of_steps_without_overlap(case, tied):
    num_ranks, mesh, settings = CASES[case]
    layers = 4 if mesh[0] > 1 else 2

    def make(overlap):
        return lambda backend: hybrid(
            backend, mesh, model=gpt(layers, tied=tied), overlap=overlap, **settings
        )

    without, ahead = ends(num_ranks, make(False)), ends(num_ranks, make(True))
    assert [end[:2] for end in ahead] == [end[:2] for end in without]
    gathers = settings["policy"] in ("fsdp", "hsdp") and case != "hsdp of 1 on 3"
    begun = {Kind.BEGIN_GATHER} if gathers else set()
    begun |= (
        {Kind.BEGIN_REDUCE}
        if settings.get("deterministic", True) and "gradient_compression" not in settings
        else set()
    )
    assert all(end[2] - of_plain[2] == begun for end, of_plain in zip(ahead, without))


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap, gathered, in_flight", [(False, 1, 1), (True, 2, 3)])
def test_one_more_unit_is_gathered_and_two_more_of_its_gradients_are_in_flight(
    overlap, gathered, in_flight
):
    """Of the gradients one travels, one is what comes from other ranks, and one is computed."""

    def run(backend):
        config = sk.ShardingConfiguration(backend, schedule="gpipe", overlap=overlap)
        model = sk.FSDPModel(ThreeLayers(), config)
        model.train(numpy.ones((4, 64), "float32"), numpy.ones((4, 48), "float32"))
        accounts = device_of(model).accounts
        return [
            accounts.peak_bytes(purpose) / 4 / UNIT
            for purpose in ("gathered parameters", "gradients in flight")
        ]

    assert sk.run_ranks(2, run) == [[gathered, in_flight]] * 2


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
@pytest.mark.parametrize("how", [way for way in WAYS if way.startswith("memory")])
def test_memory_that_runs_out_on_one_rank_loses_no_buffer_and_is_the_same_error_on_all(policy, how):
    def run(backend):
        model = gpt(2)
        sharded = hybrid(backend, (1, 3, 1), policy, model=model, overlap=True)
        sabotage(model, 1, how, lambda: backend.rank == 1 and sharded.step_number == 0)
        with pytest.raises(OutOfMemoryError, match="^rank 1 ran out of memory") as caught:
            sharded.train(*sk.split_batch(sharded.mesh, *batch(0)))
        memory = pools_of(sharded)
        assert not memory.whole_gradients._out and not memory.whole_parameters._out
        training_state_of(sharded).step_number = 1
        assert sharded.train(*sk.split_batch(sharded.mesh, *batch(1))) > 0
        return str(caught.value)

    assert len(set(sk.run_ranks(3, run))) == 1


def test_a_run_that_failed_on_all_ranks_leaves_nothing_that_the_next_one_meets():
    """It fails in the midst of a unit, while the next one is gathered."""

    def run(backend):
        model = gpt(2)
        sharded = hybrid(backend, (1, 2, 1), "fsdp", model=model, overlap=True)
        block, is_due = model.blocks()[1][1], [True]
        forward = block.forward

        def failing(*arguments):
            if is_due.pop() if is_due else False:
                raise ZeroDivisionError
            return forward(*arguments)

        block.forward = failing
        with pytest.raises(ZeroDivisionError):
            sharded.train(*sk.split_batch(sharded.mesh, *batch(0)))
        assert not runtime_of(sharded).movement._under_way
        assert all(
            getattr(unit.lent, "_gathering", None) is None and unit.gradients._reducing is None
            for unit in units_of(sharded)
        )
        return sharded.train(*sk.split_batch(sharded.mesh, *batch(0)))

    without = sk.run_ranks(
        2, lambda backend: hybrid(backend, (1, 2, 1), "fsdp", model=gpt(2)).train(*part(backend, 0))
    )
    assert sk.run_ranks(2, run) == without


def part(backend, step):
    return [numpy.array_split(array, backend.world_size)[backend.rank] for array in batch(step)]


# ---- the choice ----------------------------------------------------------------------------------


class ApartMesh:
    """Ranks whose memory nobody else sees."""

    def __init__(self, backend):
        self.world, self.shares_memory = backend, False

    def group(self, axis):
        return self


@pytest.mark.parametrize(
    "with_overlap, is_kept", [((0.8, 0.9), True), ((0.8, 1.2), False), ((0.99, 0.99), False)]
)
def test_overlap_stays_if_it_is_clearly_quicker_on_the_slowest_rank(with_overlap, is_kept):
    def run(backend):
        overlap, steps = Overlap("auto", ApartMesh(backend), is_possible=True), []
        while not overlap.is_settled:
            steps.append(overlap.is_on)
            slow_start = 5.0 if len(steps) <= 2 else 0.0
            overlap.count(slow_start + (with_overlap[backend.rank] if overlap.is_on else 1.0))
        assert steps == [False, True] * 6
        overlap.count(0.0)
        return overlap.is_on, overlap.medians

    assert sk.run_ranks(2, run) == [(is_kept, {False: 1.0, True: max(with_overlap)})] * 2


@pytest.mark.parametrize(
    "wanted, is_possible, is_on",
    [(True, True, True), (True, False, False), (False, True, False), ("auto", False, False)],
)
def test_what_is_wanted_is_not_tried(wanted, is_possible, is_on):
    def run(backend):
        overlap = Overlap(wanted, ApartMesh(backend), is_possible=is_possible)
        return overlap.is_settled, overlap.is_on, str(overlap)

    assert sk.run_ranks(2, run) == [(True, is_on, "on" if is_on else "off")] * 2


def test_what_one_rank_can_overlap_is_tried_by_all():
    def run(backend):
        return Overlap("auto", ApartMesh(backend), is_possible=backend.rank == 1).is_settled

    assert sk.run_ranks(2, run) == [False] * 2


def test_threads_try_nothing_since_each_copies_for_itself():
    def run(backend):
        return overlap_of(hybrid(backend, (1, 2, 1))).is_settled

    assert sk.run_ranks(2, run) == [True] * 2


@pytest.mark.parametrize("wrong", ["on", None, 1, "always"])
def test_another_word_for_overlap_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="overlap = .*; wanted True or False or auto"):
        sk.ShardingConfiguration(object(), overlap=wrong)


# ---- exposed communication -----------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_that_waits_for_another_says_how_long(overlap):
    """Rank 1 sleeps in the forward of its last block: rank 0 waits for it in a verb of the data
    axis.
    """

    def run(backend):
        model = gpt(1)
        sharded = hybrid(backend, (1, 2, 1), "ddp", model=model, overlap=overlap, micro_batches=1)
        block = model.blocks()[-1][1]
        forward = block.forward

        def sleepy(*arguments):
            time.sleep(0.2 * backend.rank)
            return forward(*arguments)

        block.forward = sleepy
        backend.barrier()
        sharded.train(*sk.split_batch(sharded.mesh, *batch(0)))
        return sharded.get_model_metadata()["exposed_communication_seconds"]

    waiting, late = sk.run_ranks(2, run)
    assert set(waiting) == {"pipeline", "data", "domain", "tensor"}
    assert waiting["data"] > 0.15 > late["data"] and waiting["tensor"] + waiting["pipeline"] < 0.05
