"""Ranks of one node read and write each other's memory instead of sending messages.

Read channel.py first: the verbs of a group within a node. heap.py is the memory, node.py knows
whose memory a rank sees, mailbox.py and meeting.py are how ranks meet, loops.py the compiled verbs.
levels.py joins the memory of nodes with messages between them.
"""

from importlib.util import find_spec

from ...environment import is_compiling_wanted, is_shared_memory_wanted, ranks_per_node
from .node import Node


def open_node(comm, world_rank: int) -> Node | None:
    """Return the node of this rank among the ranks of one machine; None if they send messages.

    Collective over comm, an mpi4py communicator; None on all of its ranks or on none.
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
