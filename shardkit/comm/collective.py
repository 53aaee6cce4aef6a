"""Collectives that go through ports, as one table: how they are checked, and what they send.

ports   the arguments of the group's verb as ports and pieces of arrays, all checked
sent    the bytes that this rank sends, by the formulas of Traffic (operations.py)
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import arguments
from .checks import bytes_of_root, check_rank, ring_bytes


@dataclass(frozen=True)
class Collective:
    """A collective, whose arguments are those of the group's verb, all of them.

    ports   function (group, arguments) -> parts, the arguments of a transport. Errors: ValueError
    sent    function (group, parts) -> bytes
    """

    ports: Callable[..., tuple]
    sent: Callable[..., int]


def _but_own(group, pieces) -> int:
    """Return the bytes of the pieces of all ranks but this one."""
    return (sum(pieces.counts) - pieces.counts[group.rank]) * pieces.port.wire.itemsize


def _broadcast_ports(group, array, root):
    root = check_rank("root", root, group.world_size)
    return arguments.port_on(group, "array", array, writes=group.rank != root), root


def _reduce_scatter_ports(group, send, receive, counts, op, in_place):
    in_place = in_place and group.adds_in_tree_order(send)
    return (*arguments.reduce_scatter(group, send, receive, counts, op, in_place), op)


def _scatter_ports(group, send, receive, root, counts):
    root = check_rank("root", root, group.world_size)
    return (*arguments.scatter(group, send, receive, root, counts), root)


def _gather_ports(group, send, receive, root, counts):
    root = check_rank("root", root, group.world_size)
    whole, own = arguments.gather(group, send, receive, root, counts)
    return own, whole, root


COLLECTIVES = {
    "all_reduce": Collective(
        lambda group, array, op: (arguments.reduction(group, "array", array, op, writes=True), op),
        lambda group, port, op: ring_bytes(group, port.size * port.wire.itemsize),
    ),
    "broadcast": Collective(
        _broadcast_ports,
        lambda group, port, root: bytes_of_root(
            group, root, (group.world_size - 1) * port.num_bytes
        ),
    ),
    "all_gather": Collective(
        arguments.all_gather,
        lambda group, own, whole: (group.world_size - 1) * own.port.num_bytes,
    ),
    "reduce_scatter": Collective(
        _reduce_scatter_ports, lambda group, whole, own, op: _but_own(group, whole)
    ),
    "scatter": Collective(
        _scatter_ports,
        lambda group, whole, own, root: bytes_of_root(
            group, root, whole.port.num_bytes - own.port.num_bytes
        ),
    ),
    "gather": Collective(
        _gather_ports,
        lambda group, own, whole, root: 0 if group.rank == root else own.port.num_bytes,
    ),
    "all_to_all": Collective(
        arguments.all_to_all,
        lambda group, outgoing, incoming: _but_own(group, outgoing),
    ),
}
