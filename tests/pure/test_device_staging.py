"""GPU arrays travel through host scratch: tested without a GPU, on fakes whose "GPU addresses" are ordinary memory."""
import ctypes

import numpy
import pytest

from shardkit.comm import ReductionOperation, ordered_sum, run_ranks
from shardkit.comm.staging import Staging

WINDOW_BYTES = 32


class FakeDeviceArray:
    """Speaks __cuda_array_interface__ and nothing else; `memory` stands for what is on the GPU."""

    def __init__(self, memory, stream=7, version=3):
        self.memory, self._stream, self._version = memory, stream, version

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.memory.shape, "typestr": self.memory.dtype.str, "version": self._version, "stream": self._stream,
                "data": (self.memory.ctypes.data, not self.memory.flags.writeable),
                "strides": None if self.memory.flags.c_contiguous else self.memory.strides}


class FakeCopies:
    """Stands for CudaCopies; remembers in which order it was asked for what."""

    def __init__(self):
        self.calls = []

    def synchronize(self, stream):
        self.calls.append(("synchronize", stream))

    def to_host(self, address, array):
        self.calls.append(("to_host", array.nbytes))
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def to_device(self, array, address):
        self.calls.append(("to_device", array.nbytes))
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def pinned(self, size, dtype):
        self.calls.append(("pinned", size * dtype.itemsize))
        return numpy.empty(size, dtype)


def on_fake_device(world_size, work):
    """work(backend, copies) on ranks whose staging is fake; the results in rank order."""
    def run(backend):
        copies = FakeCopies()
        backend.staging = Staging(window_bytes=WINDOW_BYTES, copies=copies)
        return work(backend, copies)
    return run_ranks(world_size, run, timeout=20)


def device(array, dtype="float32"):
    return FakeDeviceArray(numpy.array(array, dtype))


def empty(size, dtype="float32"):
    return FakeDeviceArray(numpy.full(size, -1, dtype))


def test_all_reduce_goes_window_by_window_after_the_stream_is_synchronized():
    def work(backend, copies):
        array = device(numpy.arange(20) + backend.rank)
        backend.all_reduce(array)
        return array.memory.tolist(), copies.calls
    for values, calls in on_fake_device(3, work):
        assert values == [3 * i + 3 for i in range(20)]
        assert calls[0] == ("synchronize", 7)
        assert [call for call in calls if call[0] == "to_host"] == [("to_host", 32), ("to_host", 32), ("to_host", 16)]
        assert [call for call in calls if call[0] == "pinned"] == [("pinned", 32)]


@pytest.mark.parametrize("stream, version, expected", [(7, 3, [7]), (None, 3, []), (None, 2, [None])])
def test_a_stream_is_waited_for_as_the_interface_asks(stream, version, expected):
    def work(backend, copies):
        backend.broadcast(FakeDeviceArray(numpy.zeros(3), stream, version))
        return [argument for call, argument in copies.calls if call == "synchronize"]
    assert on_fake_device(1, work) == [expected]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_verb_moves_device_arrays_like_host_arrays(num_ranks):
    counts = [7 * rank for rank in range(num_ranks)]

    def work(backend, copies):
        n, rank = backend.world_size, backend.rank
        whole = numpy.arange(sum(counts), dtype="float32") + 100 * rank
        starts = [sum(counts[:r]) for r in range(n)]
        own = whole[starts[rank]:starts[rank] + counts[rank]]
        results = []
        for make, make_empty in ((numpy.array, lambda size: numpy.full(size, -1, "float32")), (device, empty)):
            gathered, reduced, scattered = make_empty(sum(counts)), make_empty(counts[rank]), make_empty(counts[rank])
            collected, exchanged, passed = make_empty(sum(counts)), make_empty(n * 9), make_empty(9)
            backend.all_gather(make(own), gathered, counts)
            backend.reduce_scatter(make(whole), reduced, counts)
            backend.scatter(make(whole) if rank == n - 1 else None, scattered, n - 1, counts)
            backend.gather(make(own), collected if rank == 0 else None, 0, counts)
            backend.all_to_all(make(numpy.arange(n * 20, dtype="float32") + rank), exchanged, [9] * n, [9] * n,
                               [20 * r + 3 for r in range(n)])
            handle = backend.irecv(passed, (rank - 1) % n)
            backend.isend(make(numpy.full(9, rank, "float32")), (rank + 1) % n).wait()
            handle.wait()
            results.append([getattr(array, "memory", array).tolist()
                            for array in (gathered, reduced, scattered, collected, exchanged, passed)])
        return results
    for host, on_device in on_fake_device(num_ranks, work):
        assert host == on_device


