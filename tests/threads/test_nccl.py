"""The transport through NCCL, on stand-ins: ranks are threads with a pretended GPU each, and a
strict fake of NCCL between them.
"""

from collections import Counter
from dataclasses import replace
from math import log

import numpy
import pytest
from builders import small_gpt, token_batch
from gpu_verbs import AVERAGE, all_verbs, bits, ordered_sums, plain_twins, values  # noqa: F401
from hybrids import hybrid
from stand_in import fake_nccl, pretended_gpu

import shardkit as sk
from shardkit import CommunicationError, DeviceError, run_ranks
from shardkit.testing.array import kernels, to_host
from shardkit.testing.comm import ordered_reduce_scatter
from shardkit.testing.gpu import NodeSwaps, gpu_nccl, open_nccl

tree_sum = kernels.tree_sum
WIRE = {"float16": "float32"}  # in which they travel where they are added between nodes


def on_gpus(num_ranks, work, *, fixed_order=True, num_gpus=None):
    """work(backend, cupy) on ranks with NCCL; (results, what NCCL was asked for, copies between
    host and GPU).
    """

    def run(backend):
        import cupy

        open_nccl(backend, [backend], fixed_order=fixed_order)
        machine.transfers.clear()
        backend.barrier()
        return work(backend, cupy)

    with pretended_gpu(num_devices=num_gpus or num_ranks) as machine, fake_nccl.installed():
        results = run_ranks(num_ranks, run, timeout=500)
        return results, [name for _, name in fake_nccl.calls], list(machine.transfers)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.thorough(but=1)
def test_every_verb_moves_and_adds_as_on_the_host(num_ranks):
    results, calls, _ = on_gpus(
        num_ranks,
        lambda backend, cupy: (
            all_verbs(backend, cupy.asarray, cupy.empty),
            all_verbs(backend, numpy.asarray, numpy.empty),
        ),
    )
    for on_gpu, on_host in results:
        assert on_gpu == on_host
    assert {"allGather", "broadcast", "allReduce"} < set(calls)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.thorough(but=2)
def test_sums_of_floats_have_the_bits_of_the_tree_over_ranks_and_never_leave_the_gpu(
    num_ranks, dtype
):
    def work(backend, cupy):
        plain = cupy.asarray(values(backend.rank, 50, dtype))
        backend.all_reduce(plain)
        return [plain, *ordered_sums(backend, cupy.asarray, cupy.empty, dtype)]

    results, calls, transfers = on_gpus(num_ranks, work)
    on_host = run_ranks(
        num_ranks, lambda backend: ordered_sums(backend, numpy.asarray, numpy.empty, dtype)
    )
    assert [bits(sums[1:]) for sums in results] == [bits(sums) for sums in on_host]
    assert len(set(bits(sums[0] for sums in results))) == 1
    assert not {"allReduce", "reduceScatter", "reduce"} & set(calls)
    assert {transfer.kind for transfer in transfers} == {"to device"}  # those of asarray, above


@pytest.mark.thorough
def test_only_without_a_fixed_order_nccl_adds_and_half_floats_never_in_its_way():
    def work(backend, cupy):
        array, half = (
            cupy.asarray(values(backend.rank, 50)),
            cupy.asarray(values(backend.rank, 50, "float16")),
        )
        own, uneven = cupy.empty(25, "float32"), cupy.empty(10 + 30 * backend.rank, "float32")
        backend.reduce_scatter(array, own)
        backend.reduce_scatter(array, uneven, [10, 40])
        backend.all_reduce(array)
        backend.all_reduce(half)
        are_trees = backend.adds_in_tree_order(array), backend.adds_in_tree_order(half)
        return array.get(), own.get(), uneven.get(), half.get(), are_trees

    results, calls, _ = on_gpus(2, work, fixed_order=False)
    total = values(0, 50) + values(1, 50)
    half = (values(0, 50, "float16").astype("float32") + values(1, 50, "float16")).astype("float16")
    for rank, (array, own, uneven, halves, are_trees) in enumerate(results):
        assert (
            array.tobytes() == total.tobytes()
            and halves.tobytes() == half.tobytes()
            and are_trees == (False, True)
        )
        assert own.tobytes() == total[25 * rank : 25 * rank + 25].tobytes()
        assert uneven.tobytes() == total[10 * rank : 10 + 40 * rank].tobytes()
    assert {"allReduce", "reduceScatter", "reduce"} < set(calls)


