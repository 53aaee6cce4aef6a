"""Sequences that are cut over processes: attention in both ways, and its messages, under MPI."""

import numpy
import pytest
from cuts import slab_spans

from shardkit.nn import Tensor, ops
from shardkit.testing.parallel import (
    attention_by_heads,
    balanced_ring,
    even_spans,
    paired_spans,
    positions_of,
    ring_attention,
)

pytestmark = pytest.mark.mpi(min_size=2)
WAYS = {"ring": ring_attention, "balanced": balanced_ring, "heads": attention_by_heads}
CUTS = {"even": even_spans, "paired": paired_spans}


def assert_near(got, wanted, tolerance):
    assert got.shape == wanted.shape
    assert abs(got - wanted).max(initial=0) <= tolerance * (1 + abs(wanted).max(initial=0))


@pytest.mark.parametrize("length", [3, 41, 2000])  # from less than a message to large ones
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", WAYS)
def test_attention_is_that_of_the_whole_sequence(backend, name, cut, length):
    rng = numpy.random.default_rng(length)
    shapes = [(1, 4, length, 8), (1, 2, length, 8), (1, 2, length, 8), (1, 4, length, 8)]
    *whole, gradient = [rng.standard_normal(shape) for shape in shapes]
    tensors = [Tensor(x, requires_grad=True) for x in whole]
    y = ops.causal_attention(*tensors, window=length // 2 + 1)
    y.backward(gradient)
    table = CUTS[cut](length, backend.world_size)
    own = positions_of(table[backend.rank])
    parts = [Tensor(x[:, :, own], requires_grad=True) for x in whole]
    found = WAYS[name](*parts, backend, table, window=length // 2 + 1)
    found.backward(gradient[:, :, own])
    for got, right in zip(
        [found.array, *[x.grad for x in parts]], [y.array, *[x.grad for x in tensors]]
    ):
        assert_near(got, right[:, :, own], 1e-12)


def test_with_slabs_the_bits_are_those_of_one_rank(backend, on_one_rank):
    rng = numpy.random.default_rng(0)
    whole = [rng.standard_normal((1, 2, 800, 8)).astype("float32") for _ in range(4)]

    def run(group):
        table = slab_spans(800, group.world_size, 12)
        own = positions_of(table[group.rank])
        parts = [Tensor(x[:, :, own], requires_grad=True) for x in whole[:3]]
        y = ring_attention(*parts, group, table, causal=False)
        y.backward(whole[3][:, :, own])
        return [y.array, *[x.grad for x in parts]]

    wanted = on_one_rank(run)
    if 12 % backend.world_size:
        pytest.skip(f"{backend.world_size} ranks do not divide 12 slabs")
    own = positions_of(slab_spans(800, backend.world_size, 12)[backend.rank])
    for got, right in zip(run(backend), wanted, strict=True):
        numpy.testing.assert_array_equal(got, right[:, :, own])
