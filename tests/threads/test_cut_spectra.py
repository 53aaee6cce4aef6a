"""Spectral layers of grids that are cut over ranks, against whole ones; float64.

Tolerance: 1e-12 of the largest value, for sums in another order.
"""

import numpy
import pytest
from lossy_group import lost_in_turn

import shardkit as sk
from shardkit.nn import Tensor
from shardkit.testing.layout import even_span
from shardkit.testing.nn import from_modes, multiply_modes, to_modes
from shardkit.testing.parallel import cut_spectral_convolution

EVERY_SIZE = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5])
# grid, modes
LAYERS = [((7,), (3,)), ((6, 5), (2, 3)), ((9, 7), (1, 2)), ((4, 5, 6), (2, 2, 4))]


def own(array, dim, num_ranks, rank):
    """Return the rows of a rank, a copy."""
    start, stop = even_span(array.shape[dim], num_ranks, rank)
    return numpy.take(array, range(start, stop), dim)


def is_near(got, wanted):
    largest = 1 + abs(wanted).max(initial=0)
    return got.shape == wanted.shape and abs(got - wanted).max(initial=0) <= 1e-12 * largest


def layer_case(grid, kept):
    """Return x, weight, result, a gradient, and those of x and weight, of the whole."""
    rng = numpy.random.default_rng(sum(grid))
    x = Tensor(rng.standard_normal((2, 3, *grid)), requires_grad=True)
    shape = 3, 2, *[2 * m for m in kept[:-1]], kept[-1], 2
    weight = Tensor(rng.standard_normal(shape), requires_grad=True)
    y = from_modes(multiply_modes(to_modes(x, kept), weight), grid)
    gradient = rng.standard_normal(y.shape)
    y.backward(gradient)
    return x.array, weight.array, y.array, gradient, x.grad, weight.grad


def is_layer_right(group, grid, kept, dim, whole):
    """Return whether this rank computes its part of a layer, and its term of the gradient."""
    x, weight, result, gradient, for_x, for_weight = whole
    parts = [
        own(each, 2 + dim, group.world_size, group.rank) for each in (x, result, gradient, for_x)
    ]
    x, result, gradient, for_x = parts
    x, weight = Tensor(x, requires_grad=True), Tensor(weight, requires_grad=True)
    y = cut_spectral_convolution(x, weight, kept, group, dim, grid[dim])
    y.backward(gradient)
    total = sum(group.all_gather_object(weight.grad))
    return is_near(y.array, result) and is_near(x.grad, for_x) and is_near(total, for_weight)


@EVERY_SIZE
@pytest.mark.parametrize("grid, kept", LAYERS)
def test_spectral_layers_are_those_of_the_whole(grid, kept, num_ranks):
    whole = layer_case(grid, kept)

    def run(group):
        return [is_layer_right(group, grid, kept, dim, whole) for dim in range(len(grid))]

    assert sk.run_ranks(num_ranks, run) == [[True] * len(grid)] * num_ranks


def test_each_message_of_a_layer_counts():
    grid, kept = LAYERS[1]
    whole = layer_case(grid, kept)
    found = lost_in_turn(lambda group: is_layer_right(group, grid, kept, 0, whole), 3, sk.run_ranks)
    assert found and [each for each in found if not each[2]] == []


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_layer_sends_modes_and_not_the_grid(num_ranks):
    kept, channels = (2, 3), 4
    rng = numpy.random.default_rng(0)
    weight = Tensor(rng.standard_normal((channels, channels, 4, 3, 2)), requires_grad=True)

    def run(group):
        x = Tensor(rng_of(group).standard_normal((1, channels, 64 // num_ranks, 48)), True)
        group.traffic.reset()
        cut_spectral_convolution(x, weight, kept, group, 0, 64).backward(x.array)
        return group.traffic.bytes_sent

    def rng_of(group):
        return numpy.random.default_rng(group.rank)

    num_modes = channels * 2 * 4 * 3  # with real and imaginary parts
    each_way = 2 * num_modes * (num_ranks - 1) // num_ranks  # a reduce-scatter and an all-gather
    assert sk.run_ranks(num_ranks, run) == [8 * 2 * each_way] * num_ranks


def test_parts_that_are_not_even_and_second_derivatives_are_refused():
    def run(group):
        x = Tensor(numpy.ones((1, 1, 3, 4)), requires_grad=True)
        weight = Tensor(numpy.ones((1, 1, 2, 1, 2)), requires_grad=True)
        with pytest.raises(sk.ShapeError, match="wanted 4 there"):
            cut_spectral_convolution(x, weight, (1, 1), group, 0, 8)
        y = cut_spectral_convolution(x, weight, (1, 1), group, 0, 6)
        with pytest.raises(sk.AutogradError, match="no second derivative"):
            sk.nn.grad(y.sum(), x, create_graph=True)

    sk.run_ranks(2, run)
