"""A rank that waits long leaves its core to others: it looks ever more rarely, and sleeps."""

import types

import numpy
import pytest

from shardkit.testing.comm import (
    NAP_TURNS,
    NAPS,
    YIELD_TURNS,
    YIELDS,
    Loops,
    MPIChannel,
    mpi_requests,
)

DONE, STAGE = 0, 3


@pytest.fixture
def naps(monkeypatch):
    """The naps of this process, in seconds; none of them is slept."""
    taken = []
    monkeypatch.setattr(mpi_requests.time, "sleep", taken.append)
    return taken


def channel_that_waits(seconds, naps):
    """Return a channel of ranks with a core each, whose messages come after so long asleep."""
    request = types.SimpleNamespace(Testall=lambda requests, statuses: sum(naps) >= seconds)
    names = dict.fromkeys(("SUM", "PROD", "MIN", "MAX", "Get_address", "IN_PLACE"))
    mpi = types.SimpleNamespace(Request=request, Exception=KeyError, **names)
    communicator = types.SimpleNamespace(rank=0, size=2, Iallreduce=lambda *given: "request")
    return MPIChannel(mpi, communicator, None, None, shares_cores=False)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("seconds", "most_looks"), [(0.0, 0), (1e-4, 3), (0.05, 110), (1.0, 450), (600.0, 31_000)]
)
def test_a_rank_asks_more_rarely_the_longer_others_take_to_call_the_same(seconds, most_looks, naps):
    channel_that_waits(seconds, naps).comparison.compare("barrier", ())
    assert len(naps) <= most_looks
    assert sum(naps) <= seconds + max(5e-4, 0.011 * seconds), "it sleeps past what it waits for"
    assert max(naps, default=0.0) <= 0.02, "MPI stands still for so long"


class Loop:
    """A loop of shared memory whose other ranks come after so many returns; notes its table."""

    def __init__(self, num_returns, table, error=None):
        self._left, self._table, self._error = num_returns, table, error
        self.seen = []

    def __call__(self, stage):
        self.seen.append((int(self._table[YIELDS]), int(self._table[NAPS])))
        if self._error is not None and not self._left:
            raise self._error
        self._left -= 1
        return STAGE if self._left >= 0 else DONE


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
@pytest.mark.parametrize("num_returns", [0, 5, 150])
def test_a_loop_that_has_returned_often_only_sleeps_until_it_ends(num_returns, error, monkeypatch):
    table = numpy.zeros(8, numpy.int64)
    table[[YIELDS, NAPS]] = usual = YIELD_TURNS, NAP_TURNS
    looks = []
    loops = Loops(table, types.SimpleNamespace(probe=lambda: looks.append(1), size=2))
    loop = Loop(num_returns, table, error)
    monkeypatch.setattr(loops, "_loop", lambda *call: loop)
    if error is None:
        loops.finish(0, [], None, 0)
    else:
        with pytest.raises(KeyboardInterrupt):
            loops.finish(0, [], None, 0)
    assert len(looks) == num_returns, "MPI makes progress before each further try"
    assert loop.seen[:100] == [usual] * min(num_returns + 1, 100)
    assert all(yields == 0 and naps > NAP_TURNS for yields, naps in loop.seen[100:])
    assert tuple(table[[YIELDS, NAPS]]) == usual
