"""MPI ranks that make different calls: told in a sentence on all of them, in checked mode and in
the first calls without it.
"""

import numpy
import pytest
from model_calls import X, Y, fsdp_model, message_of
from wrong_calls import IN_CHECKED_MODE, PIECES, REFUSED, WRONG

import shardkit as sk
from shardkit.testing.comm import COMPARED_CALLS, in_words


@pytest.fixture(params=["1", "0"], ids=["memory of the node", "messages"])
def open_backend(backend, request, monkeypatch):
    """function (checked) -> a backend of all ranks, on a communicator of its own; with the node's
    memory or without.
    """
    monkeypatch.setenv("SHARDKIT_SHARED", request.param)
    opened = []

    def open_one(checked: bool):
        monkeypatch.setenv("SHARDKIT_CHECK", "1" if checked else "0")
        one = sk.MPICommunicationBackend(backend.communicator)
        one.initialize()
        opened.append(one)
        return one

    yield open_one
    for one in opened:
        one.shutdown()


def assert_named(backend, call, odd, refusals=(), words=" called"):
    """All ranks raise, and these that were not refused name the odd one; then they go on
    together.
    """
    with pytest.raises((*refusals, sk.CommunicationError)) as caught:
        call(backend, backend.rank == odd)
    if refusals and backend.rank == odd:
        assert isinstance(caught.value, refusals)
    else:
        assert f"rank {odd}{words}" in str(caught.value)
    total = numpy.ones(3, "float32")
    backend.all_reduce(total)
    assert (total == backend.world_size).all()


def needs_ranks(backend):
    if backend.world_size < 3:
        pytest.skip("with two ranks nobody knows who of them is odd")


def test_checked_mode_names_the_rank_in_every_wrong_call(backend, open_backend):
    needs_ranks(backend)
    one = open_backend(True)
    for call in [*WRONG.values(), *IN_CHECKED_MODE.values()]:
        assert_named(one, call, one.world_size - 1)
    for call in PIECES.values():
        assert_named(one, call, one.world_size - 1, words="")


def test_checked_mode_tells_all_ranks_of_arguments_that_are_refused_on_one(backend, open_backend):
    needs_ranks(backend)
    one = open_backend(True)
    for call in REFUSED.values():
        assert_named(one, call, one.world_size - 1, (ValueError, TypeError))


@pytest.mark.parametrize("num_before", [0, COMPARED_CALLS // 2])
def test_the_first_calls_of_a_group_are_compared_without_checked_mode(
    backend, open_backend, num_before
):
    needs_ranks(backend)
    one = open_backend(False)
    for call in WRONG.values():
        group = one.split(0, one.rank)
        for _ in range(num_before):
            group.all_reduce(numpy.ones(3, "float32"))
        assert_named(group, call, one.world_size - 1)
        group.close()
        if num_before:
            break


def test_a_message_of_another_size_names_both_ranks(backend, open_backend):
    needs_ranks(backend)
    one = open_backend(False)
    if one.rank == 0:
        one.send(numpy.ones(3, "float32"), 1)
    if one.rank == 1:
        with pytest.raises(
            sk.CommunicationError, match="rank 0 sent rank 1 12 bytes, but that expected 16;"
        ):
            one.receive(numpy.ones(4, "float32"), 0)


def test_ranks_that_mix_up_calls_of_a_model_are_told_long_after_the_first_calls(
    backend, open_backend, tmp_path
):
    if backend.world_size == 1:
        pytest.skip("one rank mixes up nothing")
    one = open_backend(False)
    with fsdp_model(one) as model:
        for _ in range(COMPARED_CALLS):
            model.predict(X)
        is_odd = one.rank == one.world_size - 1
        others = in_words(range(one.world_size - 1))
        for odd in ("predict", "save_model", "gather_full_parameters"):
            message = message_of(model, odd if is_odd else "train", tmp_path)
            assert f"{odd} on rank {one.world_size - 1}, but train on {others}" in message
        model.train(X, Y)
