"""What every way of GPU arrays has to do, compared with the same on the host; for ranks that are
threads and for MPI.
"""

from contextlib import contextmanager

import numpy
import pytest
from stand_in import pretended_gpu

from shardkit import ReductionOperation
from shardkit.testing.array import registry
from shardkit.testing.comm import Staging, ordered_all_reduce, ordered_reduce_scatter

SUM, PRODUCT, MIN, MAX, AVERAGE = ReductionOperation
SIZES = (0, 7, 2500)


@pytest.fixture(autouse=True)
def plain_twins(monkeypatch):
    """On the stand-in the kernels of NumPy add: for modules that import this."""
    monkeypatch.setattr(registry, "is_cupy_array", lambda x: False)


@contextmanager
def gpu_group(backend, window_bytes=4096, **machine):
    """A group of all ranks of an MPI backend whose GPU arrays are the stand-in's: (group, cupy, the
    stand-in's machine).
    """
    with pretended_gpu(**machine) as book:
        import cupy

        group = backend.split(0)
        group.staging = Staging(window_bytes=window_bytes)
        group.messages.shares_cores = True  # other tests may run beside
        group.messages.mpi = CheckedMPI(group.messages.mpi, book)
        try:
            yield group, cupy, book
        finally:
            group.use_gpu_transport(None)
            group.close()


class CheckedMPI:
    """MPI that knows no streams: GPU memory that it gets must have been waited for."""

    def __init__(self, mpi, machine):
        self._mpi, self._machine = mpi, machine
        self.buffer = self  # of which fromaddress and allocate are used

    def __getattr__(self, name):
        return getattr(self._mpi, name)

    def fromaddress(self, address, num_bytes):
        self._machine.check_host_has_waited(address, num_bytes, "MPI")
        return self._mpi.buffer.fromaddress(address, num_bytes)

    def allocate(self, num_bytes):
        return self._mpi.buffer.allocate(num_bytes)


def all_verbs(backend, array, empty) -> list[list]:
    """The results of the verbs on small integers, whose sums are right in any order. Collective."""
    n, rank = backend.world_size, backend.rank
    counts = [7 * r for r in range(n)]
    whole = array(numpy.arange(sum(counts), dtype="float32") % 50 + rank)
    slices = array(numpy.arange(10 * n, dtype="float32") % 50 + rank)
    total, lowest, product = slices.copy(), slices.copy(), slices.copy()
    gathered, uneven, mine, my_part = (
        empty(size, "float32") for size in (10 * n, sum(counts), 10, counts[rank])
    )
    swapped, sent, passed, collected = (
        empty(n * 3, "float32"),
        slices.copy(),
        empty(10 * n, "float32"),
        empty(10 * n, "float32"),
    )
    start = sum(counts[:rank])
    backend.all_reduce(total)
    backend.all_reduce(lowest, MIN)
    backend.all_reduce(product, PRODUCT)
    backend.all_gather(slices[:10], gathered)
    backend.all_gather(whole[start : start + counts[rank]], uneven, counts)
    backend.reduce_scatter(slices, mine)
    backend.reduce_scatter(whole, my_part, counts, AVERAGE)
    backend.all_to_all(slices, swapped, [3] * n, [3] * n, [4 * r for r in range(n)])
    backend.broadcast(sent, n - 1)
    backend.gather(slices[:10], collected, n - 1)
    handles = [backend.iall_gather(slices[:10], gathered), backend.iall_reduce(total, MAX)]
    handles += [backend.irecv(passed, (rank - 1) % n, 3), backend.isend(slices, (rank + 1) % n, 3)]
    for handle in handles:
        handle.wait()
    results = total, lowest, product, gathered, uneven, mine, my_part, swapped, sent, passed
    return [x.tolist() for x in results + ((collected,) if rank == n - 1 else ())]


def values(rank, size, dtype="float32"):
    """Floats whose sum depends on the order, in every place."""
    random = numpy.random.default_rng([rank, size])
    return (random.standard_normal(size) * 10.0 ** random.integers(-3, 4, size)).astype(dtype)


def ordered_sums(backend, array, empty, dtype) -> list:
    """Sums in the order of the tree, of arrays of several sizes. Collective."""
    sums = []
    for size in SIZES:
        total, slices = (
            array(values(backend.rank, size, dtype)),
            array(values(backend.rank, size * backend.world_size, dtype)),
        )
        own = empty(size, dtype)
        ordered_all_reduce(backend, total)
        ordered_reduce_scatter(backend, slices, own)
        sums += [total, own]
    return sums


def bits(arrays) -> list[bytes]:
    """Of NumPy's or CuPy's arrays."""
    return [(x if isinstance(x, numpy.ndarray) else x.get()).tobytes() for x in arrays]
