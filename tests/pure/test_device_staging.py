"""GPU arrays travel through host scratch: tested without a GPU, on fakes whose "GPU addresses" are
ordinary memory.
"""

import ctypes

import numpy
import pytest

from shardkit import ReductionOperation, run_ranks
from shardkit.testing.comm import CompleteHandle, Staging, ordered_sum

WINDOW_BYTES = 32


class FakeDeviceArray:
    """Speaks __cuda_array_interface__ and nothing else; `memory` stands for what is on the GPU."""

    def __init__(self, memory, stream=7, version=3):
        self.memory, self._stream, self._version = memory, stream, version

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.memory.shape,
            "typestr": self.memory.dtype.str,
            "version": self._version,
            "stream": self._stream,
            "data": (self.memory.ctypes.data, not self.memory.flags.writeable),
            "strides": None if self.memory.flags.c_contiguous else self.memory.strides,
        }


class FakeCopies:
    """Stands for CudaCopies; remembers in which order it was asked for what. A copy is made as late
    as a GPU may make it: when its end is waited for.
    """

    def __init__(self):
        self.calls = []
        self._to_host, self._to_device, self._within = (
            FakeStream(self.calls, word) for word in ("loaded", "stored", "copied")
        )

    def synchronize(self, stream):
        self.calls.append(("synchronize", stream))

    def begin_to_host(self, address, array):
        self.calls.append(("to_host", array.nbytes))
        array.view(numpy.uint8)[...] = 0x7F
        self._to_host.put(array.ctypes.data, address, array.nbytes)

    def begin_to_device(self, array, address):
        self.calls.append(("to_device", array.nbytes))
        self._to_device.put(address, array.ctypes.data, array.nbytes)

    def copy_in_order(self, target, source, num_bytes, *ports):
        """Copy at once, as where no stream computes the arrays."""
        self.begin_within(target, source, num_bytes)
        self.copied().wait()
        return CompleteHandle()

    def begin_within(self, target, source, num_bytes):
        self.calls.append(("within", num_bytes))
        self._within.put(target, source, num_bytes)

    def loaded(self):
        return FakeEvent(self._to_host)

    def stored(self):
        return FakeEvent(self._to_device)

    def copied(self):
        return FakeEvent(self._within)

    def pinned(self, size, dtype):
        self.calls.append(("pinned", size * dtype.itemsize))
        return numpy.empty(size, dtype)

    @property
    def num_waiting(self):
        return sum(len(stream.waiting) for stream in (self._to_host, self._to_device, self._within))


class FakeStream:
    """Copies that were begun and not made, in order."""

    def __init__(self, calls, word):
        self.waiting, self.num_done, self._calls, self._word = [], 0, calls, word

    def put(self, target, source, num_bytes):
        self.waiting.append((target, source, num_bytes))

    def finish(self, upto):
        while self.num_done < upto:
            target, source, num_bytes = self.waiting.pop(0)
            ctypes.memmove(target, source, num_bytes)
            self.num_done += 1
            self._calls.append((self._word, num_bytes))


class FakeEvent:
    """A place in a stream."""

    def __init__(self, stream):
        self._stream, self._place = stream, stream.num_done + len(stream.waiting)

    def wait(self):
        self._stream.finish(self._place)


def on_fake_device(world_size, work):
    """work(backend, copies) on ranks whose staging is fake; the results in rank order."""

    def run(backend):
        copies = FakeCopies()
        backend.staging = Staging(window_bytes=WINDOW_BYTES, copies=copies)
        return work(backend, copies)

    return run_ranks(world_size, run, timeout=500)


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
        assert [call for call in calls if call[0] == "to_host"] == [
            ("to_host", 32),
            ("to_host", 32),
            ("to_host", 16),
        ]
        assert [call for call in calls if call[0] == "pinned"] == [
            ("pinned", 32),
            ("pinned", 32),
            ("pinned", 16),
        ]


def messages_noted(backend, verb, calls):
    """Let the backend's verb note in `calls` when it begins and ends."""
    run = backend.channel.run

    def noted(name, *arguments):
        calls.extend([("begin message", None)] * (name == verb))
        run(name, *arguments)
        calls.extend([("end message", None)] * (name == verb))

    backend.channel.run = noted


