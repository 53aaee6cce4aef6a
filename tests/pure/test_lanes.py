"""Messages over one boundary of a pipeline, in one direction: both ends name them in one order."""

import pytest

from shardkit.testing.schedule import ORDERS, Kind, Uses, lower

ENDS = {Kind.SEND_F: Kind.RECV_F, Kind.SEND_B: Kind.RECV_B}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8, 12])
def test_both_ends_of_a_lane_go_by_one_order_of_micro_batches(name, ranks, micro_batches):
    per_rank = ORDERS[name].stages_per_rank
    try:
        order = ORDERS[name](ranks, micro_batches, per_rank)
    except ValueError:
        pytest.skip("the schedule wants other micro-batches")
    num_stages = len({action.stage for actions in order.values() for action in actions})
    program = lower(order, {stage: 2 for stage in range(num_stages)}, Uses(), clip=False)
    lanes = {}
    for actions in program.values():
        for action in actions:
            if action.kind in (*ENDS, *ENDS.values()):
                is_send = action.kind in ENDS
                is_forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
                boundary = (
                    action.stage + (is_send and is_forward) + (not is_send and not is_forward)
                )
                lane = lanes.setdefault((boundary, is_forward), ([], []))
                lane[is_send].append(action.micro_batch)
    assert len(lanes) > 0
    for received, sent in lanes.values():
        assert received == sent and len(set(sent)) == micro_batches
