"""Verbs that the memory of a node makes with their notes, and planned calls, against those that the
group makes: values, traffic, notes, refusals.
"""

import re

import numpy
import pytest

from shardkit import ReductionOperation
from shardkit.testing.comm import (
    CALLS_BEFORE_OPENING,
    LEDGER_NAME,
    NotedCalls,
    collectively,
    read_ledger,
)

pytestmark = pytest.mark.mpi(min_size=2)
SUM, PRODUCT, MIN, MAX, AVERAGE = ReductionOperation
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
SIZES = (0, 1, 5, 1023, 40_000)
VERBS = {
    "all_reduce": lambda on, whole, own: on.all_reduce(whole),
    "all_reduce max": lambda on, whole, own: on.all_reduce(whole, MAX),
    "reduce_scatter": lambda on, whole, own: on.reduce_scatter(whole, own),
    "all_gather": lambda on, whole, own: on.all_gather(own, whole),
    "broadcast": lambda on, whole, own: on.broadcast(whole, 1),
    "barrier": lambda on, whole, own: on.barrier(),
}


@pytest.fixture
def group(backend):
    """A group in the memory of a node, opened; it keeps a ledger."""
    made = backend.split(0, backend.rank)
    if made.memory() is None:
        made.close()
        pytest.skip("no shared memory here")
    few = numpy.zeros(1)
    for _ in range(CALLS_BEFORE_OPENING + 1):
        made.broadcast(few)
    yield made
    made.close()


def arrays(group, size, dtype, in_heap):
    """Values [ranks * size] and [size] of this rank, in the heap or not."""
    made = []
    for length in (group.world_size * size, size):
        array = group.memory().empty(length, dtype) if in_heap else numpy.empty(length, dtype)
        array[...] = numpy.random.default_rng(group.rank).integers(1, 9, length)
        if array.dtype.kind == "f":
            array /= 7
        made.append(array)
    return made


def outcome(group, call, size, dtype, in_heap):
    """Bytes of the arrays after the call, and the traffic of it."""
    whole, own = arrays(group, size, dtype, in_heap)
    group.traffic.reset()
    call(group, whole, own)
    return whole.tobytes(), own.tobytes(), group.traffic.by_verb, group.traffic.calls


def long_way(group, *arguments):
    """The same with every call made by the group."""
    noted, group.noted = group.noted, NotedCalls()
    try:
        return outcome(group, *arguments)
    finally:
        group.noted = noted


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.thorough(but=3)
def test_both_ways_leave_the_same_bits_and_traffic(group, verb):
    for dtype in DTYPES:
        for size in SIZES:
            for in_heap in (True, False):
                found = outcome(group, VERBS[verb], size, dtype, in_heap)
                wanted = long_way(group, VERBS[verb], size, dtype, in_heap)
                with collectively(group):
                    if verb == "barrier":
                        assert found[:2] == wanted[:2]
                    else:
                        assert found == wanted, (dtype, size, in_heap)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.thorough(but=3)
def test_a_prepared_call_is_the_verb_each_time_it_is_called(group, verb):
    for dtype in DTYPES[:2]:
        for size in SIZES:
            whole, own = arrays(group, size, dtype, True)
            first = whole.copy(), own.copy()
            prepared = PREPARED[verb](group.prepare, whole, own)
            with_verb = long_way(group, VERBS[verb], size, dtype, True)[:2]
            for _ in range(3):
                whole[...], own[...] = first
                prepared()
                with collectively(group):
                    assert (whole.tobytes(), own.tobytes()) == with_verb
                group.barrier()


PREPARED = VERBS  # the parts of `prepare` have the names of the verbs


def test_a_call_of_compiled_code_is_noted_like_another_one(backend, group, tmp_path):
    folder = backend.broadcast_object(tmp_path)
    before = backend.progress.ledger
    backend.keep_ledger(folder)
    whole, own = arrays(group, 6, "float32", False)
    number = backend.progress.num_calls(group.group_key)
    assert group.noted.all_gather(own, whole) and group.noted.all_reduce(whole, SUM)
    group.prepare.all_gather(own, whole)()
    gathered, reduced, prepared = read_ledger(folder / LEDGER_NAME.format(0), backend.rank).calls
    assert gathered.carries == prepared.carries == f"all_gather of {whole.size} float32"
    assert reduced.carries == f"all_reduce of {whole.size} float32"
    assert [c.number_on_group for c in (gathered, reduced, prepared)] == [
        number + k for k in (1, 2, 3)
    ]
    assert {c.ranks for c in (gathered, reduced, prepared)} == {group.world_ranks}
    assert all(c.ended >= c.began and c.group == group.group_key for c in (gathered, reduced))
    assert "test_quick_verbs_mpi.py" in prepared.site
    assert group.progress.current is None and before is not backend.progress.ledger


