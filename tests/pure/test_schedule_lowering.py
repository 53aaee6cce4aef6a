"""Lowering: a lowered program is well formed, ends, and gathers, reduces and steps every unit when
it should.
"""

import doctest
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit import ScheduleError
from shardkit.testing.schedule import (
    COMPUTE,
    ORDERS,
    Kind,
    Uses,
    expand,
    from_text,
    gpipe,
    lower,
    lowering,
    one_f_one_b,
    simulate,
    to_text,
    validate,
    zero_bubble_v,
)

unhurried = settings(max_examples=60, deadline=None)  # the machine may be busy
SENDS, WAITS = (Kind.SEND_F, Kind.SEND_B), (Kind.WAIT_F, Kind.WAIT_B)


@st.composite
def lowered(draw):
    """Draw a lowered program: any order, 1 to 4 ranks of 1 to 3 stages of 1 to 3 units, 1 to 8
    micro-batches, perhaps two tied units on rank 0, of one stage or of two, and perhaps a clip.
    """
    order = ORDERS[draw(st.sampled_from(sorted(ORDERS)))]
    ranks, virtual = draw(st.integers(1, 4)), draw(st.integers(1, 3)) if order.is_flexible else None
    program = order(ranks, draw(st.integers(1, 8)), virtual)
    units = {stage: draw(st.integers(1, 3)) for stage in range(order.num_stages(ranks, virtual))}
    last = max(a.stage for a in program[0])
    ends = [(0, 0), (last, units[last] - 1)]
    borrows = draw(
        st.sampled_from(
            [{}] if ends[0] == ends[1] else [{}, {ends[1]: [ends[0]]}, {ends[0]: [ends[1]]}]
        )
    )
    return program, units, borrows, lower(program, units, Uses(borrows), clip=draw(st.booleans()))


def texts(actions):
    return list(map(str, actions))


def test_the_examples_in_the_docstrings_are_true():
    found = doctest.testmod(lowering, extraglobs={"from_text": from_text, "to_text": to_text})
    assert found.attempted >= 7 and found.failed == 0


@given(lowered())
@unhurried
def test_a_lowered_program_is_well_formed_and_ends_with_nothing_buffered(case):
    validate(case[3])
    simulate(case[3])


@given(lowered())
@unhurried
def test_lowering_runs_each_stage_action_on_every_unit_once(case):
    order, units, _, program = case
    for rank, actions in order.items():
        expected = {
            f"{a.stage}.{unit}{a.kind.value}{a.micro_batch}"
            for a in actions
            for unit in range(units[a.stage])
        }
        found = texts(a for a in program[rank] if a.kind in COMPUTE)
        assert len(found) == len(expected) and set(found) == expected


@given(lowered())
@unhurried
def test_units_run_forwards_ascending_and_backwards_descending_for_each_micro_batch(case):
    units, program = case[1], case[3]
    for actions in program.values():
        for kind, stage, m in {
            (a.kind, a.stage, a.micro_batch) for a in actions if a.kind in COMPUTE
        }:
            found = [
                a.unit for a in actions if (a.kind, a.stage, a.micro_batch) == (kind, stage, m)
            ]
            assert found == sorted(range(units[stage]), reverse=kind is not Kind.FORWARD)


@given(lowered())
@unhurried
def test_each_unit_gets_its_weight_gradients_in_ascending_order_of_micro_batches(case):
    for actions in case[3].values():
        for unit in {(a.stage, a.unit) for a in actions if a.kind is Kind.WEIGHT}:
            found = [
                a.micro_batch
                for a in actions
                if a.kind is Kind.WEIGHT and (a.stage, a.unit) == unit
            ]
            assert found == sorted(found)


@given(lowered())
@unhurried
def test_gather_and_release_alternate_and_all_work_on_a_unit_lies_between_them(case):
    _, _, borrows, program = case
    for actions in program.values():
        whole = set()
        for action in actions:
            unit = (action.stage, action.unit)
            if action.kind is Kind.GATHER:
                assert unit not in whole
                whole.add(unit)
            elif action.kind is Kind.RELEASE:
                whole.remove(unit)
            elif action.kind in COMPUTE:
                assert whole == {unit, *borrows.get(unit, ())}
        assert not whole


@given(lowered())
@unhurried
def test_each_unit_is_reduced_once_after_its_last_weight_gradient_while_it_is_released(case):
    _, units, borrows, program = case
    for actions in program.values():
        written = texts(actions)
        for stage, unit in {(a.stage, a.unit) for a in actions if a.kind in COMPUTE}:
            adding = [
                (stage, unit),
                *(borrower for borrower, lenders in borrows.items() if (stage, unit) in lenders),
            ]
            last_w = max(
                at
                for at, a in enumerate(actions)
                if a.kind is Kind.WEIGHT and (a.stage, a.unit) in adding
            )
            assert written.count(f"{stage}.{unit}REDUCE") == 1
            reduced = written.index(f"{stage}.{unit}REDUCE")
            assert last_w < reduced
            assert written[:reduced].count(f"{stage}.{unit}GATHER") == written[:reduced].count(
                f"{stage}.{unit}RELEASE"
            )
            assert all(
                a.kind in (Kind.RELEASE, Kind.REDUCE) for a in actions[last_w + 1 : reduced]
            ), "as early as possible"


