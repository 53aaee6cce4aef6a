"""Transport through each other's GPU memory, for ranks of one node (CUDA IPC).

The ranks are on one GPU or on several that reach each other.

    every rank has a block that the others have opened; it has two halves, which are used in turns

    rank 0   arrays -> | half 0 | half 1 | ---- meet ---- read what rank 1 left for me -> arrays
    rank 1   arrays -> | half 0 | half 1 | ---- meet ---- read what rank 0 left for me -> arrays

Pieces pass through blocks that live as long as the transport, and not out of the arrays themselves:
CUDA shares whole allocations only, and one must not be freed while another process has it open,
which no pool of memory promises. That is one more copy inside the GPU, the fastest of all. A rank
that arrives at a meeting has read all of the window before, so a half is free again after one more
window. Messages between two ranks are staged.
Source: CUDA C++ Programming Guide, "Interprocess Communication".
"""

import platform

import numpy

from ...comm.checks import starts_of
from ...comm.operations import ReductionOperation
from ...errors import DeviceError
from .device import SharedBlock, gpu_seat
from .levels import span_of, spans_of
from .swaps import HostSwapTransport

HALF_BYTES = 16 << 20
SMALL_BYTES = 64 << 10  # a smaller array is staged: two meetings cost more than its copies
_ALIGNMENT = 256
_MAX = ReductionOperation.MAX


def open_gpu_ipc(world, groups) -> None:
    """Give groups on one node the transport through blocks of GPU memory. Collective.

    Over the world. Where a rank cannot open a neighbor's memory, or reads something else there, its
    group stages its arrays, and rank 0 of it prints why.
    """
    for group in groups:
        if group.world_size > 1:
            blocks, problem = _open_blocks(group)
            if problem and group.rank == 0:
                group.say(
                    f'gpu_transport "ipc", group {group.group_key}: {problem}; GPU arrays are '
                    "staged through host memory"
                )
            if not problem:
                group.use_gpu_transport(IpcTransport(group, blocks))


def why_no_ipc(group) -> str:
    """Return why this group of several ranks cannot use it; "" if it can. Collective.

    The same on all ranks of the group.
    """
    blocks, problem = _open_blocks(group)
    if blocks is not None:
        IpcTransport(group, blocks).close()
    return problem


def _open_blocks(group):
    """Return (this rank's SharedBlock, with those of the others opened; "") or (None, why not).

    Collective; the reason is the same on all ranks.
    """
    block, problem = None, ""
    try:
        gpu_seat(group.local_rank)
        block = SharedBlock(2 * HALF_BYTES)
        block.fill(_pattern(group.rank))
    except DeviceError as error:
        problem = str(error)
    facts = group.all_gather_object((platform.node(), None if block is None else block.handle))
    if len({host for host, _ in facts}) > 1:
        problem = "its ranks are on several nodes"
    elif all(handle is not None for _, handle in facts):
        problem = _read_others(group, block, [handle for _, handle in facts])
    problem = next(filter(None, group.all_gather_object(problem)), "")
    if problem and block is not None:
        block.close()
    return (None if problem else block), problem


def _read_others(group, block, handles) -> str:
    """Open the others' blocks and compare what is there; return "" if all is well."""
    try:
        for rank, handle in enumerate(handles):
            if rank != group.rank:
                block.open(rank, handle)
                if block.look(rank) != _pattern(rank):
                    return (
                        f"rank {group.rank} reads something else in the GPU memory of rank {rank}"
                    )
    except DeviceError as error:
        return f"rank {group.rank}: {error}"
    return ""


def _pattern(rank: int) -> int:
    """Return a byte that no neighbor writes."""
    return (7 * rank + 1) % 256


class IpcTransport(HostSwapTransport):
    """One rank's end.

    block   of this rank, with the others' opened; it is closed with the transport
    """

    def __init__(self, group, block: SharedBlock):
        super().__init__(group)
        self._block = block
        self._half_bytes = block.num_bytes // 2
        self._num_windows = 0

    def takes(self, verb, num_bytes, dtype, op):
        if verb in ("all_reduce", "reduce_scatter"):
            return num_bytes >= SMALL_BYTES and self._is_tree(dtype, op)
        return (
            verb == "all_to_all" or verb in ("all_gather", "broadcast") and num_bytes >= SMALL_BYTES
        )

    def broadcast(self, port, root):
        piece = (port.address, port.num_bytes)
        nothing = (0, 0)
        is_root = self._group.rank == root
        incoming = [
            piece if rank == root and not is_root else nothing
            for rank in range(self._group.world_size)
        ]
        self._through_blocks([piece if is_root else nothing], incoming, port.num_bytes)

    def _gather(self, own, whole, counts):
        self._copies.finish_kernels()
        places = spans_of(whole, starts_of(counts), counts)
        source, target = span_of(own), places[self._group.rank][0]
        if source[0] != target:
            self._copies.begin_within(target, *source)
        self._through_blocks([source], places, max(size for _, size in places))

    def _swap_others(self, outgoing, incoming):
        longest = numpy.array([max(size for _, size in outgoing)], numpy.int64)
        self._group.channel.run("all_reduce", longest, _MAX)
        self._through_blocks(outgoing, incoming, int(longest[0]))

    def _through_blocks(self, outgoing, incoming, longest: int) -> None:
        """Move pieces through the blocks.

        outgoing   (address, bytes) for each rank, or one for all
        incoming   (address, bytes) from each rank
        longest    bytes, of any of all
        """
        slot = self._half_bytes // len(outgoing) // _ALIGNMENT * _ALIGNMENT
        # Where the others leave what is for this rank.
        mine = self._group.rank * slot if len(outgoing) > 1 else 0
        for first in range(0, longest, slot):
            half = self._num_windows % 2 * self._half_bytes
            self._num_windows += 1
            for place, (address, size) in enumerate(outgoing):
                self._copy(
                    self._block.address + half + place * slot, address + first, size - first, slot
                )
            self._copies.copied().wait()
            self._group.channel.run("barrier")
            for rank, (address, size) in enumerate(incoming):
                if rank != self._group.rank:
                    self._copy(
                        address + first, self._block.of_rank(rank) + half + mine, size - first, slot
                    )
            self._copies.copied().wait()

    def _copy(self, target, source, size, most):
        if size > 0:
            self._copies.begin_within(target, source, min(size, most))

    def close(self):
        """Close the transport. Collective over the group."""
        self._group.channel.run("barrier")  # no rank reads any more
        self._block.close_others()
        self._group.channel.run("barrier")  # no rank has it open any more
        self._block.close()
