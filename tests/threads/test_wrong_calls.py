"""Ranks that are threads: whoever makes another call than the others is named on all ranks."""

import pytest
from wrong_calls import IN_CHECKED_MODE, PIECES, WRONG

import shardkit as sk


@pytest.mark.parametrize("name", [*WRONG, *PIECES, *IN_CHECKED_MODE])
def test_a_rank_that_makes_another_call_is_named_on_all_ranks(name):
    call = {**WRONG, **PIECES, **IN_CHECKED_MODE}[name]

    def run(backend):
        with pytest.raises(sk.CommunicationError, match="rank 2|rank 1 sends") as caught:
            call(backend, backend.rank == 2)
        return str(caught.value)

    assert len(set(sk.run_ranks(3, run, timeout=500))) == 1
