"""The communication contract on ranks that are threads, and what only the in-memory backend
does.
"""

import threading
import time
from math import inf

import numpy
import pytest
from threads.communication_contract import PROMISES, rough, tree

from shardkit import (
    CommunicationError,
    CommunicationTimeout,
    InMemoryCommunicationBackend,
    Mesh,
    ReductionOperation,
    run_ranks,
)
from shardkit.testing.base import PeerError
from shardkit.testing.comm import abort_on_error, ordered_all_reduce


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("promise", PROMISES)
def test_the_contract_holds_on_threads(promise, num_ranks):
    run_ranks(num_ranks, PROMISES[promise], timeout=500)


@pytest.mark.parametrize("num_ranks", [5, 8])
def test_ordered_reductions_are_trees_on_more_ranks(num_ranks):
    for name in (
        "ordered_reductions_have_the_bits_of_the_tree_over_ranks-float32",
        "ordered_sum_adds_a_few_numbers_as_a_tree",
    ):
        run_ranks(num_ranks, PROMISES[name], timeout=500)


def test_the_order_of_addition_matters_for_the_values_of_these_tests():
    arrays = [rough(rank, 100, "float32") for rank in range(8)]
    assert tree(arrays).tobytes() != sum(arrays[1:], arrays[0]).tobytes()


def test_results_come_in_rank_order():
    assert run_ranks(3, lambda backend: backend.rank * 10) == [0, 10, 20]


@pytest.mark.thorough
def test_a_mesh_of_512_ranks_runs_in_one_process():
    def work(backend):
        mesh = Mesh(backend, pipeline=8, tensor=8)
        ones = numpy.ones(4, "float32")
        mesh.group("data").all_reduce(ones)
        mesh.group("tensor").all_reduce(ones)
        ordered_all_reduce(mesh.group("pipeline"), ones)
        return float(ones[0])

    assert run_ranks(512, work) == [512.0] * 512


def test_float_sums_are_taken_in_rank_order():
    def work(backend):
        time.sleep(0.02 * (3 - backend.rank))  # the last rank arrives first
        array = rough(backend.rank, 100, "float32")
        backend.all_reduce(array)
        return array

    expected = sum((rough(rank, 100, "float32") for rank in range(1, 4)), rough(0, 100, "float32"))
    assert all(result.tobytes() == expected.tobytes() for result in run_ranks(4, work))


# ---- what goes wrong -----------------------------------------------------------------------------


def test_verbs_before_initialize_and_after_shutdown_are_refused():
    backend = InMemoryCommunicationBackend(0, 1, "test refused")
    with pytest.raises(CommunicationError, match="all_reduce.*not initialized"):
        backend.all_reduce(numpy.zeros(1))
    backend.initialize()
    backend.barrier()
    backend.shutdown()
    with pytest.raises(CommunicationError, match="irecv.*not initialized"):
        backend.irecv(numpy.zeros(1), 0)


def test_the_first_failure_in_time_is_raised_with_its_rank():
    seen = {}

    def work(backend):
        if backend.rank == 2:
            time.sleep(0.05)
            raise KeyError("first")
        try:
            backend.barrier()
        except PeerError as error:
            seen[backend.rank] = str(error)
            raise

    start = time.monotonic()
    with pytest.raises(KeyError, match="first") as caught:
        run_ranks(4, work)
    assert caught.value.__notes__ == ["raised on rank 2 of 4"] and time.monotonic() - start < 400
    assert seen == {rank: "rank 2 failed: KeyError: 'first'" for rank in (0, 1, 3)}