def test_uneven_all_to_all_goes_through_the_same_number_of_windows_on_all_ranks():
    def work(backend, copies):
        n, rank = backend.world_size, backend.rank
        send_counts, receive_counts = [30 if rank == 0 else 1] * n, [30] + [1] * (n - 1)
        receive = empty(sum(receive_counts))
        backend.all_to_all(device(numpy.full(sum(send_counts), rank)), receive, send_counts, receive_counts)
        return receive.memory.tolist() == numpy.repeat(numpy.arange(n), receive_counts).tolist()
    assert on_fake_device(3, work) == [True] * 3


def test_half_floats_on_the_device_are_summed_as_float32():
    def work(backend, copies):
        array = device([2048.0, 1.0] * 10 if backend.rank == 0 else [1.0, 0.0] * 10, "float16")
        backend.all_reduce(array, ReductionOperation.AVERAGE)
        handle = backend.iall_reduce(array)
        handle.wait()
        return array.memory.tolist()
    assert on_fake_device(3, work) == [[2050.0, 1.0] * 10] * 3       # (2048 + 1 + 1) / 3 * 3, in float16: 683.5 * 3


def test_non_blocking_verbs_bring_their_result_back_to_the_device():
    def work(backend, copies):
        n, rank = backend.world_size, backend.rank
        reduced, gathered, mine = device([rank] * 20), empty(n * 20), empty(5)
        handles = [backend.iall_reduce(reduced), backend.iall_gather(device([rank] * 20), gathered),
                   backend.ireduce_scatter(device([rank] * 5 * n), mine, op=ReductionOperation.AVERAGE)]
        for handle in handles:
            handle.wait()
        return reduced.memory.tolist(), gathered.memory.tolist(), mine.memory.tolist()
    assert on_fake_device(2, work) == [([1.0] * 20, [0.0] * 20 + [1.0] * 20, [0.5] * 5)] * 2


def test_an_own_slice_on_the_device_is_gathered_in_place():
    def work(backend, copies):
        memory = numpy.full(20, backend.rank, "float32")
        own = FakeDeviceArray(memory[10 * backend.rank:10 * backend.rank + 10])
        backend.all_gather(own, FakeDeviceArray(memory))
        return memory.tolist()
    assert on_fake_device(2, work) == [[0.0] * 10 + [1.0] * 10] * 2


def test_a_device_array_that_is_not_contiguous_or_writable_is_a_value_error():
    def work(backend, copies):
        with pytest.raises(ValueError, match="on the GPU is not contiguous"):
            backend.all_reduce(FakeDeviceArray(numpy.zeros((3, 4)).T))
        frozen = numpy.zeros(3)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            backend.all_reduce(FakeDeviceArray(frozen))
        backend.broadcast(FakeDeviceArray(numpy.zeros(0)))
        return copies.calls
    assert ("to_host", 24) not in on_fake_device(1, work)[0]


def test_host_arrays_never_touch_the_copies():
    def work(backend, copies):
        backend.all_reduce(numpy.zeros(100, "float32"))
        ordered_sum(backend, [1.0, 2.0])
        return copies.calls
    assert on_fake_device(2, work) == [[], []]