def places(calls, word):
    return [place for place, call in enumerate(calls) if call[0] == word]


def test_the_next_window_is_loaded_and_the_last_one_stored_while_one_is_in_its_message():
    def work(backend, copies):
        messages_noted(backend, "all_reduce", copies.calls)
        array = device(numpy.arange(40) + backend.rank)
        backend.all_reduce(array)
        return array.memory.tolist(), copies.calls, copies.num_waiting

    for values, calls, num_waiting in on_fake_device(2, work):
        begun, ended = places(calls, "begin message"), places(calls, "end message")
        loads, stores, stored = (
            places(calls, "to_host"),
            places(calls, "to_device"),
            places(calls, "stored"),
        )
        assert values == [2 * i + 1 for i in range(40)] and num_waiting == 0 and len(begun) == 5
        assert all(
            loads[k + 1] < begun[k] for k in range(4)
        )  # begun before the message of the window before
        assert all(
            stores[k] < begun[k + 1] < stored[k] for k in range(4)
        )  # not waited for before the next message
        assert all(
            loads[k + 3] < ended[k + 2] < begun[k + 3] for k in range(2)
        )  # and no further ahead than scratch allows


def test_an_exchange_overlaps_its_copies_too_and_never_uses_scratch_that_is_still_stored():
    def work(backend, copies):
        messages_noted(backend, "all_to_all", copies.calls)
        receive = empty(80)
        backend.all_to_all(device(numpy.arange(80) + 100 * backend.rank), receive)
        return receive.memory.tolist(), copies.calls, copies.num_waiting

    for rank, (values, calls, num_waiting) in enumerate(on_fake_device(2, work)):
        begun, loads, stored = (
            places(calls, "begin message"),
            places(calls, "to_host"),
            places(calls, "stored"),
        )
        assert (
            values == [*range(40 * rank, 40 * rank + 40), *range(40 * rank + 100, 40 * rank + 140)]
            and num_waiting == 0
        )
        assert len(begun) == 10 and all(loads[2 * k + 2] < begun[k] for k in range(9))
        assert all(begun[k + 1] < stored[2 * k] for k in range(9))
        assert sum(size for call, size in calls if call == "pinned") == 4 * WINDOW_BYTES


def test_a_message_that_fails_leaves_no_copy_under_way():
    def work(backend, copies):
        backend.channel.run = lambda verb, array, op: (_ for _ in ()).throw(RuntimeError("network"))
        with pytest.raises(RuntimeError, match="network"):
            backend.all_reduce(device(numpy.arange(40)))
        return copies.num_waiting

    assert on_fake_device(2, work) == [0, 0]


def test_what_a_verb_does_not_read_or_change_is_not_copied():
    def work(backend, copies):
        backend.broadcast(device(numpy.arange(4)), 0)
        if backend.rank == 0:
            backend.send(device(numpy.arange(4)), 1)
        else:
            backend.receive(empty(4), 0)
        return [call for call, _ in copies.calls if call.startswith("to_")]

    assert on_fake_device(2, work) == [["to_host", "to_host"], ["to_device", "to_device"]]


