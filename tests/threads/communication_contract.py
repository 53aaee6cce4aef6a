"""What every CommunicationBackend promises, as functions of one rank's backend. Run on threads and
on MPI, on 1 to 4 ranks.

A name is a sentence that can be false. `PROMISES` maps it (with the dtype, where there are several)
to the function. Values are small integers, so sums are exact in every dtype, float16 included.
"""

from functools import partial

import numpy
import pytest

from shardkit import CommunicationBackend, CommunicationError, Mesh, MeshError, ReductionOperation
from shardkit.testing.base import PeerError
from shardkit.testing.comm import (
    agree,
    collectively,
    ordered_all_reduce,
    ordered_reduce_scatter,
    ordered_sum,
)

SUM, PRODUCT, MIN, MAX, AVERAGE = ReductionOperation
DTYPES = ("float64", "float32", "float16", "int32", "int64", "uint8")
FLOATS = ("float64", "float32", "float16")
PROMISES = {}


def promise(*dtypes):
    """Register the function, once per dtype if there are any."""

    def register(function):
        for dtype in dtypes:
            PROMISES[f"{function.__name__}-{dtype}"] = partial(function, dtype=dtype)
        if not dtypes:
            PROMISES[function.__name__] = function
        return function

    return register


def values(rank, size, dtype="float32"):
    """Different on every rank and in every place; at most 5 + rank."""
    return (numpy.arange(size) % 5 + rank + 1).astype(dtype)


def everyone(backend, size, dtype="float32"):
    """[world_size, size]: what values() is on each rank."""
    return numpy.stack([values(rank, size, dtype) for rank in range(backend.world_size)])


def uneven(backend):
    """Counts per rank: 0, 4, 8, ... so the first rank owns nothing."""
    return [4 * rank for rank in range(backend.world_size)]


def own_slice(array, counts, rank):
    """The view that belongs to this rank."""
    start = sum(counts[:rank])
    return array[start : start + counts[rank]]


# ---- reductions ----------------------------------------------------------------------------------


@promise(*DTYPES)
def all_reduce_leaves_the_sum_product_min_and_max_on_every_rank(backend, dtype):
    expected = {SUM: numpy.sum, PRODUCT: numpy.prod, MIN: numpy.min, MAX: numpy.max}
    for op, reference in expected.items():
        array = values(backend.rank, 20, dtype)
        backend.all_reduce(array, op)
        numpy.testing.assert_array_equal(
            array, reference(everyone(backend, 20, dtype), axis=0).astype(dtype)
        )


@promise(*FLOATS)
def all_reduce_average_is_the_mean_over_ranks(backend, dtype):
    array = values(backend.rank, 20, dtype)
    backend.all_reduce(array, AVERAGE)
    expected = (
        everyone(backend, 20, "float32" if dtype == "float16" else dtype).sum(axis=0)
        / backend.world_size
    )
    numpy.testing.assert_array_equal(array, expected.astype(dtype))


@promise()
def half_floats_are_summed_as_float32_and_rounded_once(backend):
    window_bytes, backend.staging.window_bytes = (
        backend.staging.window_bytes,
        64,
    )  # several windows of scratch
    array = numpy.full(100, 0.1 * (backend.rank + 1), "float16")
    everybody = [
        numpy.float32(numpy.float16(0.1 * (rank + 1))) for rank in range(backend.world_size)
    ]
    backend.all_reduce(array)
    numpy.testing.assert_allclose(array, numpy.float16(sum(everybody)), rtol=2**-11)
    slices = numpy.full((backend.world_size, 30), 1000.25 + backend.rank, "float16")
    mine = numpy.empty(30, "float16")
    backend.reduce_scatter(slices, mine, op=AVERAGE)
    sums = numpy.sum(
        [numpy.float32(numpy.float16(1000.25 + rank)) for rank in range(backend.world_size)]
    )
    backend.staging.window_bytes = window_bytes
    numpy.testing.assert_array_equal(mine, numpy.float16(sums / backend.world_size))


