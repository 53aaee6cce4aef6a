"""The short way of plain arrays does what the other way does, and leaves to it what it cannot
do.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import ReductionOperation
from shardkit.testing.comm import (
    COMPILED_VERBS,
    LEDGER_NAME,
    AloneChannel,
    NotedCalls,
    NotedLoops,
    checks,
    read_ledger,
)

AVERAGE = ReductionOperation.AVERAGE
SOME = [4, 6]  # elements of each rank
VERBS = {
    "all_reduce": lambda backend, whole, own: backend.all_reduce(whole),
    "all_gather": lambda backend, whole, own: backend.all_gather(own, whole),
    "reduce_scatter": lambda backend, whole, own: backend.reduce_scatter(whole, own),
    "all_gather of some": lambda backend, whole, own: backend.all_gather(
        own.reshape(-1)[: SOME[backend.rank]], whole.reshape(-1)[:10], SOME
    ),
    "all_gather of own places": lambda backend, whole, own: backend.all_gather(
        whole.reshape(-1)[4 * backend.rank :][: SOME[backend.rank]], whole.reshape(-1)[:10], SOME
    ),
    "reduce_scatter of some": lambda backend, whole, own: backend.reduce_scatter(
        whole.reshape(-1)[:10], own.reshape(-1)[: SOME[backend.rank]], SOME
    ),
    "broadcast": lambda backend, whole, own: backend.broadcast(whole, 1),
    "all_to_all": lambda backend, whole, own: backend.all_to_all(whole.copy(), whole),
}


def called(backend, verb, folder):
    """(values, bytes sent, what the ledger says) of one call on 12 numbers."""
    backend.keep_ledger(folder)
    backend.traffic.reset()
    whole, own = (
        numpy.arange(12, dtype="float32").reshape(2, 6) + backend.rank,
        numpy.full((3, 2), backend.rank, "float32"),
    )
    VERBS[verb](backend, whole, own)
    call = read_ledger(folder / LEDGER_NAME.format(0), backend.rank).calls[-1]
    return (
        whole.tolist(),
        own.tolist(),
        backend.traffic.by_verb,
        call.carries,
        call.number_on_group,
        call.ranks,
        call.site.rpartition(" in ")[2],
        call.ended is not None,
    )


@pytest.mark.parametrize("verb", VERBS)
def test_both_ways_leave_the_same_values_traffic_and_record(verb, tmp_path, monkeypatch):
    short = sk.run_ranks(2, lambda backend: called(backend, verb, tmp_path))
    monkeypatch.setattr(checks, "is_plain", lambda array: False)
    assert sk.run_ranks(2, lambda backend: called(backend, verb, tmp_path)) == short


@pytest.mark.parametrize("verb", VERBS)
def test_plain_arrays_need_no_port(verb, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a port was opened")

    def work(backend):
        VERBS[verb](backend, numpy.ones(12), numpy.ones(6))

    monkeypatch.setattr("shardkit.testing.comm.arguments.open_port", refuse)
    sk.run_ranks(2, work)


ALONE = {  # a group of one rank: what each verb leaves in the arrays
    "barrier": lambda backend, whole, own: backend.barrier(),
    "all_reduce": lambda backend, whole, own: backend.all_reduce(whole),
    "the largest": lambda backend, whole, own: backend.all_reduce(whole, "max"),
    "the mean": lambda backend, whole, own: backend.all_reduce(whole, "average"),
    "broadcast": lambda backend, whole, own: backend.broadcast(whole),
    "all_gather": lambda backend, whole, own: backend.all_gather(own, whole),
    "all_gather of its place": lambda backend, whole, own: backend.all_gather(whole, whole),
    "reduce_scatter": lambda backend, whole, own: backend.reduce_scatter(own, whole),
    "slices": lambda backend, whole, own: backend.all_gather(own[::2], whole[:3]),
    "of two types": lambda backend, whole, own: backend.all_gather(own, whole.astype("float64")),
    "of two sizes": lambda backend, whole, own: backend.reduce_scatter(own, whole[:4]),
    "no such rank": lambda backend, whole, own: backend.broadcast(whole, 1),
    "no array": lambda backend, whole, own: backend.all_reduce([1.0]),
}


@pytest.mark.parametrize("verb", ALONE)
def test_a_rank_alone_gets_what_the_other_way_gives_it(verb, monkeypatch):
    def result(backend):
        backend.use(AloneChannel(backend.channel))
        whole, own = numpy.zeros(6, "float32"), numpy.arange(6, dtype="float32")
        try:
            ALONE[verb](backend, whole, own)
        except Exception as error:
            return type(error), str(error)
        return whole.tolist(), own.tolist(), backend.traffic.by_verb

    (short,) = sk.run_ranks(1, result)
    monkeypatch.setattr(AloneChannel, "noted_calls", lambda channel, group: NotedCalls())
    assert sk.run_ranks(1, result) == [short]


def bad_calls(backend):
    """Calls that look plain, each with what is wrong."""
    whole, frozen = numpy.ones(8), numpy.ones(8)
    frozen.flags.writeable = False
    return [
        (lambda: backend.all_reduce(frozen), "read-only"),
        (lambda: backend.all_reduce(whole[::2]), "not contiguous"),
        (lambda: backend.all_reduce(numpy.ones(8, "int32"), AVERAGE), "average"),
        (lambda: backend.all_gather(numpy.ones(3), whole), "3 elements"),
        (lambda: backend.all_gather(numpy.ones(4, "float32"), whole), "float32"),
        (lambda: backend.all_gather(whole[1:5], whole), "overlap"),
        (lambda: backend.reduce_scatter(whole, whole[4 * backend.rank :][:4]), "overlap"),
        (lambda: backend.reduce_scatter(whole, numpy.ones(3)), "3 elements"),
        (lambda: backend.all_gather(numpy.ones(2), whole, [3, 5]), "2 elements, but counts"),
        (lambda: backend.all_gather(numpy.ones(4), whole, [4, 5]), "add up to 9"),
        (lambda: backend.all_gather(numpy.ones(4), whole, [4, "4"]), "wanted an integer"),
        (lambda: backend.all_gather(whole[1:5], whole, [4, 4]), "overlap"),
        (lambda: backend.reduce_scatter(whole, numpy.ones(4), [4]), "one per rank"),
        (lambda: backend.reduce_scatter(whole, numpy.ones(4), "sum"), "wanted an integer"),
        (lambda: backend.reduce_scatter(whole, numpy.ones(4), AVERAGE), "counts is"),
        (lambda: backend.reduce_scatter(whole, whole[4 * backend.rank :][:4], [4, 4]), "overlap"),
        (lambda: backend.broadcast(whole, 2), "root 2"),
        (lambda: backend.all_to_all(whole, whole), "overlap"),
        (lambda: backend.all_to_all(whole, numpy.ones(7)), "7 elements"),
        (lambda: backend.all_to_all(whole, numpy.ones(8), [3, 5], [2, 6]), "expects"),
    ]


def test_what_is_wrong_is_told_before_anything_is_sent():
    def work(backend):
        for call, message in bad_calls(backend):
            with pytest.raises(ValueError, match=message):
                call()
        assert backend.progress.current is None and backend.traffic.bytes_sent == 0

    sk.run_ranks(2, work)


@pytest.mark.parametrize("verb", [*COMPILED_VERBS, "bind", "close"])
def test_each_verb_of_the_memory_of_a_node_is_compiled(verb):
    """A name that is not overridden would make the call the long way, with the same result."""
    assert getattr(NotedLoops, verb) is not getattr(NotedCalls, verb)