@given(lowered())
@unhurried
def test_the_optimizer_comes_last_after_one_clip_or_none_and_steps_every_unit_once_ascending(case):
    order, units, _, program = case
    for rank, actions in program.items():
        end = [a for a in actions if a.kind in (Kind.CLIP, Kind.STEP)]
        assert list(actions[len(actions) - len(end) :]) == end
        stages = sorted({a.stage for a in order[rank]})
        assert texts(a for a in end if a.kind is Kind.STEP) == [
            f"{s}.{unit}STEP" for s in stages for unit in range(units[s])
        ]
        assert all(a.kind is Kind.STEP for a in end[1:])


@given(lowered())
@unhurried
def test_a_send_directly_follows_what_it_sends_and_a_receive_directly_precedes_its_use(case):
    units, program = case[1], case[3]
    for actions in program.values():
        for at, action in enumerate(actions):
            s, m = action.stage, action.micro_batch
            following = next((str(a) for a in actions[at + 1 :] if a.kind not in WAITS), None)
            if action.kind is Kind.SEND_F:
                assert str(actions[at - 1]) == f"{s}.{units[s] - 1}F{m}"
            elif action.kind is Kind.SEND_B:
                assert str(actions[at - 1]) == f"{s}.0B{m}"
            elif action.kind is Kind.RECV_F:
                assert following == f"{s}.0F{m}"
            elif action.kind is Kind.RECV_B:
                assert following == f"{s}.{units[s] - 1}B{m}"


@given(lowered())
@unhurried
def test_every_boundary_between_ranks_is_crossed_once_each_way_by_every_micro_batch(case):
    order, units, _, program = case
    micro_batches = {a.micro_batch for a in order[0]}
    rank_of = {a.stage: rank for rank, actions in order.items() for a in actions}
    crossings = [s for s in range(len(units) - 1) if rank_of[s] != rank_of[s + 1]]
    sends = [str(a) for actions in program.values() for a in actions if a.kind in SENDS]
    assert sorted(sends) == sorted(
        f"{send}{m}"
        for s in crossings
        for m in micro_batches
        for send in (f"{s}SEND_F", f"{s + 1}SEND_B")
    )