def test_a_failing_rank_wakes_those_that_wait_for_a_message_or_in_another_group():
    def work(backend):
        group = backend.split(backend.rank // 2)
        if backend.rank == 3:
            raise ValueError("gone")
        if backend.rank == 0:
            backend.receive(numpy.empty(1), 1)
        group.barrier()

    with pytest.raises(ValueError, match="gone"):
        run_ranks(4, work, timeout=500)


def test_system_exit_in_a_rank_is_a_failure():
    with pytest.raises(SystemExit):
        run_ranks(2, lambda backend: exit(3) if backend.rank else backend.barrier())


def test_a_rank_that_returns_early_is_reported_and_does_not_hang_the_others():
    def work(backend):
        if backend.rank != 1:
            backend.all_reduce(numpy.zeros(3))

    with pytest.raises(
        CommunicationError, match=r"collective #1, all_reduce\(sum, 3 float64\): rank 1 returned"
    ):
        run_ranks(3, work, timeout=500)


def test_a_rank_that_has_returned_already_is_reported_to_those_that_come_later():
    def work(backend):
        if backend.rank != 1:
            time.sleep(0.1)
            backend.barrier()

    start = time.monotonic()
    with pytest.raises(CommunicationError, match="barrier: rank 1 returned"):
        run_ranks(3, work, timeout=500)
    assert time.monotonic() - start < 400


def test_a_receive_from_a_rank_that_returned_is_reported():
    with pytest.raises(
        CommunicationError, match="receive from rank 1, tag 0, 4 elements: rank 1 returned"
    ):
        run_ranks(
            2,
            lambda backend: backend.receive(numpy.zeros(4), 1) if backend.rank == 0 else None,
            timeout=500,
        )


def test_a_peer_that_never_comes_is_a_timeout_naming_operation_number_and_missing_ranks():
    def work(backend):
        backend.barrier()
        if backend.rank in (1, 3):
            time.sleep(1)
        else:
            backend.broadcast(numpy.zeros(2, "float32"))

    pattern = r"collective #2, broadcast\(root 0, 2 float32\): ranks 1, 3 did not come within 0.2 s"
    with pytest.raises(CommunicationTimeout, match=pattern):
        run_ranks(4, work, timeout=0.2)


def test_send_first_on_both_sides_is_found():
    def work(backend):
        backend.send(numpy.zeros(1), 1 - backend.rank)
        backend.receive(numpy.zeros(1), 1 - backend.rank)

    with pytest.raises(CommunicationTimeout, match="send to rank"):
        run_ranks(2, work, timeout=0.2)


def test_different_verbs_at_the_same_number_are_named_on_all_ranks():
    messages = []

    def work(backend):
        try:
            if backend.rank == 1:
                backend.broadcast(numpy.zeros(2), 0)
            else:
                backend.all_reduce(numpy.zeros(2))
        except CommunicationError as error:
            messages.append(str(error))

    run_ranks(3, work)
    assert len(messages) == 3
    assert all(
        "all_reduce(sum, 2 float64)" in text and "broadcast(root 0, 2 float64)" in text
        for text in messages
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.all_reduce(numpy.zeros(2 + b.rank)),
        lambda b: b.all_reduce(numpy.zeros(2, "f4" if b.rank else "f8")),
        lambda b: b.all_reduce(
            numpy.zeros(2), ReductionOperation.MAX if b.rank else ReductionOperation.MIN
        ),
        lambda b: b.broadcast(numpy.zeros(2), b.rank),
        lambda b: b.all_gather(numpy.zeros(1 + b.rank), numpy.zeros(3 + b.rank), [1 + b.rank, 2]),
    ],
    ids=["size", "dtype", "op", "root", "counts"],
)
def test_arguments_that_differ_between_ranks_are_found(call):
    with pytest.raises(CommunicationError, match="differs between ranks"):
        run_ranks(2, call, timeout=500)


def test_pieces_of_all_to_all_that_do_not_fit_are_found():
    def work(backend):
        n = 2 + backend.rank
        backend.all_to_all(numpy.zeros(2 * n), numpy.zeros(2 * n))

    with pytest.raises(CommunicationError, match="rank 0 sends rank 1 2 elements, which expects 3"):
        run_ranks(2, work)


def test_a_message_of_the_wrong_size_is_an_error_on_both_sides():
    errors = []

    def work(backend):
        try:
            if backend.rank == 0:
                backend.send(numpy.zeros(3), 1)
            else:
                backend.receive(numpy.zeros(4), 0)
        except CommunicationError as error:
            errors.append(str(error))

    run_ranks(2, work)
    assert len(errors) == 2 and "3 elements" in errors[0] and "4 elements" in errors[0]


