"""Check and simulate: malformed programs are refused by name, programs that never end by where each
rank is stuck.
"""

import pytest

from shardkit import ScheduleError
from shardkit.testing.schedule import (
    ORDERS,
    Kind,
    from_text,
    gpipe,
    lower,
    simulate,
    to_text,
    validate,
)

RIGHT = """
    0: 0F0 0SEND_F0 0RECV_B0 0WAIT_F0 0B0 0W0
    1: 1RECV_F0 1F0 1B0 1SEND_B0 1W0 1WAIT_B0
"""


def test_the_program_that_the_malformed_ones_are_made_from_is_right():
    validate(from_text(RIGHT))
    simulate(from_text(RIGHT))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("0B0 0W0", "0B0", "0W0 is missing"),
        ("0B0 0W0", "0W0 0B0", "0W0 stands before 0B0"),
        ("1F0 1B0", "1B0 1F0", "1B0 stands before 1F0"),
        ("0F0", "0F0 0F0", "0F0 stands 2 times on rank 0"),
        ("0SEND_F0", "0SEND_F0 0SEND_F0", "0SEND_F0 stands 2 times"),
        ("1RECV_F0", "", "0SEND_F0 has no 1RECV_F0"),
        ("0WAIT_F0", "", "0SEND_F0 has no 0WAIT_F0"),
        ("0SEND_F0", "", "on rank . has no SEND"),
        ("1SEND_B0 1W0 1WAIT_B0", "1WAIT_B0 1SEND_B0 1W0", "1WAIT_B0 stands before 1SEND_B0"),
        ("1RECV_F0 1F0", "1RECV_F0 1F0 0F0", "stage 0 already lives on rank 0|stands 2 times"),
        ("1F0", "1F0 1F1", "0F1 is missing"),
    ],
)
def test_a_malformed_program_is_refused_by_the_name_of_the_action(old, new, message):
    assert old in RIGHT
    with pytest.raises(ScheduleError, match=message):
        validate(from_text(RIGHT.replace(old, new, 1)))


def test_a_rank_does_not_send_to_itself():
    with pytest.raises(ScheduleError, match="both on rank 0"):
        validate(from_text("0: 0F0 0SEND_F0 1RECV_F0 1F0 0WAIT_F0"))


@pytest.mark.parametrize(
    "text, stuck",
    [
        # each wants the other's message before it posts its own
        (
            "0: 0F0 0RECV_B0 0B0 0SEND_F0 0WAIT_F0\n1: 1RECV_F0 1F0 1B0 1SEND_B0 1WAIT_B0",
            "rank 0 at 0RECV_B0, rank 1 at 1RECV_F0",
        ),
        # both send first and wait: ends only where MPI happens to buffer the message
        (
            "0: 0SEND_F0 0WAIT_F0 0RECV_B0\n1: 1SEND_B0 1WAIT_B0 1RECV_F0",
            "rank 0 at 0WAIT_F0, rank 1 at 1WAIT_B0",
        ),
        # not all ranks come to the meeting
        ("0: 0F0 CLIP\n1: 1F0", "rank 0 at CLIP"),
    ],
)
def test_a_program_that_never_ends_is_refused_with_where_each_rank_is_stuck(text, stuck):
    validate(from_text(text))
    with pytest.raises(ScheduleError, match=stuck):
        simulate(from_text(text))


def test_one_swapped_pair_of_backwards_is_found_to_deadlock():
    """The last rank sends the gradients in the other order; with a WAIT after each SEND nobody gets
    on.
    """
    text = (
        "0: 0F0 0F1 0SEND_F0 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0WAIT_F0 0WAIT_F1\n"
        "1: 1RECV_F0 1RECV_F1 1F0 1F1 1B1 1SEND_B1 1WAIT_B1 1B0 1SEND_B0 1WAIT_B0"
    )
    with pytest.raises(ScheduleError, match="rank 0 at 0RECV_B0, rank 1 at 1WAIT_B1"):
        simulate(from_text(text))


def test_a_receive_waits_for_the_transfer_and_a_send_waits_for_nothing():
    program = from_text(
        "0: 0F0 0SEND_F0 0F1 0SEND_F1 0WAIT_F0 0WAIT_F1\n1: 1RECV_F0 1F0 1RECV_F1 1F1"
    )
    run = simulate(program, {Kind.FORWARD: 1}, transfer_seconds=0.5)
    ends = {str(e.action): (e.start, e.end) for events in run.events.values() for e in events}
    assert (
        ends["0SEND_F0"] == (1, 1)
        and ends["1RECV_F0"] == (0, 1.5)
        and ends["1RECV_F1"] == (2.5, 2.5)
    )
    assert ends["0WAIT_F1"] == (2, 2.5) and run.seconds == 3.5


def test_clip_is_a_meeting_of_all_ranks():
    run = simulate(
        from_text("0: 0F0 CLIP\n1: 1F0 CLIP"), lambda a: {"0F0": 1, "1F0": 4, "CLIP": 2}[str(a)]
    )
    assert [events[-1].end for events in run.events.values()] == [6, 6] and [
        e[-1].start for e in run.events.values()
    ] == [1, 4]


def test_only_compute_counts_as_work():
    run = simulate(
        from_text("0: 0.0GATHER 0.0F0 0.0RELEASE"),
        {Kind.GATHER: 2, Kind.FORWARD: 1, Kind.RELEASE: 1},
    )
    assert run.seconds == 4 and run.compute_seconds == 1 and run.bubble_fraction == 0.75


def test_an_empty_program_takes_no_time():
    assert simulate({0: ()}).seconds == 0 and simulate({0: ()}).bubble_fraction == 0


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.thorough
def test_a_large_schedule_ends_with_nothing_live_and_little_bubble(name):
    """Within the time limit: work that grows with the square of the actions would need minutes."""
    order = ORDERS[name]
    timeline = simulate(
        lower(order(16 // order.stages_per_rank, 128), dict.fromkeys(range(16), 2), clip=True)
    )
    assert timeline.bubble_fraction < 0.15


def test_a_timeline_can_be_made_from_a_program_read_from_text():
    program = lower(gpipe(2, 2), {0: 1, 1: 1})
    assert simulate(from_text(to_text(program))) == simulate(program)