@promise()
def bfloat16_is_moved_as_it_is_and_summed_as_float32(backend):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    gathered, own = (
        numpy.empty(2 * backend.world_size, bfloat16),
        numpy.full(2, backend.rank, bfloat16),
    )
    backend.all_gather(own, gathered)
    backend.broadcast(gathered)
    assert gathered.astype(int).tolist() == [r for r in range(backend.world_size) for _ in range(2)]
    array = numpy.full(5, 256 if backend.rank == 0 else 1, bfloat16)  # 256 + 1 is 256 in bfloat16
    backend.all_reduce(array)
    assert array.tolist() == [numpy.float32(255 + backend.world_size).astype(bfloat16)] * 5


@promise(*DTYPES)
def reduce_scatter_leaves_each_rank_the_sum_of_its_slice(backend, dtype):
    send = values(backend.rank, 10 * backend.world_size, dtype).reshape(backend.world_size, 10)
    before, receive = send.copy(), numpy.empty(10, dtype)
    backend.reduce_scatter(send, receive)
    total = everyone(backend, 10 * backend.world_size, dtype).sum(axis=0).astype(dtype)
    numpy.testing.assert_array_equal(receive, total.reshape(backend.world_size, 10)[backend.rank])
    numpy.testing.assert_array_equal(send, before)


@promise()
def reduce_scatter_takes_uneven_and_empty_slices(backend):
    counts = uneven(backend)
    for op, scale in ((SUM, 1), (AVERAGE, backend.world_size)):
        receive = numpy.empty(counts[backend.rank])
        backend.reduce_scatter(values(backend.rank, sum(counts), float), receive, counts, op)
        total = everyone(backend, sum(counts), float).sum(axis=0) / scale
        numpy.testing.assert_array_equal(receive, own_slice(total, counts, backend.rank))


# ---- movement ------------------------------------------------------------------------------------


@promise(*DTYPES)
def all_gather_concatenates_slices_in_rank_order(backend, dtype):
    receive = numpy.empty((backend.world_size, 10), dtype)
    backend.all_gather(values(backend.rank, 10, dtype), receive)
    numpy.testing.assert_array_equal(receive, everyone(backend, 10, dtype))


@promise()
def all_gather_takes_uneven_and_empty_slices(backend):
    counts = uneven(backend)
    receive = numpy.empty(sum(counts))
    backend.all_gather(values(backend.rank, counts[backend.rank], float), receive, counts)
    expected = [values(rank, count, float) for rank, count in enumerate(counts)]
    numpy.testing.assert_array_equal(receive, numpy.concatenate(expected))


@promise()
def all_gather_works_in_place_when_send_is_the_own_slice(backend):
    for counts in ([10] * backend.world_size, uneven(backend)):
        receive = numpy.full(sum(counts), -1.0)
        own = own_slice(receive, counts, backend.rank)
        own[...] = backend.rank
        backend.all_gather(own, receive, counts)
        numpy.testing.assert_array_equal(
            receive, numpy.repeat(numpy.arange(backend.world_size), counts)
        )


@promise(*DTYPES, "bool", "complex64", "uint16")
def broadcast_copies_the_array_of_any_root(backend, dtype):
    for root in range(backend.world_size):
        array = values(backend.rank, 20, dtype).reshape(4, 5)
        backend.broadcast(array, root)
        numpy.testing.assert_array_equal(array.reshape(-1), values(root, 20, dtype))


@promise()
def scatter_gives_each_rank_its_slice_of_any_root(backend):
    for root in range(backend.world_size):
        for counts in (None, uneven(backend)):
            sizes = counts or [10] * backend.world_size
            receive = numpy.empty(sizes[backend.rank], "int64")
            backend.scatter(
                values(root, sum(sizes), "int64") if backend.rank == root else None,
                receive,
                root,
                counts,
            )
            numpy.testing.assert_array_equal(
                receive, own_slice(values(root, sum(sizes), "int64"), sizes, backend.rank)
            )