@given(lowered(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_wait_never_blocks_before_the_end_of_the_step_whatever_the_durations(case, data):
    seconds = data.draw(st.lists(st.integers(1, 9), min_size=7, max_size=7))
    run = simulate(
        case[3],
        lambda a: seconds[(3 * a.stage + a.micro_batch) % 7] if a.kind in COMPUTE else 0,
        transfer_seconds=2,
    )
    for events in run.events.values():
        last_compute = max(at for at, e in enumerate(events) if e.action.kind in COMPUTE)
        assert all(e.start == e.end for e in events[:last_compute] if e.action.kind in WAITS)


def most_sends_under_way(program, rank, kind):
    under_way = peak = 0
    for action in program[rank]:
        under_way += (action.kind is kind) - (
            action.kind.value == kind.value.replace("SEND", "WAIT")
        )
        peak = max(peak, under_way)
    return peak


def test_1f1b_frees_its_send_buffers_on_the_way_however_many_micro_batches():
    stages = 4
    for micro_batches in (8, 32):
        program = lower(one_f_one_b(stages, micro_batches), dict.fromkeys(range(stages), 1))
        for rank in range(stages):
            assert most_sends_under_way(program, rank, Kind.SEND_F) <= stages
            assert most_sends_under_way(program, rank, Kind.SEND_B) <= stages


def test_two_orders_that_do_not_fit_together_are_found_to_deadlock():
    mixed = {0: from_text("0: 0F0 0B0 0W0 0F1 0B1 0W1")[0], 1: gpipe(2, 2)[1]}
    with pytest.raises(ScheduleError, match="never ends: rank 0 at 0RECV_B0, rank 1 at 1RECV_F1"):
        simulate(lower(mixed, {0: 1, 1: 1}))


def gathers_of(program, unit):
    return texts(program[0]).count(f"0.{unit}GATHER")


def test_gpipe_on_one_stage_gathers_each_unit_twice_and_1f1b_twice_per_micro_batch():
    accumulate, one_at_a_time = lower(gpipe(1, 5), {0: 3}), lower(one_f_one_b(1, 5), {0: 3})
    assert [gathers_of(accumulate, unit) for unit in range(3)] == [
        2,
        2,
        1,
    ]  # the last unit turns round on the spot
    assert [gathers_of(one_at_a_time, unit) for unit in range(3)] == [
        6,
        10,
        5,
    ]  # neighbors touch at both ends
    assert simulate(accumulate).peak_live_micro_batches(0) == 5
    assert simulate(one_at_a_time).peak_live_micro_batches(0) == 1


def test_gpipe_on_one_stage_reduces_a_unit_before_the_next_one_begins_its_backward():
    kinds = [
        (a.kind, a.unit)
        for a in lower(gpipe(1, 3), {0: 2})[0]
        if a.kind in (Kind.WEIGHT, Kind.REDUCE)
    ]
    assert [key for key, _ in groupby(kinds)] == [
        (Kind.WEIGHT, 1),
        (Kind.REDUCE, 1),
        (Kind.WEIGHT, 0),
        (Kind.REDUCE, 0),
    ]


def test_a_weight_gradient_on_its_own_is_expanded_on_its_own():
    program = expand(from_text("0: 0F0 0F1 0B0 0B1 0W0 0W1\n1: 1F0"), {0: 2, 1: 1})
    assert (
        to_text(program).splitlines()[0]
        == "0: 0.0F0 0.1F0 0.0F1 0.1F1 0.1B0 0.0B0 0.1B1 0.0B1 0.1W0 0.0W0 0.1W1 0.0W1"
    )


def test_a_wait_follows_the_first_proof_to_come_even_if_another_was_posted_before_it():
    """Rank 1 posts the gradient of stage 3 before the activation of stage 1; rank 0 takes the
    activation first.
    """
    order = from_text("0: 0F0 2F0 0F1 2F1 2B0 2B1 0B0 0B1\n1: 1F0 3F0 3B0 1F1 3F1 3B1 1B0 1B1")
    program = texts(lower(order, dict.fromkeys(range(4), 1))[0])
    assert program.index("2WAIT_F0") == program.index("2RECV_F1") + 1 < program.index("2RECV_B0")


def test_the_turn_of_a_v_needs_no_message():
    program = lower(zero_bubble_v(4, 2, 2), dict.fromkeys(range(4), 1))
    assert {a.stage for a in program[1] if a.kind is Kind.SEND_F} == {2}
    assert {a.stage for a in program[1] if a.kind is Kind.SEND_B} == {1}


def test_a_head_can_be_tied_to_the_embedding_where_a_v_ends_on_the_rank_where_it_begins():
    lower(zero_bubble_v(6, 4, 3), dict.fromkeys(range(6), 1), Uses({(5, 0): [(0, 0)]}))
    with pytest.raises(
        ScheduleError, match=r"unit 5\.0 on rank 2 cannot borrow from 0\.0 on rank 0"
    ):
        lower(ORDERS["interleaved"](3, 4), dict.fromkeys(range(6), 1), Uses({(5, 0): [(0, 0)]}))


def test_stages_on_one_rank_hand_over_without_messages():
    order = from_text("0: 0F0 1F0 2F0 2B0 2W0 1B0 1W0 0B0 0W0")
    assert not [a for a in lower(order, {0: 1, 1: 2, 2: 1})[0] if a.kind in SENDS]


def test_virtual_stages_send_wherever_the_next_stage_is_on_another_rank():
    order = from_text("0: 0F0 2F0 2B0 2W0 0B0 0W0\n1: 1F0 3F0 3B0 3W0 1B0 1W0")
    program = lower(order, dict.fromkeys(range(4), 1))
    simulate(program)
    assert texts(a for a in program[0] if a.kind in SENDS) == ["0SEND_F0", "2SEND_F0", "2SEND_B0"]
    assert texts(a for a in program[1] if a.kind in SENDS) == ["1SEND_F0", "3SEND_B0", "1SEND_B0"]


def test_forwards_alone_lower_to_a_program_without_reductions_or_steps():
    program = lower(from_text("0: 0F0 0F1\n1: 1F0 1F1"), {0: 2, 1: 1})
    simulate(program)
    assert not {Kind.REDUCE, Kind.STEP, Kind.SEND_B} & {
        a.kind for actions in program.values() for a in actions
    }


def test_a_lender_stays_gathered_from_its_own_run_into_the_borrowers():
    program = lower(gpipe(1, 1), {0: 2}, Uses({(0, 1): [(0, 0)]}))
    assert to_text(program) == (
        "0: 0.0GATHER 0.0F0 0.1GATHER 0.1F0 0.1B0 0.1W0 0.1RELEASE 0.1REDUCE 0.0B0 0.0W0 "
        "0.0RELEASE 0.0REDUCE 0.0STEP 0.1STEP"
    )


def test_borrowing_from_another_rank_or_from_nobody_is_refused():
    with pytest.raises(
        ScheduleError, match=r"unit 1\.0 on rank 1 cannot borrow from 0\.0 on rank 0"
    ):
        lower(gpipe(2, 1), {0: 1, 1: 1}, Uses({(1, 0): [(0, 0)]}))
    with pytest.raises(ScheduleError, match=r"unit 0\.7 borrows or is borrowed"):
        lower(gpipe(1, 1), {0: 2}, Uses({(0, 1): [(0, 7)]}))


@pytest.mark.parametrize("units", [{}, {0: 0}])
def test_a_stage_without_units_is_refused(units):
    with pytest.raises(ScheduleError, match="stage 0 has no units"):
        lower(gpipe(1, 1), units)


def test_a_malformed_order_is_refused_before_it_is_lowered():
    with pytest.raises(ScheduleError, match="1F1 is missing"):
        lower(from_text("0: 0F0 0F1\n1: 1F0"), {0: 1, 1: 1})