@pytest.mark.parametrize(
    "stream, version, expected", [(7, 3, [7]), (None, 3, []), (None, 2, ["all"])]
)
def test_a_stream_is_waited_for_as_the_interface_asks(stream, version, expected):
    def work(backend, copies):
        backend.broadcast(FakeDeviceArray(numpy.zeros(3), stream, version))
        return [argument for call, argument in copies.calls if call == "synchronize"]

    assert on_fake_device(2, work) == [expected] * 2


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_verb_moves_device_arrays_like_host_arrays(num_ranks):
    counts = [7 * rank for rank in range(num_ranks)]

    def work(backend, copies):
        n, rank = backend.world_size, backend.rank
        whole = numpy.arange(sum(counts), dtype="float32") + 100 * rank
        starts = [sum(counts[:r]) for r in range(n)]
        own = whole[starts[rank] : starts[rank] + counts[rank]]
        results = []
        for make, make_empty in (
            (numpy.array, lambda size: numpy.full(size, -1, "float32")),
            (device, empty),
        ):
            gathered, reduced, scattered = (
                make_empty(sum(counts)),
                make_empty(counts[rank]),
                make_empty(counts[rank]),
            )
            collected, exchanged, passed = make_empty(sum(counts)), make_empty(n * 9), make_empty(9)
            backend.all_gather(make(own), gathered, counts)
            backend.reduce_scatter(make(whole), reduced, counts)
            backend.scatter(make(whole) if rank == n - 1 else None, scattered, n - 1, counts)
            backend.gather(make(own), collected if rank == 0 else None, 0, counts)
            backend.all_to_all(
                make(numpy.arange(n * 20, dtype="float32") + rank),
                exchanged,
                [9] * n,
                [9] * n,
                [20 * r + 3 for r in range(n)],
            )
            handle = backend.irecv(passed, (rank - 1) % n)
            backend.isend(make(numpy.full(9, rank, "float32")), (rank + 1) % n).wait()
            handle.wait()
            results.append(
                [
                    getattr(array, "memory", array).tolist()
                    for array in (gathered, reduced, scattered, collected, exchanged, passed)
                ]
            )
        return results

    for host, on_device in on_fake_device(num_ranks, work):
        assert host == on_device


def test_uneven_all_to_all_goes_through_the_same_number_of_windows_on_all_ranks():
    def work(backend, copies):
        n, rank = backend.world_size, backend.rank
        send_counts, receive_counts = [30 if rank == 0 else 1] * n, [30] + [1] * (n - 1)
        receive = empty(sum(receive_counts))
        backend.all_to_all(
            device(numpy.full(sum(send_counts), rank)), receive, send_counts, receive_counts
        )
        return receive.memory.tolist() == numpy.repeat(numpy.arange(n), receive_counts).tolist()

    assert on_fake_device(3, work) == [True] * 3


def test_half_floats_on_the_device_are_summed_as_float32():
    def work(backend, copies):
        array = device([2048.0, 1.0] * 10 if backend.rank == 0 else [1.0, 0.0] * 10, "float16")
        backend.all_reduce(array, ReductionOperation.AVERAGE)
        handle = backend.iall_reduce(array)
        handle.wait()
        return array.memory.tolist()

    assert (
        on_fake_device(3, work) == [[2050.0, 1.0] * 10] * 3
    )  # (2048 + 1 + 1) / 3 * 3, in float16: 683.5 * 3


def test_non_blocking_verbs_bring_their_result_back_to_the_device():
    def work(backend, copies):
        n, rank = backend.world_size, backend.rank
        reduced, gathered, mine = device([rank] * 20), empty(n * 20), empty(5)
        handles = [
            backend.iall_reduce(reduced),
            backend.iall_gather(device([rank] * 20), gathered),
            backend.ireduce_scatter(device([rank] * 5 * n), mine, op=ReductionOperation.AVERAGE),
        ]
        for handle in handles:
            handle.wait()
        return reduced.memory.tolist(), gathered.memory.tolist(), mine.memory.tolist()

    assert on_fake_device(2, work) == [([1.0] * 20, [0.0] * 20 + [1.0] * 20, [0.5] * 5)] * 2


def test_an_own_slice_on_the_device_is_gathered_in_place():
    def work(backend, copies):
        memory = numpy.full(20, backend.rank, "float32")
        own = FakeDeviceArray(memory[10 * backend.rank : 10 * backend.rank + 10])
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


@pytest.mark.parametrize(
    "begins, ends",
    [("isend", "receive"), ("send", "irecv"), ("isend", "irecv"), ("send", "receive")],
)
@pytest.mark.parametrize("size", [0, 5, 20])
def test_a_message_of_several_windows_is_received_however_it_was_sent(begins, ends, size):
    def work(backend, copies):
        array = device(numpy.arange(size)) if backend.rank == 0 else empty(size)
        handle = getattr(backend, begins if backend.rank == 0 else ends)(array, 1 - backend.rank)
        if handle is not None:
            handle.wait()
            assert handle.test()
        return array.memory.tolist(), copies.num_waiting

    assert on_fake_device(2, work) == [(list(range(size)), 0)] * 2