@pytest.mark.thorough
def test_a_planned_call_is_recorded_as_called_where_it_was_planned(backend, tmp_path):
    """However it is made: by messages, in the memory of a node, through ports."""
    folder = backend.broadcast_object(tmp_path)
    backend.keep_ledger(folder)
    group = backend.split(0, backend.rank)
    plain = group.prepare.all_reduce(numpy.zeros(4, "float32"))
    half = group.prepare.all_reduce(numpy.zeros(4, "float16"))
    backend.barrier()
    before = read_ledger(folder / LEDGER_NAME.format(0), backend.rank).calls[-1]
    group.prepare.broadcast(numpy.zeros(7))  # no call: it leaves the record of the last one alone
    assert read_ledger(folder / LEDGER_NAME.format(0), backend.rank).calls[-1] == before
    sites = []
    for _ in range(CALLS_BEFORE_OPENING + 3):
        for call in (plain, half):
            call()
            sites.append(read_ledger(folder / LEDGER_NAME.format(0), backend.rank).calls[-1].site)
    lines = {int(re.search(r"test_quick_verbs_mpi.py:(\d+)", site)[1]) for site in sites}
    assert len(lines) == 2 and sites[::2] == [sites[0]] * len(sites[::2])
    group.close()


def test_what_does_not_fit_is_refused_there_and_told_by_the_verb(group):
    whole, own = arrays(group, 4, "float32", False)
    frozen = whole.copy()
    frozen.flags.writeable = False
    noted = group.noted
    calls = [
        (lambda: noted.all_reduce(frozen, SUM), lambda: group.all_reduce(frozen), "read-only"),
        (
            lambda: noted.all_reduce(whole[::2], SUM),
            lambda: group.all_reduce(whole[::2]),
            "not contiguous",
        ),
        (
            lambda: noted.all_gather(own[:3], whole),
            lambda: group.all_gather(own[:3], whole),
            "3 elements",
        ),
        (
            lambda: noted.all_gather(own.astype("f8"), whole),
            lambda: group.all_gather(own.astype("f8"), whole),
            "float64",
        ),
        (
            lambda: noted.all_gather(whole[1:5], whole),
            lambda: group.all_gather(whole[1:5], whole),
            "overlap",
        ),
        (
            lambda: noted.reduce_scatter(whole, whole[4 * group.rank :][:4], SUM, False),
            lambda: group.reduce_scatter(whole, whole[4 * group.rank :][:4]),
            "overlap",
        ),
        (lambda: noted.broadcast(whole, 9), lambda: group.broadcast(whole, 9), "root 9"),
        (lambda: noted.all_reduce([1], SUM), lambda: group.all_reduce([1]), "list"),
        (
            lambda: noted.all_reduce(whole.astype(">f4"), AVERAGE),
            lambda: group.prepare.all_reduce(frozen),
            "read-only",
        ),
    ]
    for road, verb, message in calls:
        assert not road()
        with pytest.raises(ValueError, match=message):
            verb()
    swapped = numpy.ones(3, ">f4")
    assert not noted.all_reduce(swapped, SUM)
    half = numpy.ones(3, "float16")
    prepared = group.prepare.all_reduce(half, AVERAGE)
    prepared()
    prepared()
    assert (half == 1).all()


@pytest.mark.parametrize("opened", [True, False])
def test_a_prepared_call_on_an_array_that_has_become_read_only_tells_what_the_verb_tells(
    backend, group, opened
):
    on = group if opened else backend.split(0, backend.rank)
    array = numpy.ones(5)
    call = on.prepare.all_reduce(array)
    for _ in range(2):
        call()
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        call()
    array.flags.writeable = True
    call()
    assert array[0] == float(on.world_size) ** 3
    if not opened:
        on.close()


