"""Orders: what each rank does next, what it keeps, and how long it idles."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit import ScheduleError
from shardkit.testing.schedule import (
    COMPUTE,
    ORDERS,
    Kind,
    draw_text,
    gpipe,
    interleaved_1f1b,
    lower,
    one_f_one_b,
    order_named,
    orders,
    rank_of,
    simulate,
    to_text,
    unit_timeline,
    validate,
    zero_bubble,
    zero_bubble_h1,
)

unhurried = settings(deadline=None)  # the machine may be busy
WHOLE_BACKWARD = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.WEIGHT: 0}
CLASSIC = ("gpipe", "1f1b")
CASES = list(product(CLASSIC, range(1, 7), range(1, 9)))


def timeline(name, stages, micro_batches, durations):
    return simulate(
        lower(ORDERS[name](stages, micro_batches), dict.fromkeys(range(stages), 1)), durations
    )


@st.composite
def asked(draw):
    """Draw an order, and ranks, micro-batches and stages per rank to ask of it."""
    order = ORDERS[draw(st.sampled_from(sorted(ORDERS)))]
    return (
        order,
        draw(st.integers(1, 6)),
        draw(st.integers(1, 8)),
        draw(st.integers(1, 3)) if order.is_flexible else None,
    )


@given(asked())
@unhurried
@pytest.mark.thorough
def test_an_order_runs_every_stage_and_micro_batch_once_on_the_rank_where_the_stage_lives(case):
    order, ranks, micro_batches, virtual = case
    program = order(ranks, micro_batches, virtual)
    validate(program)
    assert list(program) == list(range(ranks))
    assert sum(map(len, program.values())) == 3 * micro_batches * order.num_stages(ranks, virtual)
    for rank, actions in program.items():
        assert {order.rank_of(a.stage, ranks) for a in actions} == {rank}
        assert {a.stage for a in actions} <= set(range(order.num_stages(ranks, virtual)))


@given(asked())
@unhurried
def test_every_stage_takes_its_micro_batches_in_ascending_order(case):
    order, ranks, micro_batches, virtual = case
    for actions in order(ranks, micro_batches, virtual).values():
        for kind, stage in {(a.kind, a.stage) for a in actions}:
            found = [a.micro_batch for a in actions if (a.kind, a.stage) == (kind, stage)]
            assert found == list(range(micro_batches))


@given(asked().filter(lambda case: not case[0].name.startswith("zb")))
@unhurried
def test_a_weight_gradient_follows_its_input_gradient_directly_but_in_zero_bubble_orders(case):
    order, ranks, micro_batches, virtual = case
    for actions in order(ranks, micro_batches, virtual).values():
        assert all(
            two.kind is Kind.WEIGHT
            for one, two in zip(actions, actions[1:])
            if one.kind is Kind.BACKWARD
        )


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.thorough(but=2)
def test_every_order_ends_with_nothing_buffered_on_few_ranks_with_any_number_of_stages_each(name):
    order = ORDERS[name]
    for ranks, virtual, micro_batches in product(
        range(1, 5), range(1, 4) if order.is_flexible else [None], range(1, 9)
    ):
        units = dict.fromkeys(range(order.num_stages(ranks, virtual)), 1)
        simulate(
            lower(order(ranks, micro_batches, virtual), units, clip=True), transfer_seconds=0.5
        )


def test_one_stage_is_gradient_accumulation():
    assert to_text(gpipe(1, 2)) == "0: 0F0 0F1 0B0 0W0 0B1 0W1"
    assert to_text(one_f_one_b(1, 2)) == "0: 0F0 0B0 0W0 0F1 0B1 0W1"


def test_the_programs_in_the_docstrings_are_the_programs_made():
    for order, program in [
        (gpipe, gpipe(2, 3)),
        (one_f_one_b, one_f_one_b(2, 3)),
        (zero_bubble_h1, zero_bubble_h1(2, 3)),
        (interleaved_1f1b, interleaved_1f1b(4, 2, 2)),
    ]:
        for line in to_text(program).splitlines():
            assert line in order.__doc__


@pytest.mark.parametrize(
    "where, name, ranks, micro_batches",
    [
        (orders, "gpipe", 3, 4),
        (orders, "1f1b", 3, 4),
        (orders, "zb-h1", 3, 4),
        (zero_bubble, "zb-v", 2, 3),
    ],
)
def test_the_diagrams_in_the_docstrings_are_what_the_simulator_says(
    where, name, ranks, micro_batches
):
    for row in draw_text(unit_timeline(name, ranks, micro_batches)).splitlines():
        assert row in where.__doc__


@pytest.mark.parametrize("name, stages, micro_batches", CASES)
def test_the_bubble_is_the_one_of_the_papers_when_a_backward_is_one_action(
    name, stages, micro_batches
):
    expected = Fraction(stages - 1, micro_batches + stages - 1)
    found = timeline(name, stages, micro_batches, WHOLE_BACKWARD).bubble_fraction
    assert found == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("name, stages, micro_batches", CASES)
def test_the_bubble_is_smaller_when_the_gradient_leaves_before_the_weight_gradient(
    name, stages, micro_batches
):
    expected = Fraction(2 * (stages - 1), 3 * micro_batches + 2 * (stages - 1))
    found = timeline(name, stages, micro_batches, {kind: 1 for kind in COMPUTE}).bubble_fraction
    assert found == pytest.approx(float(expected), abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 8))
@unhurried
def test_gpipe_keeps_all_micro_batches_and_1f1b_no_more_than_the_stages_below(
    stages, micro_batches
):
    runs = {name: timeline(name, stages, micro_batches, WHOLE_BACKWARD) for name in CLASSIC}
    for rank in range(stages):
        keeps = {name: run.peak_live_micro_batches(rank) for name, run in runs.items()}
        assert keeps == {"gpipe": micro_batches, "1f1b": min(micro_batches, stages - rank)}


def test_an_unknown_order_is_refused_with_the_nearest_name():
    assert order_named("1f1b")(4, 8) == one_f_one_b(4, 8)
    with pytest.raises(ScheduleError, match="no order is named '1F1b'; did you mean '1f1b'"):
        order_named("1F1b")
    with pytest.raises(ScheduleError, match="no order is named ''; the orders are gpipe, 1f1b"):
        order_named("")


@pytest.mark.parametrize("stages, micro_batches", [(0, 1), (1, 0), (-1, 2)])
def test_no_stages_or_no_micro_batches_are_refused(stages, micro_batches):
    for order in ORDERS.values():
        with pytest.raises(ScheduleError, match="no schedule"):
            order(stages, micro_batches)


@pytest.mark.parametrize(
    "name, virtual",
    [("gpipe", 2), ("1f1b", 2), ("zb-h1", 0), ("zb-v", 1), ("zb-v", 3), ("interleaved", 0)],
)
def test_a_number_of_stages_per_rank_that_the_order_does_not_run_is_refused(name, virtual):
    with pytest.raises(
        ScheduleError, match=f"{virtual} stages per rank were asked of {name}, which runs"
    ):
        ORDERS[name](4, 8, virtual)


def test_stages_that_do_not_divide_among_the_ranks_are_refused_with_numbers_that_do():
    with pytest.raises(
        ScheduleError, match="7 stages on 3 ranks leave 1 over; .* take 6 or 9 stages"
    ):
        interleaved_1f1b(7, 4, 3)
    with pytest.raises(ScheduleError, match="9 stages on 3 ranks are no V; .* take 6 stages"):
        zero_bubble.zero_bubble_v(9, 4, 3)


@given(st.integers(1, 4), st.integers(1, 3))
@unhurried
def test_round_robin_and_v_give_every_rank_the_same_number_of_stages(ranks, virtual):
    homes = [rank_of(stage, ranks) for stage in range(ranks * virtual)]
    assert all(homes.count(rank) == virtual for rank in range(ranks))
    v = [zero_bubble.v_shape(stage, ranks) for stage in range(2 * ranks)]
    assert v == [*range(ranks), *reversed(range(ranks))]
