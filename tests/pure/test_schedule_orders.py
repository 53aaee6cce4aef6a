"""Orders: what each rank does next, what it keeps, and how long it idles."""
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import ScheduleError
from shardkit.schedule import COMPUTE, ORDERS, Kind, gpipe, lower, one_f_one_b, order_named, orders, rank_of, simulate
from shardkit.schedule import to_text, validate

WHOLE_BACKWARD = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.WEIGHT: 0}
CASES = list(product(ORDERS, range(1, 7), range(1, 9)))
names = st.sampled_from(sorted(ORDERS))


def timeline(name, stages, micro_batches, durations):
    return simulate(lower(ORDERS[name](stages, micro_batches), dict.fromkeys(range(stages), 1)), durations)


def drawn(row_of, seconds):
    cells = [" ."] * int(seconds)
    for event in row_of:
        if event.action.kind in COMPUTE:
            cells[int(event.start)] = f"{event.action.kind.value}{event.action.micro_batch}"
    return " ".join(cells)


@given(names, st.integers(1, 6), st.integers(1, 8))
def test_an_order_runs_every_micro_batch_once_and_its_weights_directly_after_its_inputs(name, stages, micro_batches):
    program = ORDERS[name](stages, micro_batches)
    validate(program)
    assert list(program) == [rank_of(stage, stages) for stage in range(stages)]
    for actions in program.values():
        assert len(actions) == 3 * micro_batches
        assert all(two.kind is Kind.WEIGHT for one, two in zip(actions, actions[1:]) if one.kind is Kind.BACKWARD)


@given(names, st.integers(1, 6), st.integers(1, 8))
def test_gradients_are_made_in_ascending_order_of_micro_batches(name, stages, micro_batches):
    for actions in ORDERS[name](stages, micro_batches).values():
        for kind in COMPUTE:
            assert [a.micro_batch for a in actions if a.kind is kind] == list(range(micro_batches))


def test_one_stage_is_gradient_accumulation():
    assert to_text(gpipe(1, 2)) == "0: 0F0 0F1 0B0 0W0 0B1 0W1"
    assert to_text(one_f_one_b(1, 2)) == "0: 0F0 0B0 0W0 0F1 0B1 0W1"


def test_the_programs_in_the_docstrings_are_the_programs_made():
    for order in (gpipe, one_f_one_b):
        for line in to_text(order(2, 3)).splitlines():
            assert line in order.__doc__


@pytest.mark.parametrize("name", ORDERS)
def test_the_pictures_in_the_docstring_are_what_the_simulator_says(name):
    run = timeline(name, 3, 4, {kind: 1 for kind in COMPUTE})
    for rank, events in run.events.items():
        assert f"rank {rank}   {drawn(events, run.seconds)}" in orders.__doc__


@pytest.mark.parametrize("name, stages, micro_batches", CASES)
def test_the_bubble_is_the_one_of_the_papers_when_a_backward_is_one_action(name, stages, micro_batches):
    expected = Fraction(stages - 1, micro_batches + stages - 1)
    found = timeline(name, stages, micro_batches, WHOLE_BACKWARD).bubble_fraction
    assert found == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("name, stages, micro_batches", CASES)
def test_the_bubble_is_smaller_when_the_gradient_leaves_before_the_weight_gradient(name, stages, micro_batches):
    expected = Fraction(2 * (stages - 1), 3 * micro_batches + 2 * (stages - 1))
    found = timeline(name, stages, micro_batches, {kind: 1 for kind in COMPUTE}).bubble_fraction
    assert found == pytest.approx(float(expected), abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 8))
def test_gpipe_keeps_all_micro_batches_and_1f1b_no_more_than_the_stages_below(stages, micro_batches):
    for rank in range(stages):
        keeps = {name: timeline(name, stages, micro_batches, WHOLE_BACKWARD).peak_live_micro_batches(rank) for name in ORDERS}
        assert keeps == {"gpipe": micro_batches, "1f1b": min(micro_batches, stages - rank)}


def test_an_unknown_order_is_refused_with_the_nearest_name():
    assert order_named("1f1b") is one_f_one_b
    with pytest.raises(ScheduleError, match="no order is named '1F1b'; did you mean '1f1b'"):
        order_named("1F1b")
    with pytest.raises(ScheduleError, match="The orders are gpipe, 1f1b"):
        order_named("")


@pytest.mark.parametrize("stages, micro_batches", [(0, 1), (1, 0), (-1, 2)])
def test_no_stages_or_no_micro_batches_are_refused(stages, micro_batches):
    for order in ORDERS.values():
        with pytest.raises(ScheduleError, match="no schedule"):
            order(stages, micro_batches)
