"""Shared memory against the MPI library: the same values, wherever arrays are; and when there is
none.
"""

import gc
import itertools
import os
from contextlib import contextmanager, nullcontext

import numpy
import pytest
from builders import token_batch, train
from threads.communication_contract import PROMISES, rough, tree

import shardkit as sk
from shardkit import MPICommunicationBackend, ReductionOperation
from shardkit.testing.comm import (
    CALLS_BEFORE_OPENING,
    SMALL_BYTES,
    collectively,
    ordered_all_reduce,
    ordered_reduce_scatter,
)
from shardkit.testing.parallel import is_in_a_window, units_of

pytestmark = pytest.mark.mpi(min_size=2)
SUM, PRODUCT, MIN, MAX, AVERAGE = ReductionOperation
PLACES = ("heap", "private", "mixed")
PLACED = [  # what is trained with at each of them, whole numbers at one
    *itertools.product(("float64", "float32", "float16"), PLACES),
    *zip(("int32", "int64", "uint8", "int16"), itertools.cycle(PLACES)),
]
SIZES = (0, 1, 5, 2047, 40_000, 100_003)  # from less than a line to a dozen blocks and more


@pytest.fixture
def node(backend):
    """The backend, if its ranks see each other's memory."""
    if backend.memory() is None:
        pytest.skip(
            "no shared memory here: SHARDKIT_SHARED=0, several nodes, or a system that does not "
            "let "
            "neighbors in"
        )
    backend.carrier.small_bytes = -1  # empty arrays too go through it
    yield backend
    backend.carrier.small_bytes = SMALL_BYTES


@pytest.mark.parametrize("size, num_calls", [(4, CALLS_BEFORE_OPENING), (4096, 1)])
def test_memory_opens_with_a_large_array_or_after_some_small_ones(node, size, num_calls):
    group, few, large = node.split(0, node.rank), numpy.ones(4), numpy.ones(size)
    for _ in range(num_calls):
        assert not group.adds_in_tree_order(few)
        group.broadcast(large)
    assert group.adds_in_tree_order(few)
    group.all_reduce(few)
    group.close()
    assert (few == node.world_size).all()


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.thorough(but=50)
def test_the_contract_holds_in_shared_memory(node, promise):
    with collectively(node):
        PROMISES[promise](node)


def whole_numbers(rank, size, dtype):
    """Sums and products of these are exact, in whichever order."""
    return ((numpy.arange(size) + rank) % 3).astype(dtype)


@contextmanager
def messages_only(backend):
    """The memory of the node is left out."""
    channel = backend.channel
    backend.use(backend.messages)
    try:
        yield
    finally:
        backend.use(channel)


def placed(backend, array, where):
    """A copy in the heap on all ranks, on none, or on all but one."""
    is_private = {"heap": False, "private": True, "mixed": backend.rank == 1}[where]
    copy = (
        numpy.empty_like(array) if is_private else backend.memory().empty(array.shape, array.dtype)
    )
    copy[...] = array
    return copy


def verbs(backend, size, dtype, where):
    """The bytes that every verb leaves on this rank."""

    def own(length):
        return placed(backend, whole_numbers(backend.rank, length, dtype), where)

    counts, equal = (
        [size * (r % 2) + r for r in range(backend.world_size)],
        size * backend.world_size,
    )
    for op in (SUM, PRODUCT, MIN, MAX):
        array = own(size)
        backend.all_reduce(array, op)
        yield array.tobytes()
    for length, parts in ((sum(counts), counts), (equal, None)):
        part = size if parts is None else counts[backend.rank]
        received = numpy.empty(part, dtype)
        backend.reduce_scatter(own(length), received, parts)
        yield received.tobytes()
        whole = placed(backend, numpy.zeros(length, dtype), where)
        backend.all_gather(own(part), whole, parts)
        yield whole.tobytes()
    array = own(size)
    backend.broadcast(array, backend.world_size - 1)
    yield array.tobytes()


