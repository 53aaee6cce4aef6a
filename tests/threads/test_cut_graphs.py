"""Message passing on graphs whose nodes are cut over ranks, against whole ones; float64."""

import numpy
import pytest
from lossy_group import lost_in_turn

import shardkit as sk
from shardkit.nn import Tensor
from shardkit.testing.layout import even_span
from shardkit.testing.parallel import CutGraph, cut_layers, gather_halo

EVERY_SIZE = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5])
# nodes, edges
GRAPHS = [(1, 3), (2, 0), (7, 20), (12, 60), (30, 40)]


def edges_of(num_nodes, num_edges):
    return numpy.random.default_rng(num_nodes).integers(0, num_nodes, (2, num_edges))


def model_of(edges, readout="nodes"):
    form = {"width": 4, "steps": 2, "readout": readout, "dtype": "float64"}
    return sk.models.MessagePassing(3, 2, *edges, **form)


def whole_case(edges, num_nodes, readout):
    """Return x, y, a gradient, and those of x and the parameters, of the whole graph."""
    rng = numpy.random.default_rng(1)
    model = model_of(edges, readout)
    x = Tensor(rng.standard_normal((2, num_nodes, 3)), requires_grad=True)
    y = model(x)
    gradient = rng.standard_normal(y.shape)
    y.backward(gradient)
    return x.array, y.array, gradient, x.grad, [p.grad for p in model.parameters()]


def is_near(got, wanted):
    largest = 1 + abs(wanted).max(initial=0)
    return got.shape == wanted.shape and abs(got - wanted).max(initial=0) <= 1e-12 * largest


def is_right(group, edges, num_nodes, readout, whole):
    """Return whether this rank computes its part of the model, and its terms of gradients."""
    x, result, gradient, for_x, wanted = whole
    own = slice(*even_span(num_nodes, group.world_size, group.rank))
    model = model_of(edges, readout)
    cut_layers(model, group)
    x = Tensor(x[:, own].copy(), requires_grad=True)
    y = model(x)
    if readout == "nodes":
        result, gradient = result[:, own], gradient[:, own]
    elif group.rank != 0:  # one rank counts what all have
        gradient = gradient * 0
    y.backward(gradient)
    totals = [
        sum(terms) for terms in zip(*group.all_gather_object([p.grad for p in model.parameters()]))
    ]
    found = [(y.array, result), (x.grad, for_x[:, own]), *zip(totals, wanted)]
    return all(is_near(got, right) for got, right in found)


@EVERY_SIZE
@pytest.mark.parametrize("readout", ["nodes", "sum"])
@pytest.mark.parametrize("num_nodes, num_edges", GRAPHS)
def test_a_model_is_that_of_the_whole_graph(num_nodes, num_edges, readout, num_ranks):
    edges = edges_of(num_nodes, num_edges)
    whole = whole_case(edges, num_nodes, readout)

    def run(group):
        return is_right(group, edges, num_nodes, readout, whole)

    assert sk.run_ranks(num_ranks, run) == [True] * num_ranks


def test_each_message_counts():
    edges = edges_of(12, 60)
    whole = whole_case(edges, 12, "sum")

    def run(group):
        try:
            return is_right(group, edges, 12, "sum", whole)
        except Exception:  # a plan that was lost names no nodes
            return False

    def failing(num_ranks, run):
        try:
            return sk.run_ranks(num_ranks, run)
        except Exception:
            return [False]

    found = lost_in_turn(run, 3, failing)
    assert found and [each for each in found if not each[2]] == []


@EVERY_SIZE
def test_each_rank_gets_its_halo_and_gives_its_gradients_back(num_ranks):
    edges = edges_of(12, 60)
    whole = numpy.random.default_rng(0).standard_normal((2, 12, 3))

    def run(group):
        start, stop = even_span(12, group.world_size, group.rank)
        graph = CutGraph.of(*edges, 12, group)
        x = Tensor(whole[:, start:stop], requires_grad=True)
        y = gather_halo(x, group, graph, 1)
        numbers = [*range(start, stop), *graph.halo.tolist()]
        numpy.testing.assert_array_equal(y.array, whole[:, numbers])
        leads_here = (edges[1] >= start) & (edges[1] < stop)
        numpy.testing.assert_array_equal(numpy.array(numbers)[graph.senders], edges[0][leads_here])
        numpy.testing.assert_array_equal(start + graph.receivers, edges[1][leads_here])
        y.backward(y.array)
        return numbers, x.grad

    found = sk.run_ranks(num_ranks, run)
    uses = numpy.bincount([number for numbers, _ in found for number in numbers], minlength=12)
    gradients = numpy.concatenate([gradient for _, gradient in found], 1)
    numpy.testing.assert_allclose(gradients, whole * uses[:, None], rtol=1e-14)


@EVERY_SIZE
def test_the_bytes_are_those_of_the_halo(num_ranks):
    edges = edges_of(30, 40)

    def run(group):
        start, stop = even_span(30, num_ranks, group.rank)
        graph = CutGraph.of(*edges, 30, group)
        x = Tensor(numpy.ones((stop - start, 5)), requires_grad=True)
        group.traffic.reset()
        y = gather_halo(x, group, graph)
        forward = group.traffic.bytes_sent
        y.backward(y.array)
        return forward, group.traffic.bytes_sent - forward, len(graph.given), len(graph.halo)

    for forward, backward, num_given, num_taken in sk.run_ranks(num_ranks, run):
        assert (forward, backward) == (num_given * 40, num_taken * 40)


def test_edges_of_own_receivers_are_enough():
    edges = edges_of(12, 60)

    def run(group):
        start, stop = even_span(12, 3, group.rank)
        own = edges[:, (edges[1] >= start) & (edges[1] < stop)]
        of_all, of_own = [CutGraph.of(*each, 12, group) for each in (edges, own)]
        for name in ("senders", "receivers", "halo", "taken", "given", "given_counts"):
            numpy.testing.assert_array_equal(getattr(of_all, name), getattr(of_own, name))

    sk.run_ranks(3, run)


@pytest.mark.parametrize(
    "senders, receivers", [([0, 1], [0]), ([0], [4]), ([-1], [0]), ([[0]], [[0]])]
)
def test_edges_of_nodes_that_there_are_not_are_refused(senders, receivers):
    def run(group):
        with pytest.raises(sk.ShapeError, match="wanted two lists"):
            CutGraph.of(senders, receivers, 4, group)
        return group.traffic.bytes_sent

    assert sk.run_ranks(2, run) == [0, 0]