@promise()
def gather_collects_slices_on_any_root_and_nowhere_else(backend):
    for root in range(backend.world_size):
        for counts in (None, uneven(backend)):
            sizes = counts or [10] * backend.world_size
            receive = numpy.empty(sum(sizes)) if backend.rank == root else None
            backend.gather(values(backend.rank, sizes[backend.rank], float), receive, root, counts)
            if backend.rank == root:
                expected = [values(rank, size, float) for rank, size in enumerate(sizes)]
                numpy.testing.assert_array_equal(receive, numpy.concatenate(expected))


@promise()
def scatter_and_gather_work_in_place_on_the_root(backend):
    whole = numpy.arange(10.0 * backend.world_size) if backend.rank == 0 else None
    own = whole[:10] if backend.rank == 0 else numpy.empty(10)
    backend.scatter(whole, own)
    own += 1
    backend.gather(own, whole)
    if backend.rank == 0:
        numpy.testing.assert_array_equal(whole, numpy.arange(10.0 * backend.world_size) + 1)


@promise(*DTYPES)
def all_to_all_transposes_the_table_of_slices(backend, dtype):
    n = backend.world_size
    send = numpy.empty((n, 10), dtype)
    send[...] = (numpy.arange(n) * 10 + backend.rank)[:, None]
    receive = numpy.empty((n, 10), dtype)
    backend.all_to_all(send, receive)
    numpy.testing.assert_array_equal(
        receive[:, 0], (backend.rank * 10 + numpy.arange(n)).astype(dtype)
    )
    assert (receive == receive[:, :1]).all()


@promise()
def all_to_all_takes_uneven_and_empty_pieces(backend):
    n, rank = backend.world_size, backend.rank

    def size(source, target):
        return 3 * ((source + target) % n) + (9 if source > target else 0)

    send_counts, receive_counts = (
        [size(rank, r) for r in range(n)],
        [size(r, rank) for r in range(n)],
    )
    receive = numpy.empty(sum(receive_counts), "int32")
    backend.all_to_all(
        numpy.repeat(numpy.arange(n, dtype="int32") + 100 * rank, send_counts),
        receive,
        send_counts,
        receive_counts,
    )
    numpy.testing.assert_array_equal(
        receive, numpy.repeat(numpy.arange(n) * 100 + rank, receive_counts)
    )


@promise()
def all_to_all_displacements_send_from_and_into_a_larger_buffer(backend):
    n, rank = backend.world_size, backend.rank
    send, receive = numpy.arange(20 * n) + 1000 * rank, numpy.full(30 * n, -1)
    backend.all_to_all(
        send,
        receive,
        [8] * n,
        [8] * n,
        [20 * r + 5 for r in range(n)],
        [30 * r + 2 for r in range(n)],
    )
    expected = numpy.full((n, 30), -1)
    expected[:, 2:10] = numpy.arange(8) + 20 * rank + 5 + 1000 * numpy.arange(n)[:, None]
    numpy.testing.assert_array_equal(receive.reshape(n, 30), expected)


@promise()
def every_verb_takes_empty_arrays(backend):
    empty, whole = numpy.empty(0), numpy.empty(0)
    backend.all_reduce(empty)
    backend.broadcast(empty)
    backend.all_gather(empty, whole)
    backend.reduce_scatter(empty, whole)
    backend.scatter(empty, whole)
    backend.gather(empty, whole)
    backend.all_to_all(empty, whole)
    for handle in (
        backend.iall_reduce(empty),
        backend.iall_gather(empty, whole),
        backend.ireduce_scatter(empty, whole),
    ):
        handle.wait()


# ---- between two ranks ---------------------------------------------------------------------------


def ring(backend):
    """(next rank, previous rank)."""
    return (backend.rank + 1) % backend.world_size, (backend.rank - 1) % backend.world_size


@promise(*DTYPES)
def a_message_arrives_as_it_was_sent(backend, dtype):
    after, before = ring(backend)
    receive = numpy.empty((4, 5), dtype)
    handle = backend.irecv(receive, before, tag=5)
    backend.send(values(backend.rank, 20, dtype), after, tag=5)
    handle.wait()
    numpy.testing.assert_array_equal(receive.reshape(-1), values(before, 20, dtype))


