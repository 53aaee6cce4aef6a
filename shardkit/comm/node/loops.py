"""The verbs on one node, as loops. Each returns DONE, a stage to be resumed at, or NOT_SHARED: an
array is in no heap.

    in heaps     arrays are read, and results written, where they lie: announce, meet, work, meet
    in slots     any arrays: a slot full is copied to the mailbox, all meet, all read; two slots, so
                 that one meeting is enough

Sums are trees over the ranks (sums.py) in both ways. array, send, receive are flat; starts and
counts are int64 [ranks]. code: verb, operation and dtype, which together with the size is what all
ranks must agree on.
"""

from ...array.cpu.compiled import compiled, inlined
from .atomic import address_of, load, move_bytes
from .mailbox import (
    ALL_GATHER,
    BLOCK_BYTES,
    BROADCAST,
    DONE,
    END,
    MAILBOXES,
    NOT_SHARED,
    NOWHERE,
    NUM_RANKS,
    RANK,
    SCRATCH,
    SLOT_BYTES,
    SOURCES,
    WORD_BYTES,
)
from .meeting import (
    all_have_come,
    arrive,
    find_arrays,
    find_slots,
    heap_offset,
    meet,
    offset_of,
    own_mailbox,
    slot_of,
)
from .streams import STREAM_BYTES, stream_bytes
from .sums import reduce_block

__all__ = [
    "all_gather_in_heaps",
    "all_gather_in_slots",
    "all_reduce_in_heaps",
    "all_reduce_in_slots",
    "broadcast_in_slots",
    "meet",
    "reduce_scatter_in_heaps",
    "reduce_scatter_in_slots",
]
LINE_BYTES = 64
CODE_BITS = 24


@inlined
def next_slot(table):
    """Return the address of the slot that this rank fills before it arrives."""
    mailbox = own_mailbox(table)
    return slot_of(mailbox, load(mailbox) + 1)


@inlined
def source_of(table, rank):
    """Return where find_arrays or find_slots found the array of this rank."""
    return load(own_mailbox(table) + SOURCES + rank * WORD_BYTES)


@inlined
def reduce_blocks(table, start, size, into, like, op, in_all):
    """`size` elements from `start` (bytes) of all sources, reduced, to the address `into`; and into
    all sources, if `in_all`.
    """
    num_ranks = table[NUM_RANKS]
    sources = own_mailbox(table) + SOURCES
    scratch = own_mailbox(table) + SCRATCH
    in_block = BLOCK_BYTES // like.itemsize
    for first in range(0, size, in_block):
        count, at = min(in_block, size - first), first * like.itemsize
        reduce_block(sources, num_ranks, start + at, count, into + at, like, op, scratch)
        if in_all:
            for rank in range(num_ranks):
                target = source_of(table, rank) + start + at
                if target != into + at:
                    move_bytes(target, into + at, count * like.itemsize)


# ---- reductions ----------------------------------------------------------------------------------


