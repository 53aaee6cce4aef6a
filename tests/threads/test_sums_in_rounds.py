"""The verbs' promises where ranks are so many that sums go in rounds."""

import numpy
from threads import communication_contract
from threads.communication_contract import rough, tree

from shardkit import run_ranks
from shardkit.testing.comm import (
    DIRECT,
    RoundsChannel,
    begin_all_gather,
    begin_ordered_sum,
)

MANY = DIRECT + 2


def test_ordered_sums_have_the_bits_of_the_tree():
    def program(backend):
        backend.channel = RoundsChannel(backend.channel, small_bytes=0)
        for dtype in ("float32", "int32"):
            communication_contract.ordered_reductions_have_the_bits_of_the_tree_over_ranks(
                backend, dtype
            )
        communication_contract.ordered_reductions_sum_half_floats_as_float32(backend)
        numbers = numpy.arange(40) * (-1) ** backend.rank
        backend.all_reduce(numbers, "max")
        assert (numbers == numpy.arange(40)).all()
        backend.all_reduce(numbers, "product")

    run_ranks(MANY, program)


def test_sums_and_gathers_under_way_have_them_too():
    def program(backend):
        n, rank = backend.world_size, backend.rank
        whole, out = rough(rank, 5 * n, "float32"), numpy.empty(5, "float32")
        total = tree([rough(each, 5 * n, "float32") for each in range(n)])
        begun = begin_ordered_sum(backend, whole, out, numpy.empty_like(whole), 0)
        uneven = whole[:-3].copy()
        other = begin_ordered_sum(backend, uneven, uneven, numpy.empty_like(uneven), 2)
        begun.end()
        other.end()
        assert out.tobytes() == total[5 * rank : 5 * rank + 5].tobytes()
        assert uneven.tobytes() == total[:-3].tobytes()
        begin_all_gather(backend, out, whole, 4).end()
        assert whole.tobytes() == total.tobytes()

    run_ranks(MANY, program)