@pytest.mark.parametrize("dtype, where", PLACED)
@pytest.mark.thorough(but=3)
def test_every_verb_leaves_what_mpi_leaves(node, dtype, where):
    differ = []
    for size in SIZES:
        ours = list(verbs(node, size, dtype, where))
        with messages_only(node):
            theirs = list(verbs(node, size, dtype, "private"))
        differ += [(size, at) for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert node.all_gather_object(differ) == [[]] * node.world_size


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_have_the_bits_of_the_tree_with_shared_memory_and_without(node, dtype, where):
    n, rank = node.world_size, node.rank
    for shard in (1, 1000, 100_003):
        total = tree([rough(r, n * shard, dtype) for r in range(n)])
        for carrying in (nullcontext, messages_only):
            with carrying(node):
                array, out = rough(rank, n * shard, dtype), numpy.empty(shard, dtype)
                array = placed(node, array, where) if carrying is nullcontext else array
                ordered_reduce_scatter(node, array, out)
                reduced = array.copy()
                ordered_all_reduce(node, reduced)
                own = array[rank * shard : (rank + 1) * shard]
                ordered_reduce_scatter(node, array, own)
            same = (
                reduced.tobytes() == total.tobytes(),
                own.tobytes() == out.tobytes(),
                out.tobytes() == total[rank * shard : (rank + 1) * shard].tobytes(),
            )
            assert node.all_gather_object(same) == [(True, True, True)] * n


def test_a_message_under_way_is_delivered_while_the_receiver_waits_in_shared_memory(node):
    """The sender's large message moves only inside of MPI calls: a rank that waits for its
    neighbors must make them.
    """
    n, rank = node.world_size, node.rank
    mine, theirs = numpy.full(1 << 20, rank, "float32"), numpy.empty(1 << 20, "float32")
    ones = numpy.ones(10)
    if rank == 0:
        handle = node.isend(mine, 1)
        node.all_reduce(ones)
        handle.wait()
    else:
        if rank == 1:
            node.receive(theirs, 0)
        node.all_reduce(ones)
    assert (ones == n).all() and (rank != 1 or not theirs.any())


def test_groups_have_memory_of_their_own(node):
    group = node.split(node.rank % 2)
    lone = node.split(node.rank)
    assert (group.memory() is None) == (group.world_size == 1) and lone.memory() is None
    for _ in range(3):
        total, everywhere = numpy.full(5000, 1.0), numpy.full(5000, 1.0)
        group.all_reduce(total)
        node.all_reduce(everywhere)
        assert (total == group.world_size).all() and (everywhere == node.world_size).all()
    group.close()
    lone.close()


def test_a_mailbox_is_used_again_after_its_group_is_closed(node):
    def lent():
        group = node.split(0)
        group.barrier()
        lent = node.memory().lent_bytes
        group.close()
        return lent

    gc.collect()  # the groups of earlier tests, which give back what they were lent
    lent()
    assert len({lent() for _ in range(3)}) == 1


@pytest.mark.parametrize(
    "variable, value", [("SHARDKIT_SHARED", "0"), ("SHARDKIT_RANKS_PER_NODE", "1")]
)
def test_without_shared_memory_everything_goes_through_mpi(backend, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    second = MPICommunicationBackend()
    second.initialize()
    assert second.memory() is None and not second.adds_in_tree_order(numpy.ones(100_000))
    ones = numpy.ones(100_000)
    second.all_reduce(ones)
    second.shutdown()
    assert (ones == backend.world_size).all()


# ---- several nodes, which are here parts of one --------------------------------------------------


def on_two_nodes(backend, patch):
    """A backend of four ranks on two nodes; of six, by hand, on three."""
    if backend.world_size not in (4, 6):
        pytest.skip("two nodes of two ranks are four ranks")
    patch.setenv("SHARDKIT_SHARED", "1")
    patch.setenv("SHARDKIT_RANKS_PER_NODE", "2")
    second = MPICommunicationBackend()
    second.initialize()
    return second


@pytest.fixture(scope="module")
def begun_nodes(backend):
    """One for all tests that do not begin anew: it takes as long as they do."""
    with pytest.MonkeyPatch.context() as patch:
        second = on_two_nodes(backend, patch)
    yield second
    second.shutdown()


@pytest.fixture
def two_nodes(begun_nodes):
    small_bytes = begun_nodes.carrier.small_bytes
    yield begun_nodes
    begun_nodes.carrier.small_bytes = small_bytes


def test_a_node_of_two_ranks_has_memory_for_its_own_groups_only(two_nodes):
    near, far = two_nodes.split(two_nodes.rank // 2), two_nodes.split(two_nodes.rank % 2)
    for group in (two_nodes, near, far):
        ones = numpy.ones(100_000)
        group.all_reduce(ones)
        assert (ones == group.world_size).all()
    assert [group.memory() is None for group in (two_nodes, near, far)] == [False, False, True]
    assert [group.common(5, "float32") is None for group in (two_nodes, near, far)] == [
        True,
        False,
        True,
    ]
    for group in (near, far):
        group.shutdown()


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.thorough(but=30)
def test_the_contract_holds_on_two_nodes(two_nodes, promise):
    two_nodes.carrier.small_bytes = -1
    with collectively(two_nodes):
        PROMISES[promise](two_nodes)


@pytest.mark.parametrize("size", [1, 7, 40_000, 1_500_001])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.thorough(but=1)
def test_two_nodes_add_the_tree_over_all_ranks(backend, two_nodes, size, dtype):
    """The same bits as one node, and as numpy; every verb on equal and on other parts."""
    n = two_nodes.world_size
    arrays = [rough(rank, size * n, dtype) for rank in range(n)]
    wide = "float32" if dtype == "float16" else dtype  # as which half floats are added
    mine, whole = (
        arrays[two_nodes.rank],
        tree([array.astype(wide) for array in arrays]).astype(dtype),
    )
    total, counts = mine.copy(), [size * n - 3, 0, 1, 2, 0, 0][:n]
    ordered_all_reduce(two_nodes, total)
    assert total.tobytes() == whole.tobytes()
    part = numpy.empty(size, dtype)
    ordered_reduce_scatter(two_nodes, mine, part)
    own = slice(size * two_nodes.rank, size * (two_nodes.rank + 1))
    assert part.tobytes() == whole[own].tobytes()
    everything = numpy.zeros_like(whole)
    two_nodes.all_gather(part, everything)
    assert everything.tobytes() == whole.tobytes()
    if two_nodes.adds_in_tree_order(mine):
        start = sum(counts[: two_nodes.rank])
        own = slice(start, start + counts[two_nodes.rank])
        part = numpy.empty(counts[two_nodes.rank], dtype)
        two_nodes.reduce_scatter(mine, part, counts)
        assert part.tobytes() == whole[own].tobytes()
        everything = numpy.zeros_like(whole)
        two_nodes.all_gather(part, everything, counts)
        assert everything.tobytes() == whole.tobytes()


@pytest.fixture(scope="module")
def open_nodes(backend):
    """Two nodes after the calls that small arrays make by messages."""
    with pytest.MonkeyPatch.context() as patch:
        second = on_two_nodes(backend, patch)
    for _ in range(CALLS_BEFORE_OPENING):
        second.broadcast(numpy.ones(4))
        assert not second.adds_in_tree_order(numpy.ones(4))
        second.barrier()
    assert second.adds_in_tree_order(numpy.ones(4))
    yield second
    second.shutdown()


@pytest.mark.parametrize("size", [0, 1, 3, 257])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.thorough(but=2)
def test_small_arrays_take_levels_too_once_they_are_open(open_nodes, size, dtype):
    n, rank = open_nodes.world_size, open_nodes.rank
    arrays = [(10 * rough(of, size * n, "float32")).astype("int8").astype(dtype) for of in range(n)]
    wanted = {
        SUM: sum(arrays[1:], arrays[0]),
        MAX: numpy.max(arrays, axis=0),
        MIN: numpy.min(arrays, axis=0),
    }
    for op, reduced in wanted.items():
        total, part = arrays[rank].copy(), numpy.empty(size, dtype)
        open_nodes.all_reduce(total, op)
        open_nodes.reduce_scatter(arrays[rank], part, op=op)
        everything = numpy.zeros_like(total)
        open_nodes.all_gather(part, everything)
        assert total.tobytes() == everything.tobytes() == reduced.tobytes()
    open_nodes.barrier()


@pytest.mark.parametrize("size", [1, 200_000])
def test_the_sum_of_two_nodes_is_one_message_to_the_other(open_nodes, size, monkeypatch):
    """Half of the ranks send a share of one element; none waits for a second message."""
    if open_nodes.world_size != 4:
        pytest.skip("on more nodes large arrays are two messages")
    far, sent = open_nodes.channel.levels.far, []
    isend = far.communicator.Isend

    def counted(array, *rest):
        sent.append(array.size)
        return isend(array, *rest)

    array = numpy.ones(size, "float32")
    with monkeypatch.context() as patch:
        patch.setattr(far, "communicator", _Recorder(far.communicator, counted))
        open_nodes.all_reduce(array)
    own = size // 2 if size > 1 else 1 - open_nodes.rank % 2
    assert sent == [own] * (own > 0)
    assert (array == 4).all()


def test_between_nodes_a_sum_travels_once(two_nodes, monkeypatch):
    """The bytes that a rank hands to MPI in a reduce-scatter and an all-gather: half of what it
    needs without levels.
    """
    sent = []
    far = two_nodes.channel.levels.far
    isend = far.communicator.Isend

    def counted(array, *rest):
        sent.append(array.nbytes)
        return isend(array, *rest)

    others = two_nodes.world_size // 2 - 1
    whole = numpy.ones(100_000 * two_nodes.world_size, "float32")
    part = numpy.empty(100_000, "float32")
    with monkeypatch.context() as patch:
        patch.setattr(far, "communicator", _Recorder(far.communicator, counted))
        ordered_reduce_scatter(two_nodes, whole, part)
        two_nodes.all_gather(part, whole)
    assert sent == [part.nbytes] * 2 * others  # its node's sum of one slice; its own slice


class _Recorder:
    """A communicator with another Isend."""

    def __init__(self, comm, isend):
        self._own, self.Isend = comm, isend

    def __getattr__(self, name):
        return getattr(self._own, name)


# ---- parameters that a node has once -------------------------------------------------------------


def test_a_common_array_is_the_same_memory_on_all_ranks(node):
    n = node.world_size
    array = node.common(3 * n, "float32")
    array[3 * node.rank : 3 * node.rank + 3] = node.rank
    node.barrier()
    assert (array == numpy.repeat(numpy.arange(n), 3)).all()
    node.barrier()


def test_a_common_array_is_freed_once_no_rank_has_a_view_of_it(node):
    def lent():
        node.common(1, "uint8")
        return node.memory().lent_bytes

    gc.collect()  # what earlier tests have left gives back what it was lent, at any time else
    before = lent()
    arrays = [node.common(100_000, "float64") for _ in range(2)]
    if node.rank == 0:
        arrays.pop()
    kept = lent() - before
    arrays.clear()
    gone = lent() - before
    if node.rank == 0:
        assert (kept >= 1_600_000, gone) == (True, 0)


def test_the_memory_goes_with_the_backend_and_not_with_the_next_collection_of_garbage(node):
    def heaps():
        return [place for place in map(_target, os.listdir("/proc/self/fd")) if "memfd" in place]

    gc.collect()
    before = heaps()
    gc.disable()
    try:
        second = MPICommunicationBackend(node.job.parent)
        second.initialize()
        group = second.split(0)
        for _ in range(2):
            second.all_reduce(numpy.ones(100_000, "float32"))
            group.all_reduce(numpy.ones(100_000, "float32"))
        during = heaps()
        group.shutdown()
        second.shutdown()
        assert (len(during) - len(before), heaps()) == (node.world_size, before)
    finally:
        gc.enable()


def _target(file):
    """Return what an open file of this process is; "" if it is open no more."""
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def apart(backend):
    """A backend of as many nodes as ranks."""
    second = MPICommunicationBackend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDKIT_RANKS_PER_NODE", "1")
        second.initialize()
    yield second
    second.shutdown()


@pytest.mark.parametrize("steps", ["train", "by hand"])
@pytest.mark.parametrize("policy", ["FSDP", "ZeRO-1", "ZeRO-2"])
@pytest.mark.thorough(but=1)
def test_parameters_in_common_memory_end_in_the_bits_of_messages(node, apart, policy, steps):
    ends, common = [], []
    for backend in (node, apart):
        model, _ = train(policy, backend, 1, samples=2 * backend.world_size)
        seen = []
        for step in range(2):
            x, y = sk.split_batch(model.mesh, *token_batch(step, 2 * backend.world_size))
            if steps == "train":
                model.train(x, y)
            else:
                gradients = model.compute_gradients(x, y)
                seen.append(model.predict(x))
                model.apply_gradients(gradients, 1e-2)
        common += [is_in_a_window(unit) for unit in units_of(model)]
        ends.append(numpy.concatenate([model.gather_full_parameters(), *map(numpy.ravel, seen)]))
        model.close()
    units = len(common) // 2
    assert common == [True] * units + [False] * units
    assert (ends[0] == ends[1]).all()
