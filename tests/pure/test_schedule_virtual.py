"""Interleaved and zero-bubble orders: they idle and keep exactly as much as the papers say."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.testing.schedule import (
    COMPUTE,
    ORDERS,
    Kind,
    from_text,
    interleaved_1f1b,
    lower,
    one_f_one_b,
    simulate,
    to_text,
    unit_timeline,
    zero_bubble_h1,
)

WHOLE_BACKWARD = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.WEIGHT: 0}
INTERLEAVED = [(p, v, m) for p, v in product(range(1, 5), range(2, 4)) for m in (p, 2 * p, 3 * p)]
few = settings(max_examples=30, deadline=None)  # each example is a whole simulation


def peaks(run):
    return [run.peak_live_micro_batches(rank) for rank in run.events]


# --- interleaved ----------------------------------------------------------------------------------


@pytest.mark.parametrize("p, v, m", INTERLEAVED)
def test_interleaving_divides_the_classic_bubble_by_the_stages_per_rank(p, v, m):
    program = lower(interleaved_1f1b(p * v, m, p), dict.fromkeys(range(p * v), 1))
    expected = Fraction(p - 1, v * m + p - 1)
    assert simulate(program, WHOLE_BACKWARD).bubble_fraction == pytest.approx(
        float(expected), abs=1e-12
    )


@pytest.mark.parametrize("p, v, m", INTERLEAVED)
def test_the_interleaved_bubble_is_2_seconds_per_rank_if_the_gradient_leaves_before_w(p, v, m):
    """A rank works 3 v m seconds; the last one idles p-1 for the first activation, the first p-1
    for the last gradient.
    """
    run = unit_timeline("interleaved", p, m, v)
    assert run.seconds == 3 * v * m + 2 * (p - 1)
    assert run.bubble_fraction == pytest.approx(
        float(Fraction(2 * (p - 1), 3 * v * m + 2 * (p - 1))), abs=1e-12
    )


@given(st.integers(1, 4), st.integers(2, 3), st.integers(1, 12))
@few
def test_interleaved_ranks_keep_what_their_warm_up_brings_in(p, v, m):
    for rank, peak in enumerate(peaks(unit_timeline("interleaved", p, m, v))):
        bound = min(2 * (p - 1 - rank) + (v - 1) * p + 1, v * m)
        assert peak == bound if m % p == 0 else peak <= bound


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12))
@few
def test_micro_batches_that_do_not_fill_the_last_group_take_no_longer_than_if_they_did(p, v, m):
    full = -(-m // p) * p
    assert (
        unit_timeline("interleaved", p, m, v).seconds
        <= unit_timeline("interleaved", p, full, v).seconds
    )
    without = {
        rank: tuple(a for a in actions if a.micro_batch < m)
        for rank, actions in interleaved_1f1b(p * v, full, p).items()
    }
    assert interleaved_1f1b(p * v, m, p) == without or v == 1


def test_interleaved_messages_travel_while_the_ranks_work():
    """What slow messages cost is the way in and out of the pipeline, however many micro-batches
    follow.
    """
    programs = {
        m: lower(interleaved_1f1b(8, m, 4), dict.fromkeys(range(8), 1)) for m in (8, 16, 32)
    }
    for seconds in ({kind: 1 for kind in COMPUTE}, WHOLE_BACKWARD):
        costs = {
            simulate(program, seconds, transfer_seconds=1).seconds
            - simulate(program, seconds).seconds
            for program in programs.values()
        }
        assert len(costs) == 1


def test_interleaving_one_stage_per_rank_is_1f1b():
    assert interleaved_1f1b(4, 7, 4) == one_f_one_b(4, 7)


def test_interleaved_is_the_order_of_megatron():
    """Rank 0 of 2 with 2 stages each and 4 micro-batches: warm-up of 2 (p-1) + (v-1) p = 4 forwards
    in groups of 2.
    """
    kinds = {
        kind: [(a.stage, a.micro_batch) for a in interleaved_1f1b(4, 4, 2)[0] if a.kind is kind]
        for kind in Kind
    }
    assert kinds[Kind.FORWARD] == [(0, 0), (0, 1), (2, 0), (2, 1), (0, 2), (0, 3), (2, 2), (2, 3)]
    assert kinds[Kind.BACKWARD] == [(2, 0), (2, 1), (0, 0), (0, 1), (2, 2), (2, 3), (0, 2), (0, 3)]
    assert to_text({0: interleaved_1f1b(4, 4, 2)[0]}).startswith(
        "0: 0F0 0F1 2F0 2F1 0F2 2B0 2W0 0F3 2B1 2W1"
    )


# --- ZB-H1 ----------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 12))
@few
def test_zb_h1_halves_the_bubble_of_1f1b_with_the_memory_of_its_first_rank(p, m):
    """What is left is the p-1 seconds of the start; with m < p micro-batches there is not enough W
    to fill the rest.
    """
    run, plain = unit_timeline("zb-h1", p, m), unit_timeline("1f1b", p, m)
    assert run.seconds == 3 * m + p - 1 + max(p - m, 0)
    assert plain.seconds == 3 * m + 2 * (p - 1)
    assert peaks(run) == [min(p, m)] * p and max(peaks(run)) == max(peaks(plain))


def test_zb_h1_takes_as_long_as_1f1b_if_there_is_no_weight_gradient_to_put_off():
    for order in (zero_bubble_h1, one_f_one_b):
        assert (
            simulate(lower(order(4, 8), dict.fromkeys(range(4), 1)), WHOLE_BACKWARD).seconds
            == 3 * 8 + 3 * 3
        )


# --- ZB-V -----------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 20))
@few
@pytest.mark.thorough
def test_zb_v_loses_only_the_start_with_the_memory_of_1f1b(p, m):
    """6m seconds of work per rank (two stages of F, B and W) and p-1 until the first activation
    reaches the last rank.
    """
    run = unit_timeline("zb-v", p, m)
    assert (
        run.seconds == run.compute_seconds / p + p - 1
        if p <= 4 and m >= p
        else run.seconds >= 6 * m + p - 1
    )
    assert m < p or run.seconds <= 6 * m + p - 1 + p // 2
    assert max(peaks(run)) <= 2 * p


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8])
def test_zb_v_idles_less_than_zb_h1_and_that_less_than_interleaved_and_that_less_than_1f1b(p):
    m = 3 * p
    bubbles = [unit_timeline(name, p, m).bubble_fraction for name in ("zb-v", "zb-h1", "1f1b")]
    assert bubbles == sorted(bubbles) and len(set(bubbles)) == 3
    assert bubbles[0] < unit_timeline("interleaved", p, m).bubble_fraction < bubbles[2]


@pytest.mark.parametrize("p", [2, 5, 8])
def test_the_steady_state_of_zb_v_has_no_bubble(p):
    """Twice as many micro-batches take twice the work longer; one second is left for where the last
    one falls.
    """
    more = unit_timeline("zb-v", p, 8 * p).seconds - unit_timeline("zb-v", p, 4 * p).seconds
    assert abs(more - 6 * 4 * p) <= 1


def test_zb_v_runs_both_arms_of_the_v_on_one_rank():
    assert {a.stage for a in ORDERS["zb-v"](3, 4)[0]} == {0, 5} and {
        a.stage for a in ORDERS["zb-v"](3, 4)[2]
    } == {2, 3}
    assert ORDERS["zb-v"](1, 1) == from_text("0: 0F0 1F0 1B0 0B0 1W0 0W0")
