"""The transport through blocks of GPU memory that ranks of a node open, on stand-ins: ranks are
threads that share a pretended GPU.
"""

import gc

import numpy
import pytest
from gpu_verbs import all_verbs, bits, ordered_sums, plain_twins  # noqa: F401
from stand_in import fake_ipc, pretended_gpu

from shardkit import run_ranks
from shardkit.testing.gpu import gpu_ipc, open_gpu_ipc


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Of three windows or more for most arrays; and no array is too small."""
    monkeypatch.setattr(gpu_ipc, "HALF_BYTES", 4096)
    monkeypatch.setattr(gpu_ipc, "SMALL_BYTES", 0)


def on_one_gpu(num_ranks, work, **trouble):
    """work(backend, cupy) on ranks of a node; (results, copies between host and GPU, what was
    said).
    """
    said = []

    def run(backend):
        import cupy

        backend.say = said.append
        open_gpu_ipc(backend, [backend])
        machine.transfers.clear()
        backend.barrier()
        result = work(backend, cupy)
        backend.use_gpu_transport(None)
        return result

    with pretended_gpu() as machine, fake_ipc.installed(**trouble) as opened:
        before = machine.used_bytes.get(0, 0)
        results = run_ranks(num_ranks, run, timeout=500)
        gc.collect()
        assert not opened and machine.used_bytes[0] <= before, "blocks were not given back"
        return results, list(machine.transfers), said


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.thorough(but=1)
def test_every_verb_moves_and_adds_as_on_the_host(num_ranks):
    results, _, _ = on_one_gpu(
        num_ranks,
        lambda backend, cupy: (
            all_verbs(backend, cupy.asarray, cupy.empty),
            all_verbs(backend, numpy.asarray, numpy.empty),
        ),
    )
    for on_gpu, on_host in results:
        assert on_gpu == on_host


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.thorough(but=2)
def test_sums_have_the_bits_of_the_tree_over_ranks_and_never_leave_the_gpu(num_ranks, dtype):
    def work(backend, cupy):
        sums = ordered_sums(backend, cupy.asarray, cupy.empty, dtype)
        kinds = {transfer.kind for transfer in machine_of(cupy).transfers}
        backend.barrier()
        return bits(sums), kinds

    results, _, said = on_one_gpu(num_ranks, work)
    on_host = run_ranks(
        num_ranks, lambda backend: bits(ordered_sums(backend, numpy.asarray, numpy.empty, dtype))
    )
    assert [sums for sums, _ in results] == on_host and not said
    assert {kind for _, kinds in results for kind in kinds} == {"to device"}  # those of asarray


def machine_of(cupy):
    return cupy._machine


@pytest.mark.thorough
def test_windows_of_large_arrays_alternate_between_the_halves_and_no_rank_overtakes_another():
    def work(backend, cupy):
        n, rank = backend.world_size, backend.rank
        size = 5000 * n
        for turn in range(4):
            whole, swapped = cupy.empty(size, "int32"), cupy.empty(size, "int32")
            sent = cupy.arange(size, dtype="int32") + rank + turn
            backend.all_gather(sent[:5000], whole)
            backend.all_to_all(sent, swapped)
            backend.broadcast(sent, 1)
            for r in range(n):
                numpy.testing.assert_array_equal(
                    whole[5000 * r : 5000 * r + 5000].get(), numpy.arange(5000) + r + turn
                )
                numpy.testing.assert_array_equal(
                    swapped[5000 * r : 5000 * r + 5000].get(),
                    numpy.arange(5000 * rank, 5000 * rank + 5000) + r + turn,
                )
            numpy.testing.assert_array_equal(sent.get(), numpy.arange(size) + 1 + turn)
        return backend.gpu_transport._num_windows

    results, _, _ = on_one_gpu(3, work)
    assert len(set(results)) == 1 and results[0] > 100


@pytest.mark.parametrize(
    "trouble, words",
    [
        ({"refuses": True}, "rank 0: the GPU memory of rank 1 cannot be opened: CUDA reports"),
        ({"wrong_memory": True}, "rank 0 reads something else in the GPU memory of rank 1"),
    ],
)
@pytest.mark.thorough(but=1)
def test_where_memory_cannot_be_opened_or_is_another_all_ranks_stage_their_arrays_and_one_says_why(
    trouble, words
):
    def work(backend, cupy):
        array = cupy.full(4, backend.rank + 1.0)
        backend.all_reduce(array)
        return array.tolist(), backend.gpu_transport

    results, transfers, said = on_one_gpu(2, work, **trouble)
    assert results == [([3.0] * 4, None)] * 2 and {"copy to host", "copy to device"} <= {
        transfer.kind for transfer in transfers
    }
    assert len(said) == 1 and words in said[0] and "staged" in said[0]


def test_without_a_gpu_arrays_are_staged_and_the_reason_is_said():
    said = []

    def run(backend):
        backend.say = said.append
        open_gpu_ipc(backend, [backend])
        return backend.gpu_transport

    with pretended_gpu(num_devices=0), fake_ipc.installed():
        assert run_ranks(2, run, timeout=500) == [None, None]
    assert len(said) == 1 and "needs a GPU" in said[0]


@pytest.mark.thorough
def test_scratch_is_not_written_while_the_kernels_that_add_may_still_read_it(monkeypatch):
    """On a GPU these run after the call that launched them; the stand-in's are done at once: so
    look at the order of calls.
    """
    monkeypatch.setattr("shardkit.testing.gpu.gpu_levels.SCRATCH_ELEMENTS", 100)
    order = []

    class Noted:
        def __init__(self, copies):
            self._copies = copies

        def __getattr__(self, name):
            if name in ("finish_kernels", "begin_within"):
                order.append(name)
            return getattr(self._copies, name)

    def work(backend, cupy):
        array = cupy.arange(1000, dtype="float32")
        if backend.rank == 0:
            backend.gpu_transport._copies = Noted(backend.gpu_transport._copies)
            nodes = backend.gpu_transport._nodes
            swap = nodes._swap
            nodes._swap = lambda *pieces: order.append("swap") or swap(*pieces)
        backend.all_reduce(array)
        return array.tolist()

    results, _, _ = on_one_gpu(2, work)
    swaps = [place for place, name in enumerate(order) if name == "swap"]
    assert results == [[2.0 * i for i in range(1000)]] * 2 and len(swaps) == 10
    assert (
        all(order[place + 1] == "finish_kernels" for place in swaps)
        and order[-1] == "finish_kernels"
    )
