"""Seconds of a collective by topology: a latency for each hop and the bytes over the slowest link
(the alpha-beta model).

    16 data ranks, 4 on each node         node 0         node 1
                                        0 - 1 - 2 - 3 -> 4 - 5 - 6 - 7 -> ...      a ring enters and
                                                                                   leaves each node
                                                                                   once

    ring all-reduce of S bytes on n ranks       2 (n-1) hops, 2 S (n-1)/n bytes over each link
    ring all-gather, reduce-scatter               (n-1) hops,   S (n-1)/n
    tree all-reduce                             2 log2(nodes) hops between nodes and 2 (g-1) inside,
                                                2 S bytes

The g ranks that a group has on a node form as many rings, one through the network port of each;
groups of other ranks use their own ports. Above the nodes may be levels of switches: hops that
leave a level take longer, and where a level has less bandwidth upwards than its nodes together, the
part of all rings' hops that leaves it shares what there is. An all-reduce takes the quicker of ring
and tree, as NCCL does. Source of the rings: Patarasuk and Yuan, Bandwidth optimal all-reduce
algorithms (2009).
"""

from dataclasses import dataclass
from math import ceil, log2

from .hardware import Cluster

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
SEND = "send"


@dataclass(frozen=True)
class RankGroup:
    """The ranks of one axis: `size` of them, `stride` apart; consecutive ranks fill a node."""

    size: int
    stride: int

    def cut(self, inner: int) -> "tuple[RankGroup, RankGroup]":
        """Return its runs of `inner` neighbors, and the ranks at one place of every run."""
        return RankGroup(inner, self.stride), RankGroup(self.size // inner, self.stride * inner)

    def on_node(self, cluster: Cluster) -> int:
        """Return how many of them share a node."""
        return max(1, min(self.size, cluster.devices // self.stride))

    def step(self, cluster: Cluster) -> float:
        """Return the nodes from one node of the group to the next."""
        return max(1.0, self.stride / cluster.devices)


def collective_seconds(
    cluster: Cluster, operation: str, num_bytes: float, group: RankGroup
) -> float:
    """Return the seconds of one collective.

    num_bytes   of the whole buffer, such as the result of an all-gather
    """
    if group.size == 1 or num_bytes == 0:
        return 0.0
    measured = _measured_seconds(cluster, operation, num_bytes, group)
    if measured is not None:
        return measured
    if operation == SEND:
        return _send_seconds(cluster, num_bytes, group)
    ring = _ring_seconds(cluster, num_bytes, group)
    if operation == ALL_REDUCE:
        return min(2 * ring, _tree_seconds(cluster, num_bytes, group))
    return ring


def _ring_seconds(cluster: Cluster, num_bytes: float, group: RankGroup) -> float:
    """Return the seconds of one round of a ring."""
    size = group.size
    here = group.on_node(cluster)
    speed = cluster.inside.speed
    hop = cluster.inside.latency_seconds
    if size > here:
        outside, hop_outside = _between(cluster, group)
        speed = min(speed, here * outside) if here > 1 else outside
        hop = ((here - 1) * hop + hop_outside) / here
    return (size - 1) * hop + num_bytes * (size - 1) / size / speed


def _tree_seconds(cluster: Cluster, num_bytes: float, group: RankGroup) -> float:
    """Return the seconds up and down: a chain inside each node, a tree between nodes."""
    here = group.on_node(cluster)
    nodes = ceil(group.size / here)
    hops = (here - 1) * cluster.inside.latency_seconds
    speed = cluster.inside.speed
    if nodes > 1:
        outside, hop = _between(cluster, group)
        hops += ceil(log2(nodes)) * hop
        speed = min(speed, here * outside)
    return 2 * hops + 2 * num_bytes / speed


def _send_seconds(cluster: Cluster, num_bytes: float, group: RankGroup) -> float:
    """Return the seconds to the next rank of the group, while all ranks of the node send."""
    if group.on_node(cluster) > 1:
        return cluster.inside.latency_seconds + num_bytes / cluster.inside.speed
    speed, hop = _between(cluster, group)
    return hop + num_bytes / speed


def _between(cluster: Cluster, group: RankGroup) -> tuple[float, float]:
    """Return the bytes per second from a device to another node of the group, and the seconds of a
    hop, while all groups of such ranks send.
    """
    step = group.step(cluster)
    nodes = group.size / group.on_node(cluster) * step
    speed = cluster.per_device
    hop = cluster.between.latency_seconds
    for level in cluster.levels:
        part = level.crossing(nodes, step)
        speed = min(speed, cluster.per_device / max(1.0, part * level.oversubscription))
        hop += part * level.latency_seconds
    return speed, hop


def _measured_seconds(
    cluster: Cluster, operation: str, num_bytes: float, group: RankGroup
) -> float | None:
    """Return the seconds by the measurement on the nearest number of ranks.

    None if there is no measurement, or the group leaves the node.
    """
    rows = [row for row in cluster.measured if row.operation == operation]
    if not rows or group.size > group.on_node(cluster):
        return None
    row = min(rows, key=lambda row: (abs(row.ranks - group.size), row.ranks))
    return row.latency_seconds + num_bytes / row.bytes_per_second