@promise()
def receive_blocks_until_the_message_is_here(backend):
    after, before = ring(backend)
    receive = numpy.empty(10)
    handle = backend.isend(values(backend.rank, 10, float), after)
    backend.receive(receive, before)
    handle.wait()
    numpy.testing.assert_array_equal(receive, values(before, 10, float))


@promise()
def messages_of_one_tag_keep_their_order_and_tags_do_not_mix(backend):
    after, before = ring(backend)
    sends = [
        backend.isend(numpy.full(9, number), after, tag)
        for tag in (1, 2)
        for number in (10 * tag, 10 * tag + 1)
    ]
    arrays = [numpy.empty(9, int) for _ in range(4)]
    receives = [backend.irecv(array, before, tag) for array, tag in zip(arrays, (2, 1, 2, 1))]
    for handle in sends + receives:
        handle.wait()
    assert [int(array[0]) for array in arrays] == [20, 10, 21, 11]


@promise()
def an_empty_message_is_a_message(backend):
    after, before = ring(backend)
    handle = backend.irecv(numpy.empty(0), before)
    backend.send(numpy.empty(0), after)
    handle.wait()


@promise()
def internal_messages_do_not_match_those_of_the_user(backend):
    n = backend.world_size
    after, before = ring(backend)
    mine, table = numpy.full(2, -1), numpy.empty(2 * n, int)
    receive = backend.irecv(mine, before, tag=32766)
    backend.all_to_all(numpy.full(2 * n, backend.rank), table)
    backend.send(numpy.full(2, 77), after, tag=32766)
    receive.wait()
    assert mine.tolist() == [77, 77] and table.tolist() == [r for r in range(n) for _ in range(2)]


# ---- non-blocking collectives --------------------------------------------------------------------


@promise(*DTYPES)
def non_blocking_collectives_do_what_the_blocking_ones_do(backend, dtype):
    n, rank = backend.world_size, backend.rank
    reduced, gathered, mine = (
        values(rank, 20, dtype),
        numpy.empty((n, 10), dtype),
        numpy.empty(10, dtype),
    )
    handles = [
        backend.iall_reduce(reduced),
        backend.iall_gather(values(rank, 10, dtype), gathered),
        backend.ireduce_scatter(values(rank, 10 * n, dtype), mine),
    ]
    for handle in reversed(handles):
        handle.wait()
    numpy.testing.assert_array_equal(
        reduced, everyone(backend, 20, dtype).sum(axis=0).astype(dtype)
    )
    numpy.testing.assert_array_equal(gathered, everyone(backend, 10, dtype))
    total = everyone(backend, 10 * n, dtype).sum(axis=0).astype(dtype).reshape(n, 10)
    numpy.testing.assert_array_equal(mine, total[rank])


@promise()
def non_blocking_collectives_take_uneven_counts_views_and_averages(backend):
    n, rank, counts = backend.world_size, backend.rank, uneven(backend)
    whole, mine, mean = (
        numpy.full(sum(counts), -1.0),
        numpy.empty(counts[rank]),
        values(rank, 10, float),
    )
    own = own_slice(whole, counts, rank)
    own[...] = rank
    handles = [
        backend.iall_gather(own, whole, counts),
        backend.iall_reduce(mean, AVERAGE),
        backend.ireduce_scatter(values(rank, sum(counts), float), mine, counts, AVERAGE),
    ]
    for handle in handles:
        handle.wait()
    numpy.testing.assert_array_equal(whole, numpy.repeat(numpy.arange(n), counts))
    numpy.testing.assert_array_equal(mean, everyone(backend, 10, float).sum(axis=0) / n)
    numpy.testing.assert_array_equal(
        mine, own_slice(everyone(backend, sum(counts), float).sum(axis=0) / n, counts, rank)
    )


