"""Overlap: what is begun ahead ends where it is needed, and one at a time."""

import doctest

import pytest
from hypothesis import given, settings
from test_schedule_lowering import lowered

from shardkit import ScheduleError
from shardkit.testing.schedule import (
    Kind,
    begin_gathers,
    begin_reductions,
    from_text,
    overlap,
    simulate,
    to_text,
    validate,
)

unhurried = settings(max_examples=60, deadline=None)
BEGINS = (Kind.BEGIN_GATHER, Kind.BEGIN_REDUCE)


def overlapped(case):
    return begin_reductions(begin_gathers(case[3]))


def without_begins(actions):
    return [action for action in actions if action.kind not in BEGINS]


def test_the_examples_in_the_docstrings_are_true():
    found = doctest.testmod(overlap, extraglobs={"from_text": from_text, "to_text": to_text})
    assert found.attempted >= 6 and found.failed == 0


@given(lowered())
@unhurried
def test_an_overlapped_program_is_well_formed_ends_and_survives_as_text(case):
    program = overlapped(case)
    validate(program)
    simulate(program)
    assert from_text(to_text(program)) == program


@given(lowered())
@unhurried
def test_nothing_moves_but_the_ends_of_reductions(case):
    def kept(actions):
        return [action for action in without_begins(actions) if action.kind is not Kind.REDUCE]

    for rank, actions in overlapped(case).items():
        before = case[3][rank]
        assert kept(actions) == kept(before)
        begun = [
            Kind.REDUCE if a.kind is Kind.BEGIN_REDUCE else a.kind
            for a in actions
            if a.kind is not Kind.REDUCE
        ]
        assert [kind for kind in begun if kind is not Kind.BEGIN_GATHER] == [a.kind for a in before]


@given(lowered())
@unhurried
def test_one_reduction_is_under_way_at_most(case):
    for actions in overlapped(case).values():
        under_way = None
        for action in actions:
            if action.kind is Kind.BEGIN_REDUCE:
                assert under_way is None
                under_way = action.stage, action.unit
            elif action.kind is Kind.REDUCE:
                assert under_way == (action.stage, action.unit)
                under_way = None
            assert under_way is None or action.kind not in (Kind.TIE, Kind.CLIP, Kind.STEP)


@given(lowered())
@unhurried
def test_every_gather_but_those_of_the_first_visit_is_begun_one_visit_ahead(case):
    for actions in overlapped(case).values():
        visit, visit_of_begin, before = 0, {}, None
        for action in actions:
            unit = action.stage, action.unit
            if action.kind is Kind.BEGIN_GATHER:
                assert unit not in visit_of_begin
                visit_of_begin[unit] = visit
            elif action.kind is Kind.GATHER:
                visit += before is not Kind.GATHER
                assert visit_of_begin.pop(unit, 0) == visit - 1
            before = action.kind if action.kind is not Kind.BEGIN_GATHER else before
        assert not visit_of_begin


@pytest.mark.parametrize(
    "text, wrong",
    [
        (
            "0: 0.0BEGIN_GATHER 0.0RELEASE 0.0GATHER",
            "0.0BEGIN_GATHER on rank 0 is followed by 0.0RELEASE and not by 0.0GATHER",
        ),
        ("0: 0.0BEGIN_GATHER 0.1GATHER", "is followed by nothing"),
        (
            "0: 0.0BEGIN_REDUCE 0.0STEP 0.0REDUCE",
            "0.0BEGIN_REDUCE on rank 0 is followed by 0.0STEP",
        ),
        ("0: 0.0BEGIN_REDUCE CLIP 0.0REDUCE", "is followed by CLIP"),
        ("0: 0.0BEGIN_REDUCE 0.0REDUCE 0.0BEGIN_REDUCE", "0.0BEGIN_REDUCE stands 2 times"),
    ],
)
def test_what_is_begun_and_not_ended_in_time_is_refused(text, wrong):
    with pytest.raises(ScheduleError, match=wrong.replace(".", r"\.")):
        validate(from_text(text))
