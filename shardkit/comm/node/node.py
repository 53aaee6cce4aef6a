"""A node: the ranks of one machine that can map each other's heaps, and channels of its groups."""

import os
import weakref

import numpy

from ..seats import Seat, have_cores
from .channel import SharedMemoryChannel
from .heap import ADDRESS_BYTES, Heap, Mapping, machine_bytes
from .mailbox import NOWHERE, new_mailbox, table_of


class Node:
    """One rank's view of its node: its own heap, and where those of its neighbors are in this
    process.

    members  world ranks of the node, in order
    """

    def __init__(self, heap: Heap, mappings: list[Mapping], members: list[int], *, has_cores: bool):
        self.heap, self.members = heap, members
        self._mappings = dict(zip(members, mappings))
        self._has_cores = has_cores
        # by offset, of channels that are not closed: neighbors may still look at them
        self._mailboxes: dict = {}
        self._common: dict[
            tuple, numpy.ndarray
        ] = {}  # (world ranks, offset): array in this heap that these ranks see
        # Of these keys: this rank has no view of the array any more.
        self._unused: set[tuple] = set()

    @classmethod
    def open(cls, comm, world_rank: int) -> "Node | None":
        """Return the node of ranks of one machine; None if one cannot see another's memory.

        The same on all ranks. Collective over comm, an mpi4py communicator. Refused where processes
        may not look into each other (other users, other containers), where address space is
        limited, and where the system has no nameless files.
        """
        heap, mappings = None, None
        try:
            heap = Heap(min(machine_bytes(), ADDRESS_BYTES // comm.size))
        except (OSError, AttributeError, ValueError, OverflowError):
            pass  # the ranks hear of it below, and agree on messages
        facts = comm.allgather(
            None if heap is None else (os.getpid(), heap.file, heap.num_bytes, heap.token)
        )
        if None not in facts:
            try:
                mappings = [
                    heap.memory if rank == comm.rank else Mapping.of_neighbor(*fact)
                    for rank, fact in enumerate(facts)
                ]
            except (OSError, ValueError, OverflowError):
                pass  # likewise
        places = comm.allgather((world_rank, Seat.here(1), mappings is not None))
        if heap is not None:
            heap.hide()
        members, seats, sees_all = zip(*places)
        if not all(sees_all):
            return None
        return cls(heap, mappings, list(members), has_cores=have_cores(list(seats)))

    def channel(self, messages, **options) -> SharedMemoryChannel | None:
        """Return the channel of a group within the node, around its messages.

        None on all its ranks if a heap is full. Collective over the group.
        options   of SharedMemoryChannel
        """
        mailbox = new_mailbox(self.heap)
        own = NOWHERE if mailbox is None else mailbox.ctypes.data - self.heap.memory.address
        offsets = messages.communicator.allgather(own)
        if NOWHERE in offsets:
            return None
        self._mailboxes[own] = mailbox
        heaps = [self._mappings[rank].address for rank in messages.members.world_ranks]
        mailboxes = [heap + offset for heap, offset in zip(heaps, offsets)]

        def forget():
            messages.plan("barrier")()
            del self._mailboxes[own]

        table = table_of(
            messages.rank, mailboxes, heaps, self.heap.num_bytes, has_cores=self._has_cores
        )
        return SharedMemoryChannel(messages, table, self, forget, **options)

    def common(self, comm, world_ranks: tuple[int, ...], size: int, dtype):
        """Return an array that these ranks see, in the heap of the first; None if it is full.

        Contents are undefined. Collective over comm, which the ranks form. When a rank lets it go a
        neighbor may still read it: so it is freed at a later call by the same ranks, once all have.
        """
        for key in frozenset.intersection(*comm.allgather(frozenset(self._unused))):
            if key[0] == world_ranks:
                self._unused.remove(key)
                self._common.pop(key, None)
        array = self.heap.empty(size, dtype) if comm.rank == 0 else None
        offset = comm.bcast(None if array is None else array.ctypes.data - self.heap.memory.address)
        if offset is None:
            return None
        key = world_ranks, offset
        if array is not None:
            self._common[key] = array
        seen = numpy.ndarray(size, dtype, self._mappings[world_ranks[0]].map, offset)
        weakref.finalize(seen, self._unused.add, key).atexit = False
        return seen