@promise()
def a_handle_becomes_complete_by_test_alone_and_scales_once(backend):
    array = values(backend.rank, 10, float)
    handle = backend.iall_reduce(array, AVERAGE)
    while not handle.test():
        pass
    handle.wait()
    assert handle.test()
    numpy.testing.assert_array_equal(
        array, everyone(backend, 10, float).sum(axis=0) / backend.world_size
    )


# ---- groups --------------------------------------------------------------------------------------


@promise()
def split_makes_groups_of_equal_color_ordered_by_key(backend):
    n, rank = backend.world_size, backend.rank
    group = backend.split(rank % 2, key=-rank)
    members = [r for r in reversed(range(n)) if r % 2 == rank % 2]
    assert type(group) is type(backend) and isinstance(group, CommunicationBackend)
    assert (group.rank, group.world_size) == (members.index(rank), len(members))
    assert [backend.world_ranks[r] for r in members] == list(group.world_ranks)
    total = numpy.array([rank])
    group.all_reduce(total)
    assert total[0] == sum(members)
    group.close()


@promise()
def color_none_stays_out_and_a_group_splits_again(backend):
    group = backend.split(None if backend.rank == 0 else 3)
    assert (group is None) == (backend.rank == 0)
    if group is not None:
        alone = group.split(group.rank)
        assert alone.world_size == 1 and alone.world_ranks == (backend.world_ranks[backend.rank],)
        assert alone.group_key != group.group_key != backend.group_key
        alone.close()
        group.close()


@promise()
def a_closed_group_refuses_verbs_and_the_parent_lives_on(backend):
    group = backend.split(0)
    group.close()
    group.close()
    assert not group.is_initialized
    with pytest.raises(CommunicationError, match="barrier.*initialize"):
        group.barrier()
    backend.barrier()


# ---- objects -------------------------------------------------------------------------------------


@promise()
def objects_arrive_equal_and_are_copies(backend):
    mine = {"rank": backend.rank, "list": [1, None, "x" * backend.rank]}
    everything = [{"rank": r, "list": [1, None, "x" * r]} for r in range(backend.world_size)]
    for root in range(backend.world_size):
        assert backend.broadcast_object(mine, root) == everything[root]
        assert backend.gather_object(mine, root) == (everything if backend.rank == root else None)
    received = backend.all_gather_object(mine)
    assert received == everything and received[backend.rank] is not mine


@promise()
def an_object_that_cannot_be_pickled_is_an_error_on_all_ranks(backend):
    last = backend.world_size - 1
    mine = (lambda: 0) if backend.rank == last else 0
    expected = (
        (AttributeError, TypeError, ValueError, Exception) if backend.rank == last else PeerError
    )
    for verb in (
        backend.all_gather_object,
        backend.gather_object,
        partial(backend.broadcast_object, root=last),
    ):
        with pytest.raises(expected):
            verb(mine)
    backend.barrier()


# ---- wrong arguments -----------------------------------------------------------------------------


@promise()
def wrong_arguments_are_value_errors_before_anything_is_sent(backend):
    n = backend.world_size
    a, b, strided, frozen = numpy.zeros(n), numpy.zeros(n), numpy.zeros((3, 2)).T, numpy.zeros(n)
    frozen.flags.writeable = False
    wrong = {
        "root": lambda: backend.broadcast(a, n),
        "rank of this group": lambda: backend.gather(a, None, -1),
        "destination": lambda: backend.send(a, n),
        "source 99": lambda: backend.irecv(a, 99),
        "source is": lambda: backend.receive(a, "0"),
        "tag -1": lambda: backend.isend(a, 0, -1),
        "tag 32767": lambda: backend.irecv(a, 0, 32767),
        "contiguous": lambda: backend.all_reduce(strided),
        "read-only": lambda: backend.all_reduce(frozen),
        "NumPy or GPU": lambda: backend.all_reduce([1.0]),
        "Python objects": lambda: backend.broadcast(numpy.array([{}])),
        "add up": lambda: backend.all_gather(a[:1], b, [2] * n),
        "one per rank": lambda: backend.all_gather(a, b, [1] * (n + 1)),
        ">= 0": lambda: backend.all_to_all(a, b, [-1] * n),
        "elements, but counts": lambda: backend.all_gather(a[:0], b),
        "must be equal": lambda: backend.all_gather(a[:1], numpy.zeros(n, "f4")),
        "overlap": lambda: backend.reduce_scatter(a, a[:1]),
        "outside the array": lambda: backend.all_to_all(a, b, [1] * n, [1] * n, [n] * n),
        "displacements without": lambda: backend.all_to_all(a, b, None, None, [0] * n),
        "average of int": lambda: backend.all_reduce(numpy.zeros(1, int), AVERAGE),
        "ReductionOperation": lambda: backend.all_reduce(a, "plus"),
        "cannot be reduced": lambda: backend.all_reduce(a > 0),
        "color": lambda: backend.split(-2),
    }
    for pattern, call in wrong.items():
        with pytest.raises(ValueError, match=pattern):
            call()
    backend.barrier()


