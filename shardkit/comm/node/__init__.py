"""Ranks of one node read and write each other's memory instead of sending messages.

heap.py is the memory, node.py who can see whose, lane.py a group's verbs on it; meeting.py says how
the ranks meet. levels.py puts lanes together with messages between nodes.
"""

from importlib.util import find_spec

from ...environment import is_compiling_wanted, is_shared_memory_wanted, ranks_per_node
from .node import Node


def open_node(comm, world_rank: int) -> Node | None:
    """The node of this rank among the ranks of one machine, an mpi4py communicator; None on all of
    them if they send messages.

    Collective over comm.
    """
    is_able = (
        comm.size > 1
        and is_shared_memory_wanted()
        and is_compiling_wanted()
        and find_spec("numba") is not None
    )
    if not all(comm.allgather(is_able)):
        return None
    part = comm.Split(comm.rank // (ranks_per_node() or comm.size), comm.rank)
    try:
        return Node.open(part, world_rank)
    finally:
        part.Free()
