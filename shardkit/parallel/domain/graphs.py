"""Message passing on a graph whose nodes are cut over ranks: edges go with their receivers.

    rank 0  nodes 0 1 2 | halo 3 5         each rank has the edges whose receivers are its nodes, so
    rank 1  nodes 3 4 5 | halo 0           all that a node hears is added by one rank, in the order
                                           of the edges; senders of other ranks are its halo

    gather_halo   owners send the features of nodes to the ranks that hear of them; its adjoint
                  sends the gradients back, and the owner adds them: its own first, then by rank

Who needs which nodes is found once for a graph (CutGraph), and no more travels than these. Ranks
hold runs of node numbers (layout.even_span): numbered by a partition of the mesh (METIS and the
like) the halo is its boundary. Source: DistDGL (arXiv 2010.05337), without its sampling.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy

from ...array import fresh, kernels
from ...array.arena import empty
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...comm.backend import CommunicationBackend
from ...errors import ShapeError
from ...layout.cuts import even_runs, even_span
from ...nn.autograd import Tensor, array_of, record
from ..conjugate import all_reduce
from .axis import CutLayer, DomainAxis


@dataclass(frozen=True, eq=False)
class CutGraph:
    """What a rank knows of a graph.

    senders, receivers   of its edges [edges] int64, in their order: places among its own nodes, and
                         for senders behind these among the halo
    num_own              its nodes, [start, stop) of even_span
    halo                 numbers of the nodes of others that it hears of, rising
    taken                how many of these are of each rank
    given                own nodes that other ranks hear of, for one rank after the other
    given_counts         how many for each rank
    """

    senders: numpy.ndarray
    receivers: numpy.ndarray
    num_own: int
    halo: numpy.ndarray
    taken: tuple[int, ...]
    given: numpy.ndarray
    given_counts: tuple[int, ...]

    @classmethod
    def of(cls, senders, receivers, num_nodes: int, group: CommunicationBackend) -> "CutGraph":
        """Return this rank's part. Collective over `group`: ranks ask owners for their halo.

        senders, receivers   numbers of nodes [edges] of all edges, or of any of them among which
                             are all that lead to own nodes; others are left out
        """
        start, stop = even_span(num_nodes, group.world_size, group.rank)
        senders, receivers = [numpy.asarray(ends, numpy.int64) for ends in (senders, receivers)]
        _check_edges(senders, receivers, num_nodes)
        is_own = (receivers >= start) & (receivers < stop)
        senders, receivers = senders[is_own], receivers[is_own] - start
        is_far = (senders < start) | (senders >= stop)
        halo = numpy.unique(senders[is_far])
        behind = stop - start + numpy.searchsorted(halo, senders)
        taken = _counts_by_owner(halo, num_nodes, group.world_size)
        given, given_counts = _asked(halo, taken, group)
        places = numpy.where(is_far, behind, senders - start)
        counts = tuple(taken.tolist()), tuple(given_counts.tolist())
        own = receivers, stop - start, halo
        return cls(places, *own, counts[0], given - start, counts[1])


def _check_edges(senders, receivers, num_nodes):
    """Raise ShapeError unless these are two lists of nodes of one length."""
    fits = senders.ndim == 1 and senders.shape == receivers.shape
    ends = numpy.concatenate([senders.reshape(-1), receivers.reshape(-1)])
    first, last = ends.min(initial=0), ends.max(initial=0)
    if not fits or first < 0 or last >= max(num_nodes, 1):
        raise ShapeError(
            f"edges of senders {senders.shape} and receivers {receivers.shape} with nodes {first} "
            f".. {last}; wanted two lists of one length, of nodes 0 .. {num_nodes - 1}"
        )


def _counts_by_owner(nodes, num_nodes, num_ranks):
    """Return how many of these nodes, which rise, are of each rank [ranks]."""
    ends = [stop for _, stop in even_runs(num_nodes, num_ranks)]
    return numpy.diff(numpy.searchsorted(nodes, [0, *ends]))


def _asked(halo, taken, group):
    """Return the nodes that ranks want of this one, by rank, and how many each. Collective."""
    counts = numpy.empty_like(taken)
    group.all_to_all(taken, counts)
    nodes = numpy.empty(int(counts.sum()), numpy.int64)
    group.all_to_all(halo, nodes, taken.tolist(), counts.tolist())
    return nodes, counts


def gather_halo(x: Tensor, group: CommunicationBackend, graph: CutGraph, dim: int = 0) -> Tensor:
    """Return the features of own nodes and, behind them, of those of the halo.

    Collective over `group` in forward and backward.
    x        [..., own nodes, ...] local
    returns  [..., own nodes + halo, ...], for the rank's own use
    """
    if x.shape[dim] != graph.num_own:
        raise ShapeError(
            f"nodes of shape {x.shape} on rank {group.rank} of {group.world_size}; wanted "
            f"{graph.num_own} along dim {dim}, this rank's part"
        )
    return record(
        _with_halo(x.array, group, graph, dim),
        (x,),
        lambda gradient, wanted: (_added_to_owners(gradient, group, graph, dim),),
        gives_new=True,
    )


def _with_halo(array, group, graph, dim):
    """Return [..., own + halo, ...] of an array [..., own, ...], a new array."""
    xp = xp_of(array)
    front = xp.moveaxis(array, dim, 0)  # [own, ...rest]
    num_own, rest = graph.num_own, front.shape[1:]
    seen = empty((num_own + len(graph.halo), *rest), array.dtype, xp)
    seen[:num_own] = front
    given = fresh.rows(fresh.contiguous(front), xp.asarray(graph.given))
    counts = _elements(graph.given_counts, rest), _elements(graph.taken, rest)
    group.all_to_all(given, seen[num_own:], *counts)
    return fresh.contiguous(xp.moveaxis(seen, 0, dim))


def _added_to_owners(gradient, group, graph, dim):
    """Return [..., own, ...] of gradients [..., own + halo, ...]: the adjoint, a new array."""
    xp = xp_of(gradient)
    front = fresh.contiguous(xp.moveaxis(gradient, dim, 0))  # [own + halo, ...rest]
    num_own, rest = graph.num_own, front.shape[1:]
    came = empty((len(graph.given), *rest), gradient.dtype, xp)
    counts = _elements(graph.taken, rest), _elements(graph.given_counts, rest)
    group.all_to_all(front[num_own:], came, *counts)
    total = fresh.copy(widened(front[:num_own]))
    if came.size:
        rows = widened(came).reshape(len(came), prod(rest))
        sums = kernels.embedding_backward(rows, xp.asarray(graph.given), num_own)
        total += sums.reshape(total.shape)
    return fresh.contiguous(xp.moveaxis(rounded(total, gradient.dtype), 0, dim))


def _elements(counts, rest):
    """Return how many elements so many rows have."""
    return [count * prod(rest) for count in counts]


class GraphOnRanks:
    """The graph of a MessagePassing model (OwnGraph) whose nodes are cut, in its place.

    Plans are made by the first forward pass, on all ranks together.
    """

    def __init__(self, group: CommunicationBackend, edges):
        self._group = group
        self._senders, self._receivers = edges
        self._plans: dict[int, CutGraph] = {}  # {own nodes: the plan}

    def split(self, x):
        """Return own nodes [batch, own, width], and places of senders and receivers."""
        graph = self._plan(x.shape[1])
        xp = xp_of(array_of(x))
        ends = xp.stack([xp.asarray(graph.senders), xp.asarray(graph.receivers)])
        return x, *xp.repeat(ends[:, None], x.shape[0], 1)

    def reached(self, nodes):
        """Return own nodes and, behind them, those of the halo: [batch, own + halo, width]."""
        return gather_halo(nodes, self._group, self._plan(nodes.shape[1]), 1)

    def total(self, y):
        """Return the sum over the nodes of all ranks, for the rank's own use."""
        return all_reduce(y.sum(1), self._group)

    def join(self, nodes, x):
        """Return what the next block takes, for new nodes in place of x."""
        return nodes

    def check(self, x, features):
        """Raise ShapeError unless x is [samples, own nodes, features]."""
        if x.ndim != 3 or x.shape[2] != features:
            raise ShapeError(
                f"MessagePassing of x {x.shape}; wanted [samples, own nodes, {features}]"
            )

    def _plan(self, num_own) -> CutGraph:
        """Return the plan for so many own nodes. Collective when it is made."""
        if num_own not in self._plans:
            counts = numpy.empty(self._group.world_size, numpy.int64)
            self._group.all_gather(numpy.array([num_own], numpy.int64), counts)
            num_nodes = int(counts.sum())
            self._plans[num_own] = CutGraph.of(
                self._senders, self._receivers, num_nodes, self._group
            )
        return self._plans[num_own]

    def __deepcopy__(self, memo):
        """Return the graph itself: a copy of a model talks over the same ranks."""
        return self


class CutBlock(CutLayer):
    """A block of MessagePassing with edges of its own, on own nodes [batch, own, width] local.

    A sum over the nodes is whole.
    """

    def __init__(self, axis: DomainAxis, whole: Any):
        super().__init__(axis, whole)
        self.graph = axis.shared(whole.graph, GraphOnRanks(axis.group, whole.graph.edges))
        self.leaves_parts = vars(whole).get("readout") != "sum"

    def check_input(self, x):
        self.takes_place_of.check_input(self, x)

    def forward(self, x):
        return self.takes_place_of.forward(self, x)