@promise()
def sizes_that_cannot_be_cut_equally_need_counts(backend):
    if backend.world_size > 1:
        with pytest.raises(ValueError, match="equal parts; give counts"):
            backend.reduce_scatter(numpy.zeros(2 * backend.world_size + 1), numpy.zeros(2))
        with pytest.raises(ValueError, match="own slice"):
            whole = numpy.zeros(3 * backend.world_size)
            wrong = 3 * ((backend.rank + 1) % backend.world_size)
            backend.all_gather(whole[wrong : wrong + 3], whole)
    backend.barrier()


# ---- traffic -------------------------------------------------------------------------------------


@promise()
def traffic_counts_what_this_rank_sends_by_the_ring_formulas(backend):
    n, rank, after = backend.world_size, backend.rank, (backend.rank + 1) % backend.world_size
    backend.traffic.reset()
    whole, mine = numpy.zeros(10 * n, "float32"), numpy.zeros(10, "float32")
    backend.all_reduce(whole)
    backend.all_reduce(whole.astype("float16"))  # travels as float32
    backend.all_gather(mine, whole)
    backend.reduce_scatter(whole, mine)
    backend.broadcast(whole)
    backend.scatter(whole, mine)
    backend.gather(mine, whole)
    backend.all_to_all(whole, numpy.empty_like(whole))
    handle = backend.irecv(mine, (rank - 1) % n)
    backend.send(whole[:10], after)
    handle.wait()
    others = 40 * (n - 1)
    expected = {
        "all_reduce": 4 * others,
        "all_gather": others,
        "reduce_scatter": others,
        "all_to_all": others,
        "broadcast": n * others if rank == 0 else 0,
        "scatter": others if rank == 0 else 0,
        "gather": 0 if rank == 0 else 40,
        "send": 40 if n > 1 else 0,
    }
    assert backend.traffic.by_verb == expected
    assert (
        backend.traffic.bytes_sent == sum(expected.values())
        and backend.traffic.calls["all_reduce"] == 2
    )
    backend.traffic.reset()
    assert backend.traffic.bytes_sent == 0


# ---- sums in a fixed order -----------------------------------------------------------------------


def tree(arrays):
    """The definition: neighbors first, level by level, an odd one carried up."""
    arrays = list(arrays)
    while len(arrays) > 1:
        pairs = [a + b for a, b in zip(arrays[::2], arrays[1::2])]
        arrays = pairs + arrays[2 * len(pairs) :]
    return arrays[0]


ROUGH_PERIOD = 10_007


def rough(rank, size, dtype):
    """Values whose sum depends on the order in which they are added.

    Many of them repeat: drawing them took longer than adding them. What is added or written at
    another place shows, as the period is a prime, and no window of memory.
    """
    drawn = numpy.random.default_rng(rank).standard_normal(min(size, ROUGH_PERIOD))
    return numpy.resize((drawn * 10.0 ** (rank % 4)).astype(dtype), size)


