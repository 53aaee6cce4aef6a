"""Shared-memory channels and heaps on threads: any number of ranks, and what goes wrong."""

import threading
import time

import numpy
import pytest
from shared_channels import on_one_node
from threads.communication_contract import rough, tree

from shardkit import ReductionOperation
from shardkit.testing.array import compiled
from shardkit.testing.comm import (
    IDLE_BYTES,
    PAGE_BYTES,
    SLOT_BYTES,
    STREAM_BYTES,
    Heap,
    Mapping,
    stream_bytes,
)

SUM, PRODUCT, MIN, MAX, _ = ReductionOperation
SLOT = SLOT_BYTES // 4  # elements of float32
SIZES = [0, 1, 7, 2049, SLOT, 2 * SLOT + 5]


@pytest.fixture
def heap():
    made = Heap(1 << 28)
    yield made
    made.hide()


def placed(heap, array, is_private):
    """A copy of the array, in the heap or not."""
    copy = numpy.empty_like(array) if is_private else heap.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "num_ranks, private",
    [*((3, private) for private in ("none", "all", "one")), (2, "none"), (2, "one")]
    + [(4, "all"), (5, "one"), (7, "none"), (8, "one")],
)
def test_reductions_are_trees_over_the_ranks_wherever_arrays_are(num_ranks, private):
    def work(channel, heap, rank):
        is_private = {"none": False, "all": True, "one": rank == 1}[private]
        reduced, scattered = [], []
        for size in SIZES:
            array = placed(heap, rough(rank, size, "float32"), is_private)
            channel.run("all_reduce", array, SUM)
            reduced.append(array.tobytes())
            counts = [size // 2 * (r % 3) for r in range(num_ranks)]
            send, out = (
                placed(heap, rough(rank, sum(counts), "float32"), is_private),
                numpy.empty(counts[rank], "float32"),
            )
            before = send.tobytes()
            channel.run("reduce_scatter", send, out, counts, SUM)
            assert send.tobytes() == before
            start = sum(counts[:rank])
            own = send[start : start + counts[rank]]
            channel.run("reduce_scatter", send, own, counts, SUM)
            assert own.tobytes() == out.tobytes()
            scattered.append(out)
        return reduced, scattered

    results = on_one_node(num_ranks, work)
    for at, size in enumerate(SIZES):
        total = tree([rough(rank, size, "float32") for rank in range(num_ranks)])
        assert [reduced[at] for reduced, _ in results] == [total.tobytes()] * num_ranks, size
        length = sum(size // 2 * (r % 3) for r in range(num_ranks))
        total = tree([rough(rank, length, "float32") for rank in range(num_ranks)])
        assert (
            numpy.concatenate([scattered[at] for _, scattered in results]).tobytes()
            == total.tobytes()
        ), size


@pytest.mark.parametrize(
    "op, reference", [(PRODUCT, numpy.multiply), (MIN, numpy.minimum), (MAX, numpy.maximum)]
)
def test_other_operations_are_those_of_numpy_also_on_nan(op, reference):
    def values(rank):
        array = rough(rank, 3 * SLOT, "float64")
        array[rank::7] = numpy.nan
        return array

    def work(channel, heap, rank):
        arrays = [values(rank), placed(heap, values(rank), False)]
        for array in arrays:
            channel.run("all_reduce", array, op)
        return arrays

    wanted = reference(reference(values(0), values(1)), values(2))
    for arrays in on_one_node(3, work):
        for array in arrays:
            numpy.testing.assert_array_equal(array, wanted)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_gathers_and_broadcasts_move_every_byte_once(num_ranks, private):
    def work(channel, heap, rank):
        for size in SIZES:
            counts = [size * (r % 2) + r for r in range(num_ranks)]
            whole = numpy.concatenate(
                [numpy.arange(count) + 1000 * r for r, count in enumerate(counts)]
            )
            got = placed(heap, numpy.full(sum(counts), -1), private)
            channel.run(
                "all_gather",
                placed(heap, numpy.arange(counts[rank]) + 1000 * rank, True),
                got,
                counts,
            )
            numpy.testing.assert_array_equal(got, whole)
            start = sum(counts[:rank])
            got[:start], got[start + counts[rank] :] = -1, -1
            channel.run("all_gather", got[start : start + counts[rank]], got, counts)
            numpy.testing.assert_array_equal(got, whole)
            root = num_ranks - 1
            array = placed(heap, numpy.arange(size) * (rank == root), private)
            channel.run("broadcast", array, root)
            numpy.testing.assert_array_equal(array, numpy.arange(size))
            channel.run("barrier")

    on_one_node(num_ranks, work)


def test_nobody_leaves_a_barrier_before_all_have_come():
    come = []

    def work(channel, heap, rank):
        for turn in range(50):
            time.sleep(0.002 * (rank == turn % 4))
            come.append(turn)
            channel.run("barrier")
            assert come.count(turn) == 4
            channel.run("barrier")

    on_one_node(4, work)


def test_a_rank_that_calls_something_else_is_waited_for():
    """As with messages: the watchdog tells who it was. Nothing is added to what does not belong
    together.
    """
    left = threading.Event()

    def work(channel, heap, rank):
        array = numpy.ones(10 + rank, "float32")
        channel.inside.probe = lambda: time.sleep(0.001) or (left.is_set() and exit())
        try:
            channel.run("all_reduce", array, SUM)
        except SystemExit:
            return array

    threading.Timer(0.5, left.set).start()
    assert [array.sum() for array in on_one_node(2, work)] == [10, 11]


# ---- heaps ---------------------------------------------------------------------------------------


def test_arrays_of_a_heap_start_on_cache_lines_and_do_not_overlap(heap):
    arrays = [heap.empty(size, "uint8") for size in (1, 63, 64, 65, 5000, 1 << 20)]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))
    assert heap.empty((2, 3), "float64").shape == (2, 3) and heap.empty(0, "int8").size == 0