def test_abort_wakes_all_ranks_with_the_message():
    def work(backend):
        if backend.rank == 1:
            backend.abort("disk full")
        backend.barrier()

    with pytest.raises(CommunicationError, match="disk full"):
        run_ranks(3, work)


def test_an_error_on_all_ranks_alike_is_said_once_and_exits_with_its_code(capsys):
    codes = []

    def work(backend):
        try:
            with abort_on_error(backend):
                Mesh(backend, pipeline=7, data=1)
        except SystemExit as exit:
            codes.append(exit.code)

    run_ranks(3, work)
    words = capsys.readouterr().err
    assert codes == [2, 2, 2]
    assert (
        words.count("were started") == 1 and "on all 3 ranks" in words and "Traceback" not in words
    )


@pytest.mark.thorough
def test_an_error_on_one_rank_alone_aborts_and_writes_an_error_file(tmp_path):
    def work(backend):
        with abort_on_error(backend, tmp_path / "run", lambda: "step 12"):
            if backend.rank == 1:
                raise ZeroDivisionError("by zero")
            backend.barrier()

    with pytest.raises(
        CommunicationError, match=r"rank 1 \(step 12\) failed: ZeroDivisionError: by zero"
    ):
        run_ranks(3, work)
    text = (tmp_path / "run" / "error-rank-00001.txt").read_text()
    assert "doing  step 12" in text and "Traceback" in text and "time   2" in text


def test_of_several_failures_the_first_in_time_leads(capsys):
    """Rank 2 fails first, the others because of it, in words that do not say so."""

    def work(backend):
        with pytest.raises(SystemExit), abort_on_error(backend):
            time.sleep(0 if backend.rank == 2 else 0.2)
            raise FileNotFoundError(
                "the cause" if backend.rank == 2 else f"a consequence on rank {backend.rank}"
            )

    run_ranks(3, work)
    words = capsys.readouterr().err
    assert words == "shardkit: rank 2 failed: FileNotFoundError: the cause\n"


def test_a_group_knows_the_places_of_its_ranks_on_the_node():
    assert run_ranks(4, lambda backend: backend.split(backend.rank % 2).local_rank) == [0, 1, 2, 3]


def test_what_belongs_to_the_process_is_one_for_all_its_groups(tmp_path):
    def run(backend):
        group = backend.split(backend.rank % 2)
        assert backend.seconds_left() == inf and group.ledger_folder is None
        group.seconds_left = lambda: 7.0
        backend.keep_ledger(tmp_path)
        assert backend.seconds_left() == 7.0 and group.ledger_folder == tmp_path
        return group.split(0).seconds_left()

    assert run_ranks(4, run) == [7.0] * 4


# ---- environments --------------------------------------------------------------------------------


def test_backends_of_one_environment_meet_and_others_do_not():
    sums = {}

    def work(name, rank):
        backend = InMemoryCommunicationBackend(rank, 2, environment_id=name)
        backend.initialize()
        array = numpy.array([1.0 if name == "a" else 10.0])
        backend.all_reduce(array)
        sums[name, rank] = array[0]
        backend.shutdown()

    threads = [threading.Thread(target=work, args=(name, rank)) for name in "ab" for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert sums == {("a", 0): 2.0, ("a", 1): 2.0, ("b", 0): 20.0, ("b", 1): 20.0}


def test_a_rank_can_be_taken_once_and_again_after_all_have_left():
    first = InMemoryCommunicationBackend(0, 1, "test taken")
    with pytest.raises(CommunicationError, match="taken"):
        InMemoryCommunicationBackend(0, 1, "test taken")
    first.initialize()
    first.shutdown()
    InMemoryCommunicationBackend(0, 1, "test taken").initialize()


@pytest.mark.parametrize("rank, size", [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_a_value_error(rank, size):
    with pytest.raises(ValueError, match="world size"):
        InMemoryCommunicationBackend(rank, size, "test outside")
