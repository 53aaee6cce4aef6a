"""Actions and programs: one text form each, which can be read back; what is no action is
refused.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit import ScheduleError
from shardkit.testing.schedule import COMPUTE, Action, Kind, from_text, receive_of, to_text, wait_of

numbers = st.integers(0, 300)
per_unit = st.sampled_from([Kind.GATHER, Kind.RELEASE, Kind.REDUCE, Kind.STEP])
transfers = st.sampled_from(
    [Kind.SEND_F, Kind.RECV_F, Kind.WAIT_F, Kind.SEND_B, Kind.RECV_B, Kind.WAIT_B]
)
actions = st.one_of(
    st.builds(Action, st.sampled_from(COMPUTE), numbers, st.none() | numbers, numbers),
    st.builds(Action, transfers, numbers, st.none(), numbers),
    st.builds(Action, per_unit, numbers, numbers),
    st.just(Action(Kind.CLIP)),
)
programs = st.dictionaries(numbers, st.lists(actions, max_size=6).map(tuple), max_size=4)


@given(actions)
def test_the_text_of_an_action_reads_back_as_the_same_action(action):
    assert Action.parse(str(action)) == action


@given(programs)
def test_the_text_of_a_program_reads_back_as_the_same_program(program):
    assert from_text(to_text(program)) == program
    assert list(from_text(to_text(program))) == list(program)


@given(st.lists(actions))
def test_actions_sort_by_stage_unit_and_micro_batch(some):
    keys = [
        tuple(-1 if n is None else n for n in (a.stage, a.unit, a.micro_batch))
        for a in sorted(some)
    ]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    "text, action",
    [
        ("2F5", Action(Kind.FORWARD, 2, None, 5)),
        ("2.1F5", Action(Kind.FORWARD, 2, 1, 5)),
        ("2.1GATHER", Action(Kind.GATHER, 2, 1)),
        ("2SEND_F5", Action(Kind.SEND_F, 2, None, 5)),
        ("0.10REDUCE", Action(Kind.REDUCE, 0, 10)),
        ("CLIP", Action(Kind.CLIP)),
        ("2.1STEP", Action(Kind.STEP, 2, 1)),
    ],
)
def test_an_action_is_written_like_this(text, action):
    assert Action.parse(text) == action and str(action) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F",
        "2F",
        "F5",
        "2X5",
        "2SEND_F",
        "2.1SEND_F5",
        "2GATHER",
        "2.1GATHER5",
        "2CLIP",
        ".1F5",
        "2F5 ",
        "2f5",
        "-1F5",
        "2.F5",
    ],
)
def test_what_is_no_action_is_refused(text):
    with pytest.raises(ScheduleError, match="is not an action"):
        Action.parse(text)


@pytest.mark.parametrize("text", ["0F0 0B0", "x: 0F0", "0: 0F0\n0: 0B0", ": 0F0"])
def test_a_line_that_names_no_new_rank_is_refused(text):
    with pytest.raises(ScheduleError, match="does not begin with a new rank"):
        from_text(text)


def test_a_send_knows_its_receive_and_its_wait():
    forward, backward = Action.parse("2SEND_F5"), Action.parse("2SEND_B5")
    assert str(receive_of(forward)) == "3RECV_F5" and str(wait_of(forward)) == "2WAIT_F5"
    assert str(receive_of(backward)) == "1RECV_B5" and str(wait_of(backward)) == "2WAIT_B5"
