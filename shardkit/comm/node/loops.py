"""The verbs on one node, as loops: each is a whole verb in one call of compiled code.

    begin       refuse if something listens to calls in Python; write the record (record.py)
    in heaps    arrays are read, and results written, where they lie: announce, meet, work, meet
    in slots    any arrays: a slot full is copied to the mailbox, all meet, all read; two slots, so
                that one meeting is enough
    end         write the time, count the call, its seconds and its bytes

A loop returns DONE; REFUSED, and nothing was done or sent; or, if it has waited long, a stage:
whoever called it lets MPI make progress and calls it again with that. It has no record then.

array, send, receive   flat, of any dtype: taken as bytes
places                 address of the starts of all slices in bytes, then of their lengths, int64
                       each; with a record there are none: slices are equal
kind                   place of the dtype in DTYPES
site                   who called, for the record; UNNOTED: there is none, or Python writes it
stage                  START, or where to go on

Sums are trees over the ranks (sums.py) in both ways. What all ranks must agree on is one number:
the bytes, and a code of verb, operation and dtype.
"""

from ...array.cpu.compiled import compiled
from ...array.cpu.notation import inlined_once
from .atomic import address_of, load, move_bytes, store
from .mailbox import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    BLOCK_BYTES,
    BROADCAST,
    DONE,
    END,
    FIRST_IN_SLOTS,
    IN_SLOTS_BYTES,
    MAILBOXES,
    NOT_SHARED,
    NOWHERE,
    NUM_RANKS,
    OPERATION_BITS,
    RANK,
    REDUCE_SCATTER,
    REFUSED,
    SCRATCH,
    SLOT_BYTES,
    SOURCES,
    START,
    UNNOTED,
    VERB_BITS,
    WORD_BYTES,
)
from .meeting import (
    all_have_come,
    arrive,
    find_arrays,
    find_slots,
    heap_offset,
    own_mailbox,
    slot_of,
)
from .record import begin, end, is_refused
from .streams import STREAM_BYTES, stream_bytes
from .sums import reduce_block

__all__ = ["all_gather", "all_reduce", "barrier", "broadcast", "reduce_scatter"]
LINE_BYTES = 64
CODE_BITS = 24
SECOND_MEETING = 2  # a stage in heaps; 1 is the first


@inlined_once
def signature_of(size, verb, op, kind):
    """Return what ranks must agree on."""
    return size << CODE_BITS | kind << VERB_BITS + OPERATION_BITS | op << VERB_BITS | verb


@inlined_once
def next_slot(table):
    """Return the address of the slot that this rank fills before it arrives."""
    mailbox = own_mailbox(table)
    return slot_of(mailbox, load(mailbox) + 1)


@inlined_once
def source_of(table, rank):
    """Return where find_arrays or find_slots found the array of this rank."""
    return load(own_mailbox(table) + SOURCES + rank * WORD_BYTES)


@inlined_once
def first_turn(stage):
    """Return with which slot full to begin or to go on."""
    return max(stage - FIRST_IN_SLOTS, 0)


@inlined_once
def reduce_blocks(table, start, num_bytes, into, op, kind, in_all):
    """So many bytes from `start` of all sources, reduced, to the address `into`; and into all
    sources, if `in_all`.
    """
    num_ranks = table[NUM_RANKS]
    sources = own_mailbox(table) + SOURCES
    scratch = own_mailbox(table) + SCRATCH
    for first in range(0, num_bytes, BLOCK_BYTES):
        count, at = min(BLOCK_BYTES, num_bytes - first), start + first
        reduce_block(sources, num_ranks, at, count, into + first, op, kind, scratch)
        if in_all:
            for rank in range(num_ranks):
                target = source_of(table, rank) + at
                if target != into + first:
                    move_bytes(target, into + first, count)


# ---- slices --------------------------------------------------------------------------------------


@inlined_once
def equal_places(table, count):
    """Write the places of equal slices into the table; return where."""
    ranks = table[NUM_RANKS]
    places = address_of(table) + (MAILBOXES + 2 * ranks) * WORD_BYTES
    for rank in range(ranks):
        store(places + rank * WORD_BYTES, rank * count)
        store(places + (ranks + rank) * WORD_BYTES, count)
    return places


@inlined_once
def start_of(places, rank):
    """Return where the slice of a rank begins."""
    return load(places + rank * WORD_BYTES)


@inlined_once
def count_of(places, rank, table):
    """Return how long the slice of a rank is."""
    return load(places + (table[NUM_RANKS] + rank) * WORD_BYTES)


@inlined_once
def longest_of(places, table):
    """Return how long the longest slice is."""
    longest = 0
    for rank in range(table[NUM_RANKS]):
        longest = max(longest, count_of(places, rank, table))
    return longest


@inlined_once
def are_apart(one, one_bytes, other, other_bytes):
    """Return True if the two have no byte in common."""
    return one + one_bytes <= other or other + other_bytes <= one or one_bytes == 0


