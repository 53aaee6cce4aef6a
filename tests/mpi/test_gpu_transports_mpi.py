"""GPU arrays between MPI ranks, on the stand-in for CuPy: MPI sees ordinary memory where it would
see a GPU's.
"""

import gc
import time
from math import inf

import numpy
import pytest
from gpu_verbs import all_verbs, bits, gpu_group, ordered_sums, plain_twins  # noqa: F401

from shardkit.testing.comm import collectively
from shardkit.testing.gpu import VERBS, MPITransport, Verdict, gpu_probe, open_gpu_mpi

pytestmark = pytest.mark.mpi


def test_staged_arrays_go_through_every_verb_as_host_arrays_do(backend):
    with collectively(backend), gpu_group(backend) as (group, cupy, machine):
        assert all_verbs(group, cupy.asarray, cupy.empty) == all_verbs(
            group, numpy.asarray, numpy.empty
        )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_staged_sums_have_the_bits_of_the_host(backend, dtype):
    with collectively(backend), gpu_group(backend) as (group, cupy, machine):
        on_host = ordered_sums(group, numpy.asarray, numpy.empty, dtype)
        assert bits(ordered_sums(group, cupy.asarray, cupy.empty, dtype)) == bits(on_host)


def test_an_mpi_that_takes_gpu_memory_gets_every_verb_and_the_host_no_bytes(backend, monkeypatch):
    monkeypatch.setattr(
        "shardkit.testing.gpu.gpu_mpi.MESSAGE_BYTES", 1000
    )  # so that arrays go in several messages
    with collectively(backend), gpu_group(backend) as (group, cupy, machine):
        group.use_gpu_transport(MPITransport(group, Verdict.everything()))
        assert all_verbs(group, cupy.asarray, cupy.empty) == all_verbs(
            group, numpy.asarray, numpy.empty
        )
        machine.transfers.clear()
        sums = [
            ordered_sums(group, cupy.asarray, cupy.empty, dtype)
            for dtype in ("float32", "float64", "float16")
        ]
        assert {transfer.kind for transfer in machine.transfers} == {
            "to device"
        }  # those of asarray
        for dtype, ours in zip(("float32", "float64", "float16"), sums):
            assert bits(ours) == bits(ordered_sums(group, numpy.asarray, numpy.empty, dtype))


def test_a_message_under_way_keeps_its_memory(backend):
    """The library knows only an address: memory that is let go meanwhile could be used again."""
    with collectively(backend), gpu_group(backend) as (group, cupy, machine):
        group.use_gpu_transport(MPITransport(group, Verdict.everything()))
        size = 4 << 20
        destination, source = ((group.rank + step) % group.world_size for step in (1, -1))
        received = cupy.empty(size, "int32")
        used = machine.used_bytes[0]
        arriving = group.irecv(received, source)
        leaving = group.isend(cupy.full(size, group.rank, "int32"), destination)
        assert machine.used_bytes[0] - used >= 4 * size
        leaving.wait()
        arriving.wait()
        del leaving
        deadline = time.monotonic() + 100
        while machine.used_bytes[0] != used and time.monotonic() < deadline:
            time.sleep(0.01)  # given back soon, and rarely not at once; who holds it is not known
            gc.collect()
        assert machine.used_bytes[0] == used and bool((received == source).all())


def test_beyond_what_the_probe_allows_arrays_are_staged(backend):
    limits = {"send": 0, "broadcast": 64, "all_gather": inf, "all_to_all": 64}
    with collectively(backend), gpu_group(backend) as (group, cupy, machine):
        group.use_gpu_transport(MPITransport(group, Verdict(tuple(limits.items()))))

        def staged_bytes(verb, *arrays):
            machine.transfers.clear()
            verb(*arrays)
            return sum(transfer.num_bytes for transfer in machine.transfers)

        small, large, whole = (
            cupy.zeros(16, "float32"),
            cupy.zeros(17, "float32"),
            cupy.zeros(17 * group.world_size, "float32"),
        )
        is_alone = group.world_size == 1
        assert (
            staged_bytes(group.broadcast, small)
            == 0
            == staged_bytes(group.all_gather, large, whole)
        )
        assert is_alone or staged_bytes(group.broadcast, large) == 68
        assert is_alone or staged_bytes(group.all_reduce, whole) == 2 * whole.nbytes
        if group.rank < 2 <= group.world_size:
            handle = group.irecv(cupy.zeros(16, "float32"), 1 - group.rank)
            assert staged_bytes(lambda: group.isend(small, 1 - group.rank).wait()) == 64
            handle.wait()


@pytest.mark.parametrize(
    "word, takes, reason",
    [
        ("no", False, "SHARDKIT_GPU_AWARE_MPI=no"),
        ("yes", True, ""),
        ("probe", False, 'no GPU: device "cuda" needs a GPU'),
    ],
)
def test_the_word_of_the_environment_or_of_the_probe_holds_for_all_ranks(
    backend, monkeypatch, word, takes, reason
):
    """The last rank has another word than the others."""
    said = []
    monkeypatch.setenv("SHARDKIT_GPU_AWARE_MPI", word)
    if backend.rank == backend.world_size - 1 and word == "no":
        monkeypatch.setenv("SHARDKIT_GPU_AWARE_MPI", "yes")
    monkeypatch.setattr(type(backend), "say", lambda self, text: said.append(text))
    gpu_probe._probed.cache_clear()  # of other numbers of GPUs
    with collectively(backend), gpu_group(backend, num_devices=0) as (group, cupy, machine):
        open_gpu_mpi(group, [group])
        if group.world_size > 1:
            assert (
                (group.gpu_transport is not None)
                == takes
                == (not said if group.rank == 0 else takes)
            )
            assert group.rank != 0 or takes or reason in said[0]


def test_the_verdict_of_all_is_the_least_of_each(backend, monkeypatch):
    mine = Verdict(
        tuple((verb, 100 * (1 + (place + backend.rank) % 4)) for place, verb in enumerate(VERBS)),
        f"{backend.rank}",
    )
    monkeypatch.setattr("shardkit.testing.gpu.gpu_probe._own_verdict", lambda world: mine)
    from shardkit.testing.gpu import agreed_verdict

    with collectively(backend):
        verdict = agreed_verdict(backend)
        everyones = range(backend.world_size)
        assert dict(verdict.limits) == {
            verb: min(100 * (1 + (place + rank) % 4) for rank in everyones)
            for place, verb in enumerate(VERBS)
        }
        assert verdict.reason == "0" and len(set(backend.all_gather_object(verdict))) == 1
