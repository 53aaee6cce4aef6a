"""The communication contract on MPI, and what only the MPI backend does."""

import itertools
import sys
import threading
import time

import numpy
import pytest
from threads.communication_contract import PROMISES

from shardkit import MPICommunicationBackend, coupled
from shardkit.testing.base import launched_ranks
from shardkit.testing.comm import collectively, ordered_reduce_scatter

pytestmark = pytest.mark.mpi


# The backend as if it had cores for all or not, or as if arrays were beyond 2**31 - 1 elements.
VARIANTS = {
    "a core each": {"shares_cores": False},
    "shared cores": {"shares_cores": True},
    "calls of 7": {"count_limit": 7},
}


def is_of_the_sweep(promise, variant):
    """True of what all pairs need not: on 2, 3 and 4 ranks a promise meets each variant once."""
    turn = list(PROMISES).index(promise) + (launched_ranks() or 1)
    return variant != list(VARIANTS)[turn % len(VARIANTS)]


@pytest.mark.parametrize(
    "promise, variant",
    [
        pytest.param(*case, marks=[pytest.mark.sweep] * is_of_the_sweep(*case))
        for case in itertools.product(PROMISES, VARIANTS)
    ],
)
@pytest.mark.thorough(but=40)
def test_the_contract_holds_on_mpi(backend, monkeypatch, promise, variant):
    for name, value in VARIANTS[variant].items():
        monkeypatch.setattr(backend.messages, name, value)
    with collectively(backend):
        PROMISES[promise](backend)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("verb", ["barrier", "all_reduce", "send", "receive"])
@pytest.mark.thorough(but=1)
def test_a_rank_that_waits_leaves_a_shared_core_to_others(backend, verb, monkeypatch):
    monkeypatch.setattr(backend.messages, "shares_cores", True)
    large, other = numpy.ones(2**20), backend.rank ^ 1
    backend.barrier()
    began = time.thread_time()
    if backend.rank % 2:
        time.sleep(0.5)
    if verb == "barrier":
        backend.barrier()
    elif verb == "all_reduce":
        backend.all_reduce(large[:8])
    elif other < backend.world_size:
        (backend.send if (verb == "send") == (backend.rank % 2 == 0) else backend.receive)(
            large, other
        )
    spent = time.thread_time() - began
    backend.barrier()
    assert spent < 0.25


def test_a_user_communicator_is_duplicated_so_that_messages_do_not_mix(backend):
    from mpi4py import MPI

    mine = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)
    inner = MPICommunicationBackend(mine)
    inner.initialize()
    before, after = (mine.rank - 1) % mine.size, (mine.rank + 1) % mine.size
    theirs, ours = numpy.empty(1), numpy.empty(1)
    request = mine.Irecv(theirs, before, tag=4)
    handle = inner.irecv(ours, before, tag=4)
    inner.send(numpy.array([1.0]), after, tag=4)
    handle.wait()
    mine.Send(numpy.array([2.0]), after, tag=4)
    request.Wait()
    inner.shutdown()
    mine.Barrier()  # the user's communicator is still the user's
    mine.Free()
    assert (ours[0], theirs[0]) == (1.0, 2.0)
    assert inner.rank == backend.world_size - 1 - backend.rank


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ("left out", "freed", "between groups", "a handle"))
def test_what_is_no_communicator_of_this_rank_is_refused_and_the_others_go_on(backend, kind):
    from mpi4py import MPI

    world, is_odd = backend.communicator, backend.rank % 2
    half = world.Split(is_odd, world.rank)
    if kind == "left out":
        given, words = world.Split(MPI.UNDEFINED if is_odd else 0, 0), "COMM_NULL"
    elif kind == "freed":
        given, words = world.Dup(), "COMM_NULL"
        given.Free()
    elif kind == "between groups":
        given, words = half.Create_intercomm(0, world, 1 - is_odd, 9), "between two groups"
    else:
        given, words = world.py2f(), "a int"
    if kind == "left out" and not is_odd:
        inner = MPICommunicationBackend(given)
        inner.initialize()
        inner.shutdown()
    else:
        for open_one in (MPICommunicationBackend, coupled):
            with pytest.raises(ValueError, match=words):
                open_one(given)
    backend.barrier()
    half.Free()


def test_every_rank_knows_its_place_on_the_node_in_groups_too(backend):
    group = backend.split(backend.rank % 2)
    places = backend.all_gather_object((backend.local_rank, group.local_rank))
    group.close()
    assert places == [
        (rank, rank) for rank in range(backend.world_size)
    ]  # the tests run on one machine


def test_a_group_that_is_closed_watches_no_longer(backend, tmp_path):
    group = backend.split(0, backend.rank)
    folder = backend.broadcast_object(tmp_path)
    before, own = threading.active_count(), backend.progress.ledger
    group.keep_ledger(folder)
    group.keep_ledger(folder)
    group.barrier()
    assert threading.active_count() == before + 1 and backend.progress.ledger is not own
    group.close()
    assert threading.active_count() == before and backend.progress.ledger is own
    backend.barrier()


def test_a_second_backend_leaves_the_exception_hook_alone(backend):
    if not backend.job.ends_job:
        pytest.skip("the backend of a guest has no exception hook")
    hook = sys.excepthook
    second = MPICommunicationBackend()
    second.initialize()
    assert sys.excepthook == hook
    second.shutdown()
    assert sys.excepthook == hook and not second.is_initialized


def test_a_time_limit_holds_from_when_it_is_set_on_all_groups(backend):
    if not backend.job.ends_job:
        pytest.skip("the calls of a guest have no limit")
    group = backend.split(backend.rank % 2)
    before = backend.timeout
    try:
        group.timeout = 400
        assert backend.timeout == group.timeout == backend._watchdog._limit() == 400
        with pytest.raises(ValueError, match="wanted seconds > 0"):
            group.timeout = 0
    finally:
        backend.timeout = before
        group.close()


@pytest.mark.mpi(min_size=2)
def test_a_message_of_the_wrong_size_is_an_error_where_it_is_received(backend):
    from shardkit import CommunicationError

    with collectively(backend):
        if backend.rank == 0:
            backend.send(numpy.zeros(3), 1)
            backend.send(numpy.zeros(5), 1)
        elif backend.rank == 1:
            for _ in range(2):
                with pytest.raises(CommunicationError, match="disagree about its size"):
                    backend.receive(numpy.zeros(4), 0)


def test_ordered_reduce_scatter_moves_as_many_bytes_as_a_ring(backend):
    n = backend.world_size
    buffer, out = numpy.zeros(1000 * n, "float32"), numpy.zeros(1000, "float32")
    backend.traffic.reset()
    ordered_reduce_scatter(backend, buffer, out, scratch_elements=64 * n)
    assert backend.traffic.bytes_sent == 4000 * (n - 1)