def between_nodes(monkeypatch, num_ranks, per_node, make):
    """Results of make(backend, cupy) on nodes of so many ranks, and the bytes that left a node."""
    seat_of = gpu_nccl.gpu_seat

    def seat(local_rank):
        return replace(seat_of(local_rank), host=f"node {local_rank // per_node}")

    monkeypatch.setattr(gpu_nccl, "gpu_seat", seat)

    def work(backend, cupy):
        backend.barrier()
        fake_nccl.sent.clear()
        backend.barrier()
        return make(backend, cupy)

    results, _, _ = on_gpus(num_ranks, work)
    left = Counter()
    for rank, peer, num_bytes in fake_nccl.sent:
        if rank // per_node != peer // per_node:
            left[rank // per_node] += num_bytes
    return results, max(left.values(), default=0)


@pytest.mark.strength(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    "num_ranks, per_node",
    [(4, 2), (6, 2), (8, 4), (4, 4), (6, 3), (4, 1), (12, 4), (16, 2), (24, 1), (34, 2)],
)
@pytest.mark.thorough(but=3)
def test_sums_over_nodes_have_the_bits_of_the_tree_and_send_no_more_than_a_ring_between_them(
    monkeypatch, num_ranks, per_node, dtype
):
    size = 50 * num_ranks

    def summed(backend, cupy):
        whole = cupy.asarray(values(backend.rank, size, dtype))
        own = cupy.empty(size // num_ranks, dtype)
        backend.reduce_scatter(whole, own)
        return to_host(own)

    def everywhere(backend, cupy):
        whole = cupy.asarray(values(backend.rank, size + 3, dtype))
        backend.all_reduce(whole)
        uneven = cupy.asarray(values(backend.rank, size + 3, dtype))
        counts = [50 + (rank == 1) * 3 for rank in range(num_ranks)]
        own = cupy.empty(counts[backend.rank], dtype)
        backend.reduce_scatter(uneven, own, counts)
        whole_again = cupy.empty(size + 3, dtype)
        backend.all_gather(own, whole_again, counts)
        return to_host(whole), to_host(whole_again)

    arrays = [values(rank, size + 3, dtype) for rank in range(num_ranks)]
    wide = [array.astype("float32") if dtype == "float16" else array for array in arrays]
    total = tree_sum(wide).astype(dtype)
    for whole, again in between_nodes(monkeypatch, num_ranks, per_node, everywhere)[0]:
        assert whole.tobytes() == again.tobytes() == total.tobytes()
    results, left = between_nodes(monkeypatch, num_ranks, per_node, summed)
    short = [values(rank, size, dtype) for rank in range(num_ranks)]
    wide = [array.astype("float32") if dtype == "float16" else array for array in short]
    assert numpy.concatenate(results).tobytes() == tree_sum(wide).astype(dtype).tobytes()
    ring = size * numpy.dtype(WIRE.get(dtype, dtype)).itemsize * (num_ranks - 1) / num_ranks
    if per_node == num_ranks:
        assert left == 0
    elif per_node == 3:  # not a power of two: each rank sends to each
        assert left == 3 * (size // 2) * numpy.dtype(dtype).itemsize
    else:
        assert 0 < left <= 1.2 * ring


@pytest.mark.parametrize("num_ranks", [17, 24])
@pytest.mark.thorough(but=1)
def test_sums_of_many_go_in_rounds_of_a_few_messages(monkeypatch, num_ranks):
    """Sizes of several windows, of fewer elements than ranks, and of none."""
    monkeypatch.setattr("shardkit.testing.gpu.gpu_levels.SCRATCH_ELEMENTS", 1 << 11)

    def summed(backend, cupy):
        array = cupy.asarray(values(backend.rank, 130 * num_ranks))
        own = cupy.empty(130, "float32")
        backend.reduce_scatter(array, own)
        short = cupy.asarray(values(backend.rank, 5))
        backend.all_reduce(short)
        return to_host(own), to_host(short)

    results, _ = between_nodes(monkeypatch, num_ranks, 1, summed)
    total, short = (
        tree_sum([values(rank, size) for rank in range(num_ranks)]) for size in (130 * num_ranks, 5)
    )
    assert numpy.concatenate([own for own, _ in results]).tobytes() == total.tobytes()
    assert {each.tobytes() for _, each in results} == {short.tobytes()}


@pytest.mark.parametrize("per_node, fewest", [(1, 64), (8, 8)])
@pytest.mark.thorough(but=1)
def test_the_messages_of_sums_and_gathers_grow_with_the_logarithm_of_the_nodes(per_node, fewest):
    """One rank of 64 to 4,096; nobody answers. A gather ends with the slices of each node."""
    posts, gathers = [], []
    with pretended_gpu():
        import cupy

        for num_nodes in (fewest, 8 * fewest, 64 * fewest):
            size, sent = num_nodes * per_node, []
            hosts = [f"node {rank // per_node}" for rank in range(size)]
            swaps = NodeSwaps(0, size, hosts, lambda outgoing, _: sent.append(outgoing))
            swaps.add(cupy.zeros(size, "float32"), [1] * size, cupy.empty(1, "float32"))
            posts.append(sum(size > 0 for outgoing in sent for _, size in outgoing[1:]))
            whole = cupy.zeros(size, "float32")
            sent.clear()
            swaps.gather(whole[:1], whole, [1] * size)
            swapped = [sum(size > 0 for _, size in outgoing[1:]) for outgoing in sent]
            gathers.append(sum(swapped[: len(sent) - num_nodes * (per_node > 1)]))
    within = per_node - 1  # all that a node adds goes to its ranks at once
    wanted = [7 * round(log(fewest, 8) + times) for times in range(3)]
    assert posts == [within + far for far in wanted], posts
    assert gathers == wanted, gathers


def test_a_verb_waits_for_the_kernels_of_a_stream_that_is_not_the_default_one():
    def work(backend, cupy):
        with cupy.cuda.Stream(non_blocking=True):
            array = cupy.asarray(values(backend.rank, 50))
            array *= 2
            backend.all_reduce(array)
            return (array + 1).get()

    results, _, _ = on_gpus(2, work)
    for array in results:
        assert array.tobytes() == (2 * values(0, 50) + 2 * values(1, 50) + 1).tobytes()


def test_messages_between_two_ranks_are_staged_since_nccl_has_no_tags():
    def work(backend, cupy):
        received = [cupy.empty(4, "float32"), cupy.empty(4, "float32")]
        other = 1 - backend.rank
        handles = [
            backend.isend(cupy.full(4, 10 * backend.rank + tag, "float32"), other, tag)
            for tag in (0, 1)
        ]
        handles += [backend.irecv(received[tag], other, tag) for tag in (1, 0)]
        for handle in handles:
            handle.wait()
        return [array.tolist() for array in received]

    results, calls, _ = on_gpus(2, work)
    assert results == [[[10.0] * 4, [11.0] * 4], [[0.0] * 4, [1.0] * 4]] and not calls


def test_two_ranks_on_one_gpu_are_refused_on_all_ranks_by_name():
    refused = []

    def run(backend):
        with pytest.raises(
            DeviceError, match=r"ranks 0, 2 share GPU 0000:01:00.0 on \S+; start as many"
        ) as caught:
            open_nccl(backend, [backend], fixed_order=True)
        refused.append(str(caught.value))

    with pretended_gpu(num_devices=2), fake_nccl.installed():
        run_ranks(3, run, timeout=500)
    assert len(refused) == 3 and len(set(refused)) == 1


def test_without_nccl_or_without_a_gpu_all_ranks_hear_what_is_missing():
    def run(backend):
        with pytest.raises(DeviceError) as caught:
            open_nccl(backend, [backend], fixed_order=True)
        return str(caught.value)

    with pretended_gpu(num_devices=2):
        words = run_ranks(2, run, timeout=500)
    assert (
        len(set(words)) == 1
        and "rank 0: CuPy finds no NCCL" in words[0]
        and 'set gpu_transport to "staged"' in words[0]
    )
    with pretended_gpu(num_devices=0):
        assert "needs a GPU" in run_ranks(2, run, timeout=500)[1]


def test_an_error_of_nccl_names_the_verb():
    def work(backend, cupy):
        backend.use_gpu_transport(None)
        open_nccl(backend, [backend], fixed_order=True)
        backend.gpu_transport._communicator.destroy()
        with pytest.raises(
            CommunicationError,
            match="all_gather on group world: NCCL says: NCCL_ERROR_INVALID_ARGUMENT",
        ):
            backend.all_gather(cupy.zeros(2), cupy.zeros(4))

    on_gpus(2, work)


def test_a_group_of_one_rank_copies_on_the_gpu_and_not_through_the_host():
    def run(backend):
        import cupy

        own, whole, slices = cupy.arange(6.0), cupy.zeros(6), cupy.arange(6.0)
        before = len(machine.transfers)
        backend.all_gather(own, whole)
        backend.reduce_scatter(slices, own)
        ordered_reduce_scatter(backend, slices, slices)
        backend.all_reduce(whole, AVERAGE)
        backend.broadcast(whole)
        assert len(machine.transfers) == before
        return whole.tolist(), own.tolist(), slices.tolist()

    with pretended_gpu() as machine:
        assert run_ranks(1, run) == [([0.0, 1.0, 2.0, 3.0, 4.0, 5.0],) * 3]


def test_waiting_for_a_verb_holds_back_the_gpu_and_not_the_host():
    def work(backend, cupy):
        machine = cupy._machine
        own, whole = cupy.full(3, float(backend.rank)), cupy.empty(6)
        backend.barrier()
        machine.forget()
        handle = backend.iall_gather(own, whole)
        with pytest.raises(RuntimeError, match="has not waited"):
            whole + 1
        machine.mistakes.clear()
        handle.wait()
        doubled = whole * 2
        for verb in (backend.all_reduce, backend.broadcast):
            verb(whole)
        backend.reduce_scatter(whole, own)
        backend.all_to_all(whole, doubled)
        own += doubled[:3]
        backend.barrier()
        waits = list(machine.host_waits)
        backend.barrier()
        return waits, own.get()

    results, _, _ = on_gpus(2, work)
    assert [waits for waits, _ in results] == [[], []]


def test_the_host_waits_where_nobody_knows_which_stream_computes_an_array():
    class Foreign:
        """An array of a library whose interface names no stream."""

        def __init__(self, array):
            self.__cuda_array_interface__ = {
                **array.__cuda_array_interface__,
                "version": 2,
                "stream": None,
            }
            self.dtype, self._array = array.dtype, array

    def work(backend, cupy):
        array = cupy.full(4, backend.rank, "int64")
        cupy._machine.forget()
        backend.barrier()
        backend.all_reduce(Foreign(array))
        backend.barrier()
        waits = len(cupy._machine.host_waits)
        backend.barrier()
        return waits, array.tolist()

    results, _, _ = on_gpus(2, work)
    assert results == [(4, [1] * 4)] * 2  # each before it begins, and until its end


@pytest.mark.parametrize(
    "policy, clip",
    [("ddp", 1.0), ("zero1", 1.0), ("zero2", 1.0), ("fsdp", 1.0), ("ddp", None), ("fsdp", None)],
)
@pytest.mark.thorough
def test_a_step_waits_for_the_gpu_once_to_read_loss_and_norm(policy, clip):
    def on_rank(backend):
        model = hybrid(
            *(backend, (1, 2, 1)),
            policy=policy,
            device="cuda",
            model=small_gpt(layers=3),
            max_gradient_norm=clip,
            gpu_transport="nccl",
        )
        for step in range(2):
            backend.barrier()
            machine.forget()
            backend.barrier()
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 4)))
        backend.barrier()

    with pretended_gpu(num_devices=2) as machine, fake_nccl.installed():
        run_ranks(2, on_rank, timeout=500)
    of_twins = "vocabulary.py"  # of plain kernels, which ask the GPU
    waits = [place for place, _ in machine.host_waits if not place.startswith(of_twins)]
    assert len(waits) == 2, waits  # one of each rank