@promise("float32", "float64", "int32")
def ordered_reductions_have_the_bits_of_the_tree_over_ranks(backend, dtype):
    n, rank = backend.world_size, backend.rank
    for scratch_elements in (1, 3 * n, 1 << 20):
        buffer = rough(rank, 13 * n, dtype)
        total, before, out = (
            tree([rough(r, 13 * n, dtype) for r in range(n)]),
            buffer.copy(),
            numpy.empty(13, dtype),
        )
        ordered_reduce_scatter(backend, buffer, out, scratch_elements=scratch_elements)
        assert (
            out.tobytes() == total[13 * rank : 13 * rank + 13].tobytes()
            and buffer.tobytes() == before.tobytes()
        )
        ordered_reduce_scatter(
            backend, buffer, buffer[13 * rank : 13 * rank + 13], scratch_elements=scratch_elements
        )
        assert buffer[13 * rank : 13 * rank + 13].tobytes() == out.tobytes()
        for length in (0, 1, 13, 13 * n + 1):
            buffer = rough(rank, length, dtype)
            ordered_all_reduce(backend, buffer, scratch_elements=scratch_elements)
            assert buffer.tobytes() == tree([rough(r, length, dtype) for r in range(n)]).tobytes()


@promise()
def ordered_reductions_sum_half_floats_as_float32(backend):
    buffer = rough(backend.rank, 11, "float16")
    ordered_all_reduce(backend, buffer)
    halves = [rough(r, 11, "float16").astype("float32") for r in range(backend.world_size)]
    assert buffer.tobytes() == tree(halves).astype("float16").tobytes()


@promise()
def ordered_sum_adds_a_few_numbers_as_a_tree(backend):
    total = ordered_sum(backend, rough(backend.rank, 3, "float64").tolist())
    assert (
        total.tobytes()
        == tree([rough(r, 3, "float64") for r in range(backend.world_size)]).tobytes()
    )


# ---- failure and mesh ----------------------------------------------------------------------------


@promise()
def an_error_of_one_rank_is_raised_on_all_by_collectively(backend):
    last = backend.world_size - 1

    @collectively(backend)
    def check():
        if backend.rank == last:
            raise KeyError("lost")
        return backend.rank

    with pytest.raises(KeyError if backend.rank == last else PeerError, match="lost") as caught:
        check()
    assert backend.rank == last or f"rank {last} failed: KeyError" in str(caught.value)
    with collectively(backend):
        pass


@promise()
def agree_is_true_everywhere_if_it_is_true_anywhere(backend):
    assert agree(backend, backend.rank == backend.world_size - 1)
    assert not agree(backend, False)


@promise()
def a_mesh_has_a_live_group_per_axis(backend):
    n, rank = backend.world_size, backend.rank
    with_pipeline = 2 if n % 2 == 0 else 1
    mesh = Mesh(backend, pipeline=with_pipeline)
    assert (mesh.rank, mesh.world) == (rank, backend)
    assert (mesh.size("pipeline"), mesh.size("data"), mesh.size("tensor")) == (
        with_pipeline,
        n // with_pipeline,
        1,
    )
    for axis in ("pipeline", "data", "tensor"):
        assert mesh.ranks(axis)[mesh.group(axis).rank] == rank
        assert mesh.group(axis).rank == getattr(mesh.coordinates, axis)
        assert mesh.group(axis).all_gather_object(rank) == mesh.ranks(axis)
    assert len(mesh.describe().splitlines()) == n + 2
    with pytest.raises(MeshError, match="'expert' is not an axis"):
        mesh.group("expert")
    mesh.close()


@promise()
def wrong_mesh_sizes_are_refused_on_all_ranks_alike(backend):
    with pytest.raises(MeshError, match="were started"):
        Mesh(backend, pipeline=backend.world_size + 1, data=1)
    if backend.world_size > 1:
        with pytest.raises((MeshError, PeerError), match="rank"):  # not the same sizes on all ranks
            Mesh(backend, pipeline=1 if backend.rank == 0 else backend.world_size)
    backend.barrier()


@promise()
def exchange_within_returns_the_notes_of_all_ranks(backend):
    assert backend.exchange_within(backend.rank, 10) == list(range(backend.world_size))
    assert backend.exchange_within(None, None) == [None] * backend.world_size
