"""Ids of rows sorted by kernels, in the emulator: the order of NumPy's stable sort, and no wait."""

import numpy
import pytest
from stand_in import pretended_gpu
from stand_in.emulator import compiler, thread_order

from shardkit.testing.gpu import sorted_by_row

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="the emulator of CUDA kernels needs g++, which was not found"
)
# ids, rows: none, one, one digit, a last part that is short, one id, three digits, all blocks
SIZES = [(0, 5), (1, 1), (7, 3), (300, 256), (1000, 1), (700, 70_000), (9000, 400)]


@pytest.mark.thorough
@pytest.mark.parametrize("count, num_rows", SIZES)
def test_equal_ids_stay_in_the_order_they_came(count, num_rows):
    ids = numpy.random.default_rng(count).integers(0, num_rows, count)
    order = numpy.argsort(ids, kind="stable")
    starts = numpy.searchsorted(ids[order], numpy.arange(num_rows + 1))
    with pretended_gpu() as machine:
        import cupy

        there = cupy.asarray(ids)
        for threads in ("forward", "backward", 3)[: 3 if count < 5000 else 2]:
            machine.forget()
            with thread_order(threads):
                got = sorted_by_row(there, num_rows)
            assert not machine.host_waits and not machine.transfers
            assert got[0].tolist() == order.tolist() and got[1].tolist() == starts.tolist()


def test_ids_of_other_types_and_strides_are_sorted_too():
    ids = numpy.array([[3, 9], [0, 9], [3, 9], [1, 9]], "int32")
    with pretended_gpu():
        import cupy

        order, starts = sorted_by_row(cupy.asarray(ids)[:, 0], 4)
        assert order.tolist() == [1, 3, 0, 2] and starts.tolist() == [0, 1, 2, 2, 4]