def test_a_prepared_call_of_a_closed_group_is_an_error(backend):
    made = backend.split(0, backend.rank)
    call = made.prepare.all_reduce(numpy.zeros(1))
    for _ in range(2 * CALLS_BEFORE_OPENING + 5):
        call()
    made.close()
    with pytest.raises(Exception, match="not initialized"):
        call()


def test_who_listens_to_calls_hears_all_of_them(group):
    heard = []

    class Listener:
        is_written_by_loops = False
        end = fail = describe = lambda self, *arguments: None

        def begin(self, verb, *arguments):
            heard.append(verb)

    array, ledger = numpy.zeros(4, "float32"), group.progress.ledger
    call = group.prepare.all_reduce(array)
    call()
    group.progress.ledger = Listener()
    try:
        call()
        group.all_reduce(array)
        call()
    finally:
        group.progress.ledger = ledger
    call()
    assert heard == ["all_reduce"] * 3


# ---- what only some arrays have ------------------------------------------------------------------

DEFINITIONS = {
    SUM: lambda a, b: a + b,
    PRODUCT: lambda a, b: a * b,
    MIN: lambda a, b: numpy.where((b < a) | (b != b), b, a),
    MAX: lambda a, b: numpy.where((b > a) | (b != b), b, a),
}


def unusual(rank, dtype, size):
    """Values of a rank: the largest and smallest that there are, and what is no number."""
    limits = numpy.finfo(dtype) if numpy.dtype(dtype).kind == "f" else numpy.iinfo(dtype)
    values = [limits.min, limits.max, 0, 1, 3]
    values += [numpy.nan, numpy.inf, -numpy.inf, -0.0] if numpy.dtype(dtype).kind == "f" else []
    drawn = numpy.random.default_rng([rank, size]).integers(0, len(values), size)
    return numpy.array(values, dtype)[drawn]


def in_tree_order(values, combine):
    """Neighbors first, level by level, an odd one carried up."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2])]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


@pytest.mark.parametrize("op", DEFINITIONS, ids=["sum", "product", "min", "max"])
def test_what_is_no_number_wins_and_integers_wrap_around(group, op):
    n = group.world_size
    for dtype in DTYPES:
        for size in (3, 130, 3000):
            with numpy.errstate(all="ignore"):
                each = [unusual(rank, dtype, n * size) for rank in range(n)]
                wanted = in_tree_order(each, DEFINITIONS[op]).astype(dtype)
            for in_heap in (True, False):
                whole, own = arrays(group, size, dtype, in_heap)
                whole[...] = each[group.rank]
                group.reduce_scatter(whole, own, op=op)
                group.all_reduce(whole, op)
                with collectively(group):
                    numpy.testing.assert_array_equal(whole, wanted)
                    numpy.testing.assert_array_equal(own, wanted[group.rank * size :][:size])


def test_arrays_of_any_place_order_and_name_are_moved_and_added(group):
    n, rank = group.world_size, group.rank
    for dtype in ("float32", "longlong", "int32", "float16", "complex128", "bool", ">f8"):
        kind = numpy.dtype(dtype)
        numbers = numpy.arange(1, 7).astype(dtype)
        for first in (0, 1):  # the second is at no multiple of its size
            memory = numpy.zeros(6 * n * kind.itemsize + 1, "uint8")
            whole = memory[first : first + 6 * n * kind.itemsize].view(kind)
            group.all_gather(numbers, whole)
            with collectively(group):
                assert whole.tobytes() == numbers.tobytes() * n
            whole[:] = numbers[rank]
            group.broadcast(whole, n - 1)
            with collectively(group):
                assert whole.tobytes() == numbers[n - 1 : n].tobytes() * 6 * n
            if kind.kind in "fi":
                group.all_reduce(whole)
                with collectively(group):
                    assert (whole == numbers[n - 1] * n).all()


def test_a_root_sends_what_it_may_only_read(group):
    for size in (0, 4, 100_000):
        array = numpy.full(size, float(group.rank))
        array.flags.writeable = group.rank != 1
        group.broadcast(array, 1)
        with collectively(group):
            assert (array == 1).all()
