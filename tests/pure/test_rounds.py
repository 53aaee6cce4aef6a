"""Sums over many ranks in rounds: the tree's bits, each byte once, and few messages."""

import numpy
import pytest
from threads.communication_contract import rough, tree

from shardkit import ReductionOperation
from shardkit.testing.comm import COMBINE, DIRECT, rounds_of_gather, rounds_of_sum, to_all, to_owner

SIZES = (1, 2, 5, DIRECT, DIRECT + 1, 23, 64, 77)


class Channel:
    """One rank of a job in one process: what is posted arrives when all have posted."""

    def __init__(self, rank: int, size: int, on_the_way: dict):
        self.rank, self.size, self._on_the_way = rank, size, on_the_way
        self.num_posts = self.sent = self.received = 0

    def exchange(self, outgoing, incoming, tag):
        for to, array in outgoing:
            self.num_posts += 1
            self.sent += array.nbytes
            self._on_the_way[self.rank, to, tag] = array.copy()
        self._expected = incoming, tag

    def deliver(self):
        incoming, tag = self._expected
        for source, array in incoming:
            came = self._on_the_way.pop((source, self.rank, tag))
            assert came.size == array.size, f"{source} sends {came.size}, wanted {array.size}"
            array[...] = came
            self.received += array.nbytes


def turns_of(channel, parts, buffer, add):
    own = parts[channel.rank]
    yield from to_owner(channel, parts, own, numpy.empty_like(buffer), 7, add)
    yield from to_all(channel, parts, 8)


def go_on(turns) -> None:
    """Take the turns of all channels to their ends."""
    while turns:
        for channel in list(turns):
            if next(turns[channel], "ended") == "ended":
                del turns[channel]
        for channel in turns:
            channel.deliver()


def run(buffers, operation="SUM") -> list[Channel]:
    """Reduce the buffers of all ranks, in them."""
    on_the_way: dict = {}
    channels = [Channel(rank, len(buffers), on_the_way) for rank in range(len(buffers))]
    add = COMBINE[ReductionOperation[operation]]
    turns = {
        channel: turns_of(channel, numpy.array_split(buffer, len(buffers)), buffer, add)
        for channel, buffer in zip(channels, buffers)
    }
    go_on(turns)
    assert not on_the_way
    return channels


def check(num_ranks: int, length: int, dtype: str) -> list[Channel]:
    buffers = [rough(rank, length, dtype) for rank in range(num_ranks)]
    wide = "float32" if dtype == "float16" else dtype
    wanted = tree([buffer.astype(wide) for buffer in buffers]).astype(dtype)
    channels = run(buffers)
    assert all(buffer.tobytes() == wanted.tobytes() for buffer in buffers)
    return channels


@pytest.mark.parametrize("num_ranks", SIZES)
def test_the_bits_are_those_of_the_tree_and_bytes_those_of_a_ring(num_ranks):
    channels = check(num_ranks, 12 * num_ranks, "float32")
    ring = 2 * 4 * 12 * (num_ranks - 1)
    assert all(max(each.sent, each.received) <= 1.25 * ring for each in channels)
    assert sum(each.sent for each in channels) <= 1.07 * ring * num_ranks
    for length, dtype in ((num_ranks - 1, "float64"), (2 * num_ranks + 1, "float16"), (0, "int32")):
        check(num_ranks, length, dtype)


@pytest.mark.thorough
def test_on_every_third_number_of_ranks():
    for num_ranks in range(3, 90, 3):
        check(num_ranks, 3 * num_ranks // 2, "float32")


@pytest.mark.parametrize("operation, wanted", [("MIN", numpy.min), ("MAX", numpy.max)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_other_reductions_go_the_same_rounds(operation, wanted, dtype):
    buffers = [rough(rank, 50, dtype) for rank in range(21)]
    expected = wanted(buffers, axis=0)
    run(buffers, operation)
    assert all((buffer == expected).all() for buffer in buffers)


@pytest.mark.parametrize("num_ranks, dtype", [(3, "int32"), (19, "float16"), (43, "float64")])
def test_slices_of_unequal_sizes_are_added_and_the_buffers_stay(num_ranks, dtype):
    counts = [(0, 3, 1, 17, 0)[rank % 5] for rank in range(num_ranks)]
    buffers = [rough(rank, sum(counts), dtype) for rank in range(num_ranks)]
    given = [buffer.copy() for buffer in buffers]
    outs = [numpy.empty(count, dtype) for count in counts]
    on_the_way: dict = {}
    channels = [Channel(rank, num_ranks, on_the_way) for rank in range(num_ranks)]
    add, room = COMBINE[ReductionOperation.SUM], numpy.empty(1, dtype)
    turns = {
        channel: to_owner(
            channel, numpy.split(buffer, numpy.cumsum(counts)[:-1]), out, room, 7, add
        )
        for channel, buffer, out in zip(channels, buffers, outs)
    }
    go_on(turns)
    wide = "float32" if dtype == "float16" else dtype
    wanted = tree([buffer.astype(wide) for buffer in given]).astype(dtype)
    assert numpy.concatenate(outs).tobytes() == wanted.tobytes()
    assert all((buffer == before).all() for buffer, before in zip(buffers, given))


@pytest.mark.parametrize("num_ranks, rounds, messages", [(64, 2, 14), (512, 3, 21), (4096, 4, 28)])
def test_messages_of_a_rank_grow_with_the_logarithm_of_the_ranks(num_ranks, rounds, messages):
    for rank in (0, num_ranks // 3, num_ranks - 1):
        of_sum, of_gather = rounds_of_sum(rank, num_ranks), rounds_of_gather(rank, num_ranks)
        assert len(of_sum) == len(of_gather) == rounds
        assert sum(len(this.given) for this in of_sum) == messages
        assert sum(len(to) for to, _ in of_gather) == messages
