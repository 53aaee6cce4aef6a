"""Where the stages of a pipeline begin."""

import numpy
import pytest
from builders import small_gpt, token_batch

import shardkit as sk
from shardkit.testing import parallel
from shardkit.testing.parallel import (
    multiplied_elements,
    plan_units,
    stage_ranges,
    unit_costs,
)


def units_of(model, minimum=1):
    return plan_units(model, minimum)


def lengths(ranges):
    return [len(r) for r in ranges]


def test_uniform_counts_blocks_and_parameters_count_elements():
    model = sk.models.MLP([8, 100, 4, 4, 4, 4])
    units = units_of(model)
    assert lengths(stage_ranges(units, 2, "uniform")) in ([2, 3], [3, 2])
    assert lengths(stage_ranges(units, 2, "parameters")) == [1, 4]
    assert unit_costs(units, "parameters")[0] == 8 * 100 + 100


def test_compute_leaves_out_tables_and_counts_a_tied_head():
    untied, tied = small_gpt(), small_gpt(tied=True)
    embedding, *_, head = [block for _, block in tied.blocks()]
    assert multiplied_elements(embedding) == 0
    assert multiplied_elements(head) == 61 * 16
    of_block = 4 * 16 * 16 + 2 * 4 * 16 * 16  # four projections, and the two of the feed-forward
    assert unit_costs(units_of(untied), "compute") == [0, of_block, of_block, 61 * 16]


def test_costs_by_block_are_added_up_over_merged_blocks():
    units = units_of(small_gpt(), minimum=4000)
    assert [len(unit.blocks) for unit in units] == [2, 2]
    assert unit_costs(units, (1.0, 2.0, 4.0, 8.0)) == [3.0, 12.0]


@pytest.mark.parametrize("balance", ["fair", (1.0, 2.0), (1.0, 2.0, 3.0, -4.0)], ids=str)
def test_a_balance_that_is_none_is_refused(balance):
    with pytest.raises(sk.ConfigurationError, match="stage_balance"):
        stage_ranges(units_of(small_gpt()), 2, balance)


def test_stages_by_hand_hold_these_blocks():
    assert lengths(stage_ranges(units_of(small_gpt()), 2, blocks_per_stage=(3, 1))) == [3, 1]

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, blocks_per_stage=(1, 3), minimum_parameter_group_size=1
        )
        model = sk.PipelineParallelModel(small_gpt(), config)
        return {
            piece.name.split(".")[0] for unit in parallel.units_of(model) for piece in unit.pieces()
        }

    assert sk.run_ranks(2, run) == [{"embedding"}, {"blocks", "head"}]


@pytest.mark.parametrize("by_hand", [(4,), (2, 3), (4, 0), (1, 2, 1)], ids=str)
def test_stages_by_hand_that_do_not_add_up_are_refused_with_the_arithmetic(by_hand):
    with pytest.raises(sk.ConfigurationError, match="4 blocks for 2 stages"):
        stage_ranges(units_of(small_gpt()), 2, blocks_per_stage=by_hand)


def test_a_stage_by_hand_cannot_begin_inside_a_unit():
    with pytest.raises(
        sk.ShardingError,
        match="at block 1, inside a unit of merged blocks; units begin at blocks 0, 2",
    ):
        stage_ranges(units_of(small_gpt(), minimum=4000), 2, blocks_per_stage=(1, 3))


def test_measured_seconds_are_the_same_on_all_ranks_and_leave_the_model_as_it_was():
    x, y = token_batch(0, 2)

    def run(backend):
        model = small_gpt(layers=3)
        seconds = sk.measure_blocks(model, x, y, backend)
        assert all(
            parameter.is_fresh and parameter.grad is None for parameter in model.parameters()
        )
        config = sk.ShardingConfiguration(
            backend, stage_balance=seconds, minimum_parameter_group_size=64
        )
        return seconds, sk.PipelineParallelModel(model, config).train(x, y)

    first, second = sk.run_ranks(2, run)
    assert first == second
    assert len(first[0]) == 5 and min(first[0]) > 0


def test_measured_seconds_tell_a_large_block_from_a_small_one():
    x, y = numpy.ones((64, 8), "float32"), numpy.ones((64, 2), "float32")
    model = sk.models.MLP([8, 2000, 2000, 2, 2])
    seconds = sk.run_ranks(1, lambda backend: sk.measure_blocks(model, x, y, backend))[0]
    assert (
        len(seconds) == 5 and seconds[2] > 5 * seconds[4]
    )  # the first block switches features off