@compiled
def all_reduce_in_slots(array, table, op, code, stage):
    """Add a slot full after the other; every rank adds all of it."""
    signature = array.size << CODE_BITS | code
    address = address_of(array)
    item_bytes = array.itemsize
    in_slot = SLOT_BYTES // item_bytes
    for turn in range(max(stage - 1, 0), max(1, -(-array.size // in_slot))):
        first = turn * in_slot
        count = min(in_slot, array.size - first)
        if stage == 0:
            move_bytes(next_slot(table), address + first * item_bytes, count * item_bytes)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return turn + 1
        stage = 0
        find_slots(table)
        reduce_blocks(table, 0, count, address + first * item_bytes, array, op, False)
    return DONE


@compiled
def all_reduce_in_heaps(array, table, op, code, stage):
    """Add this rank's slice, and write it into the arrays of all.

    Slices are whole cache lines: none has two writers.
    """
    signature = array.size << CODE_BITS | code
    address = address_of(array)
    item_bytes = array.itemsize
    if stage == 0:
        arrive(table, signature, offset_of(array, table))
    if stage <= 1:
        if not all_have_come(table, signature):
            return 1
        if not find_arrays(table):
            return NOT_SHARED
        line = max(LINE_BYTES // item_bytes, 1)
        shard = -(-array.size // (table[NUM_RANKS] * line)) * line
        first = min(table[RANK] * shard, array.size)
        count, start = min(shard, array.size - first), first * item_bytes
        reduce_blocks(table, start, count, address + start, array, op, True)
        arrive(table, END, NOWHERE)
    return DONE if all_have_come(table, END) else 2


@compiled
def reduce_scatter_in_slots(send, receive, starts, counts, table, op, code, stage):
    """Add a window of every owner's slice at a time."""
    signature = send.size << CODE_BITS | code
    num_ranks = table[NUM_RANKS]
    rank = table[RANK]
    item_bytes = send.itemsize
    window, longest = SLOT_BYTES // item_bytes // num_ranks, 0
    for owner in range(num_ranks):
        longest = max(longest, counts[owner])
    for turn in range(max(stage - 1, 0), max(1, -(-longest // window))):
        first = turn * window
        if stage == 0:
            for owner in range(num_ranks):
                count = min(counts[owner] - first, window)
                if count > 0:
                    move_bytes(
                        next_slot(table) + owner * window * item_bytes,
                        address_of(send) + (starts[owner] + first) * item_bytes,
                        count * item_bytes,
                    )
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return turn + 1
        stage = 0
        find_slots(table)
        count = min(counts[rank] - first, window)
        reduce_blocks(
            table,
            rank * window * item_bytes,
            count,
            address_of(receive) + first * item_bytes,
            send,
            op,
            False,
        )
    return DONE


@compiled
def reduce_scatter_in_heaps(send, receive, start, table, op, code, stage):
    """Add the slice that begins at `start` and that this rank owns, from the arrays of all.

    Its place in them may be `receive`.
    """
    signature = send.size << CODE_BITS | code
    if stage == 0:
        arrive(table, signature, offset_of(send, table))
    if stage <= 1:
        if not all_have_come(table, signature):
            return 1
        if not find_arrays(table):
            return NOT_SHARED
        reduce_blocks(
            table, start * send.itemsize, receive.size, address_of(receive), send, op, False
        )
        arrive(table, END, NOWHERE)
    return DONE if all_have_come(table, END) else 2


# ---- movement, in bytes; own, whole: addresses ---------------------------------------------------


@inlined
def put_own(own, own_bytes, place):
    """Copy the slice to its place, unless it is there already."""
    if own_bytes and own != place:
        move_bytes(place, own, own_bytes)


@compiled
def all_gather_in_slots(own, own_bytes, whole, whole_bytes, starts, counts, table, stage):
    """Gather a slot full of every slice at a time."""
    signature = whole_bytes << CODE_BITS | ALL_GATHER
    num_ranks = table[NUM_RANKS]
    longest = 0
    if stage == 0:
        put_own(own, own_bytes, whole + starts[table[RANK]])
    for rank in range(num_ranks):
        longest = max(longest, counts[rank])
    for turn in range(max(stage - 1, 0), max(1, -(-longest // SLOT_BYTES))):
        first = turn * SLOT_BYTES
        if stage == 0:
            count = min(own_bytes - first, SLOT_BYTES)
            if count > 0:
                move_bytes(next_slot(table), own + first, count)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return turn + 1
        stage = 0
        find_slots(table)
        for rank in range(num_ranks):
            count = min(counts[rank] - first, SLOT_BYTES)
            if count > 0 and rank != table[RANK]:
                move_bytes(whole + starts[rank] + first, source_of(table, rank), count)
    return DONE


@compiled
def all_gather_in_heaps(own, own_bytes, whole, whole_bytes, starts, counts, table, stage):
    """Read the slices of the other ranks where they lie."""
    signature, num_ranks = whole_bytes << CODE_BITS | ALL_GATHER, table[NUM_RANKS]
    if stage == 0:
        place = whole + starts[table[RANK]]
        put_own(own, own_bytes, place)
        offset = heap_offset(own, table) if own_bytes else 0
        arrive(table, signature, offset if offset != NOWHERE else heap_offset(place, table))
    if stage <= 1:
        if not all_have_come(table, signature):
            return 1
        if not find_arrays(table):
            return NOT_SHARED
        for step in range(1, num_ranks):  # everybody begins with another neighbor
            rank = (table[RANK] + step) % num_ranks
            if whole_bytes < STREAM_BYTES:
                move_bytes(whole + starts[rank], source_of(table, rank), counts[rank])
            else:
                stream_bytes(whole + starts[rank], source_of(table, rank), counts[rank])
        arrive(table, END, NOWHERE)
    return DONE if all_have_come(table, END) else 2


@compiled
def broadcast_in_slots(address, num_bytes, root, table, stage):
    """Send a slot full after the other."""
    signature = num_bytes << CODE_BITS | root << 4 | BROADCAST
    for turn in range(max(stage - 1, 0), max(1, -(-num_bytes // SLOT_BYTES))):
        first = turn * SLOT_BYTES
        count = min(num_bytes - first, SLOT_BYTES)
        if stage == 0:
            if table[RANK] == root:
                move_bytes(next_slot(table), address + first, count)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return turn + 1
        stage = 0
        if table[RANK] != root:
            move_bytes(
                address + first,
                slot_of(table[MAILBOXES + root], load(own_mailbox(table))),
                count,
            )
    return DONE