@inlined_once
def own_lines(num_bytes, table):
    """Return where this rank's share begins, and its bytes: no cache line has two writers."""
    share = -(-num_bytes // (table[NUM_RANKS] * LINE_BYTES)) * LINE_BYTES
    start = min(table[RANK] * share, num_bytes)
    return start, min(share, num_bytes - start)


# ---- barrier -------------------------------------------------------------------------------------


@compiled
def barrier(table, site, stage):
    """Wait for all ranks."""
    began = UNNOTED
    if site != UNNOTED:
        if is_refused(table):
            return REFUSED
        began = begin(table, BARRIER, 0, site, 0, 0)
    if stage == START:
        arrive(table, BARRIER, NOWHERE)
    return end(table, began, DONE if all_have_come(table, BARRIER) else FIRST_IN_SLOTS)


# ---- reductions ----------------------------------------------------------------------------------


@compiled
def all_reduce(array, table, op, kind, site, stage):
    """Leave the reduction over ranks in the array."""
    address, num_bytes, began = address_of(array), array.nbytes, UNNOTED
    if site != UNNOTED:
        if is_refused(table):
            return REFUSED
        sent = 2 * (table[NUM_RANKS] - 1) * num_bytes // table[NUM_RANKS]
        began = begin(table, ALL_REDUCE, kind, site, num_bytes, sent)
    signature, ended = signature_of(num_bytes, ALL_REDUCE, op, kind), NOT_SHARED
    if stage < FIRST_IN_SLOTS and num_bytes > IN_SLOTS_BYTES:
        offset = heap_offset(address, num_bytes, table)
        start, count = own_lines(num_bytes, table)
        ended = reduce_in_heaps(
            offset, address + start, count, start, True, table, op, kind, signature, stage
        )
    if ended == NOT_SHARED:
        ended = all_reduce_in_slots(address, num_bytes, table, op, kind, signature, stage)
    return end(table, began, ended)


@inlined_once
def all_reduce_in_slots(address, num_bytes, table, op, kind, signature, stage):
    """Add a slot full after the other; every rank adds all of it."""
    for turn in range(first_turn(stage), max(1, -(-num_bytes // SLOT_BYTES))):
        first = turn * SLOT_BYTES
        count = min(SLOT_BYTES, num_bytes - first)
        if stage < FIRST_IN_SLOTS:
            move_bytes(next_slot(table), address + first, count)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return FIRST_IN_SLOTS + turn
        stage = START
        find_slots(table)
        reduce_blocks(table, 0, count, address + first, op, kind, False)
    return DONE


@compiled
def reduce_scatter(send, receive, places, table, op, kind, in_place, site, stage):
    """Leave the reduction of this rank's slice in `receive`.

    in_place  1: that may be its slice of `send`; with a record, which says so, or else refuses
    """
    own, own_bytes = address_of(receive), receive.nbytes
    whole, whole_bytes, began = address_of(send), send.nbytes, UNNOTED
    if site != UNNOTED:
        fits = own_bytes * table[NUM_RANKS] == whole_bytes and (
            are_apart(own, own_bytes, whole, whole_bytes)
            or (in_place != 0 and own == whole + table[RANK] * own_bytes)
        )
        if is_refused(table) or not fits:
            return REFUSED
        began = begin(table, REDUCE_SCATTER, kind, site, own_bytes, whole_bytes - own_bytes)
        places = equal_places(table, own_bytes)
    signature, ended = signature_of(whole_bytes, REDUCE_SCATTER, op, kind), NOT_SHARED
    if stage < FIRST_IN_SLOTS and whole_bytes > IN_SLOTS_BYTES:
        offset = heap_offset(whole, whole_bytes, table)
        start = start_of(places, table[RANK])
        ended = reduce_in_heaps(
            offset, own, own_bytes, start, False, table, op, kind, signature, stage
        )
    if ended == NOT_SHARED:
        ended = reduce_scatter_in_slots(
            whole, own, own_bytes, places, table, op, kind, signature, stage
        )
    return end(table, began, ended)


@inlined_once
def reduce_scatter_in_slots(whole, own, own_bytes, places, table, op, kind, signature, stage):
    """Add a window of every owner's slice at a time."""
    num_ranks = table[NUM_RANKS]
    window = SLOT_BYTES // (num_ranks * LINE_BYTES) * LINE_BYTES
    for turn in range(first_turn(stage), max(1, -(-longest_of(places, table) // window))):
        first = turn * window
        if stage < FIRST_IN_SLOTS:
            for owner in range(num_ranks):
                count = min(count_of(places, owner, table) - first, window)
                if count > 0:
                    place = whole + start_of(places, owner) + first
                    move_bytes(next_slot(table) + owner * window, place, count)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return FIRST_IN_SLOTS + turn
        stage = START
        find_slots(table)
        count = min(own_bytes - first, window)
        reduce_blocks(table, table[RANK] * window, count, own + first, op, kind, False)
    return DONE


@inlined_once
def reduce_in_heaps(offset, own, own_bytes, start, in_all, table, op, kind, signature, stage):
    """Add what begins at `start` and this rank owns, from the arrays of all; into all, if `in_all`.

    Its place in them may be `own`.
    """
    if stage == START:
        arrive(table, signature, offset)
    if stage < SECOND_MEETING:
        if not all_have_come(table, signature):
            return 1
        if not find_arrays(table):
            return NOT_SHARED
        reduce_blocks(table, start, own_bytes, own, op, kind, in_all)
        arrive(table, END, NOWHERE)
    return DONE if all_have_come(table, END) else SECOND_MEETING


# ---- movement ------------------------------------------------------------------------------------


@compiled
def all_gather(send, receive, places, table, kind, site, stage):
    """Leave the slices of all ranks in `receive`; `send` may be in its place there."""
    own, own_bytes = address_of(send), send.nbytes
    whole, whole_bytes = address_of(receive), receive.nbytes
    began = UNNOTED
    if site != UNNOTED:
        fits = own_bytes * table[NUM_RANKS] == whole_bytes and (
            own == whole + table[RANK] * own_bytes or are_apart(own, own_bytes, whole, whole_bytes)
        )
        if is_refused(table) or not fits:
            return REFUSED
        sent = (table[NUM_RANKS] - 1) * own_bytes
        began = begin(table, ALL_GATHER, kind, site, whole_bytes, sent)
        places = equal_places(table, own_bytes)
    signature, ended = signature_of(whole_bytes, ALL_GATHER, 0, 0), NOT_SHARED
    if stage == START:
        put_own(own, own_bytes, whole + start_of(places, table[RANK]))
    if stage < FIRST_IN_SLOTS and whole_bytes > IN_SLOTS_BYTES:
        ended = all_gather_in_heaps(own, own_bytes, whole, places, table, signature, stage)
    if ended == NOT_SHARED:
        ended = all_gather_in_slots(own, own_bytes, whole, places, table, signature, stage)
    return end(table, began, ended)


@inlined_once
def put_own(own, own_bytes, place):
    """Copy the slice to its place, unless it is there already."""
    if own_bytes and own != place:
        move_bytes(place, own, own_bytes)


@inlined_once
def all_gather_in_slots(own, own_bytes, whole, places, table, signature, stage):
    """Gather a slot full of every slice at a time."""
    for turn in range(first_turn(stage), max(1, -(-longest_of(places, table) // SLOT_BYTES))):
        first = turn * SLOT_BYTES
        if stage < FIRST_IN_SLOTS:
            count = min(own_bytes - first, SLOT_BYTES)
            if count > 0:
                move_bytes(next_slot(table), own + first, count)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return FIRST_IN_SLOTS + turn
        stage = START
        find_slots(table)
        for rank in range(table[NUM_RANKS]):
            count = min(count_of(places, rank, table) - first, SLOT_BYTES)
            if count > 0 and rank != table[RANK]:
                place = whole + start_of(places, rank) + first
                move_bytes(place, source_of(table, rank), count)
    return DONE


@inlined_once
def all_gather_in_heaps(own, own_bytes, whole, places, table, signature, stage):
    """Read the slices of the other ranks where they lie."""
    num_ranks = table[NUM_RANKS]
    if stage == START:
        place = whole + start_of(places, table[RANK])
        offset = heap_offset(own, own_bytes, table)
        arrive(table, signature, offset if offset != NOWHERE else heap_offset(place, 1, table))
    if stage < SECOND_MEETING:
        if not all_have_come(table, signature):
            return 1
        if not find_arrays(table):
            return NOT_SHARED
        is_large = signature >> CODE_BITS >= STREAM_BYTES
        for step in range(1, num_ranks):  # everybody begins with another neighbor
            rank = (table[RANK] + step) % num_ranks
            place, count = whole + start_of(places, rank), count_of(places, rank, table)
            if is_large:
                stream_bytes(place, source_of(table, rank), count)
            else:
                move_bytes(place, source_of(table, rank), count)
        arrive(table, END, NOWHERE)
    return DONE if all_have_come(table, END) else SECOND_MEETING


@compiled
def broadcast(array, root, table, kind, site, stage):
    """Leave the root's elements in the array: a slot full after the other."""
    began, address, num_bytes = UNNOTED, address_of(array), array.nbytes
    if site != UNNOTED:
        if is_refused(table) or root < 0 or root >= table[NUM_RANKS]:
            return REFUSED
        sent = (table[NUM_RANKS] - 1) * num_bytes if table[RANK] == root else 0
        began = begin(table, BROADCAST, kind, site, num_bytes, sent)
    signature = signature_of(num_bytes, BROADCAST, root, 0)
    for turn in range(first_turn(stage), max(1, -(-num_bytes // SLOT_BYTES))):
        first = turn * SLOT_BYTES
        count = min(num_bytes - first, SLOT_BYTES)
        if stage < FIRST_IN_SLOTS:
            if table[RANK] == root:
                move_bytes(next_slot(table), address + first, count)
            arrive(table, signature, NOWHERE)
        if not all_have_come(table, signature):
            return FIRST_IN_SLOTS + turn
        stage = START
        if table[RANK] != root:
            slot = slot_of(table[MAILBOXES + root], load(own_mailbox(table)))
            move_bytes(address + first, slot, count)
    return end(table, began, DONE)