def test_a_block_comes_back_with_the_last_view_of_it(heap):
    array = heap.empty(1000, "float32")
    address, view = array.ctypes.data, array[10:20].reshape(2, 5)
    del array
    assert heap.empty(1000, "float32").ctypes.data != address
    del view
    assert heap.empty(1000, "float32").ctypes.data == address
    assert heap.lent_bytes == 0


def test_memory_beyond_what_is_kept_goes_back_to_the_system(heap):
    array = heap.empty(2 * IDLE_BYTES, "uint8")
    array[:] = 1
    address = array.ctypes.data
    del array
    again = heap.empty(2 * IDLE_BYTES, "uint8")
    assert again.ctypes.data == address and not again[::PAGE_BYTES].any(), (
        "pages that were given back read as zero"
    )


def test_a_full_heap_says_so():
    heap = Heap(1 << 20)
    arrays = [heap.empty(1 << 18, "uint8") for _ in range(5)]
    heap.hide()
    assert arrays[0] is not None and arrays[-1] is None


def test_a_neighbor_maps_the_same_memory_and_no_other_process_by_mistake(heap):
    import os

    array = heap.empty(10, "uint8")
    array[:] = 7
    facts = (os.getpid(), heap.file, heap.num_bytes)
    mapped = Mapping.of_neighbor(*facts, heap.token)
    offset = array.ctypes.data - heap.memory.address
    assert (
        mapped.map[offset : offset + 10] == bytes([7] * 10)
        and mapped.address != heap.memory.address
    )
    with pytest.raises(OSError, match="not the neighbor"):
        Mapping.of_neighbor(*facts, b"x" * len(heap.token))


def _copy_past_the_caches(target, source, count):
    stream_bytes(target, source, count)


def test_a_copy_past_the_caches_moves_these_bytes_and_no_others():
    copy = compiled.compiled(_copy_past_the_caches)
    source = numpy.random.default_rng(0).integers(1, 256, 200_000, "uint8")
    for start, count in [
        (0, 0),
        (3, 1),
        (0, 64),
        (5, 70),
        (0, 16_384),
        (1, 16_447),
        (63, 16_448),
        (40, 150_001),
    ]:
        target = numpy.zeros(200_000, "uint8")
        copy(target.ctypes.data + start, source.ctypes.data + 7, count)
        assert (target[start : start + count] == source[7 : 7 + count]).all()
        assert not target[:start].any() and not target[start + count :].any()


def test_a_large_all_gather_goes_past_the_caches_and_is_whole():
    counts = [(STREAM_BYTES >> 2) - 5, 17]

    def work(channel, heap, rank):
        whole = (
            numpy.ndarray(sum(counts), "float32")
            if rank == 0
            else heap.empty(sum(counts), "float32")
        )
        own = heap.empty(counts[rank], "float32")
        whole[...], own[...] = -1, rank + 1
        channel.run("all_gather", own, whole, counts)
        return [int((whole == value).sum()) for value in (1, 2)]

    assert on_one_node(2, work, heap_bytes=1 << 28) == [counts, counts]
