"""Verbs that are one call into compiled code, with their record in the ledger.

    begin    write the record (watch/ledger.py); refuse if something listens to calls in Python
    meet, move, add                    the loops of loops.py, for arrays that are plain
    end      write the time, count the call, its seconds and its bytes

Each returns DONE; REFUSED, and nothing was done or sent; or where to go on: the stage of the loop
in heaps, or FIRST_IN_SLOTS and the stage of the loop in slots. Who goes on also ends the record: so
a rank that waits long does that in Python, where the watchdog sees it.
"""

import numpy

from ...array.cpu.compiled import compiled
from ...array.cpu.notation import external, inlined, intrinsic, ir, types
from ..watch.ledger import NUM_RECORDS, PLACE_IS_FREE, PLACE_NUMBER, PLACE_RING, RECORD_BYTES
from ..watch.progress import NANOSECONDS, NUM_CALLS
from .atomic import address_of, load, store
from .loops import (
    all_gather_in_heaps,
    all_gather_in_slots,
    all_reduce_in_heaps,
    all_reduce_in_slots,
    broadcast_in_slots,
    meet,
    reduce_scatter_in_heaps,
    reduce_scatter_in_slots,
)
from .mailbox import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    BEGAN,
    BROADCAST,
    CLOCK,
    DONE,
    DTYPE_NAMES,
    DTYPES,
    ENDED,
    FIRST_IN_SLOTS,
    GROUP_NAME,
    IN_SLOTS_BYTES,
    IS_OPEN,
    MAILBOXES,
    NOT_SHARED,
    NUM_RANKS,
    NUM_VERBS,
    OPERATION_BITS,
    PLACE,
    RANK,
    REDUCE_SCATTER,
    REFUSED,
    TALLY,
    TRAFFIC,
    VERB_BITS,
    VERB_NAMES,
    WORD_BYTES,
)

_MONOTONIC = 1
_clock = external("clock_gettime", "int32", "int32", "int64")


@intrinsic
def dtype_number(typing, array):
    """Return the place of the array's dtype in DTYPES."""
    number = DTYPES.index(numpy.dtype(array.dtype.name).char)

    def build(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(64), number)

    return types.int64(array), build


@intrinsic
def bits_of(typing, number):
    """Return the bits of a float64 as an integer."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


@inlined
def nanoseconds(table):
    """Return the time of the monotonic clock."""
    _clock(_MONOTONIC, address_of(table) + CLOCK * WORD_BYTES)
    return table[CLOCK] * 1_000_000_000 + table[CLOCK + 1]


@inlined
def is_refused(table):
    """Return True if the call must be made in Python: the group is closed, or somebody listens."""
    return table[IS_OPEN] == 0 or load(table[PLACE] + PLACE_IS_FREE * WORD_BYTES) == 0


@inlined
def record_of(table):
    """Return the address of the last record; 0 if no ledger is open."""
    place = table[PLACE]
    ring = load(place + PLACE_RING * WORD_BYTES)
    number = load(place + PLACE_NUMBER * WORD_BYTES)
    return ring + number % NUM_RECORDS * RECORD_BYTES if ring != 0 else 0


@inlined
def add(address, number):
    """Add to the 8 bytes there."""
    store(address, load(address) + number)


@inlined
def begin(table, verb, dtype_name, site, count, num_bytes):
    """Record that a call begins, which sends so many bytes; return its time in nanoseconds."""
    began = nanoseconds(table)
    at = table[PLACE] + PLACE_NUMBER * WORD_BYTES
    number = load(at) + 1
    store(at, number)
    record = record_of(table)
    if record != 0:
        store(record + ENDED * WORD_BYTES, 0)
        store(record, number)
        store(record + WORD_BYTES, load(table[TALLY] + NUM_CALLS * WORD_BYTES) + 1)
        store(record + 2 * WORD_BYTES, table[GROUP_NAME] << 32 | table[VERB_NAMES + verb])
        store(record + 3 * WORD_BYTES, site << 32 | dtype_name)
        store(record + 4 * WORD_BYTES, count)
        store(record + BEGAN * WORD_BYTES, bits_of(began * 1e-9))
    if verb != BARRIER:
        add(table[TRAFFIC] + verb * WORD_BYTES, num_bytes)
        add(table[TRAFFIC] + (NUM_VERBS + verb) * WORD_BYTES, 1)
    return began


@inlined
def end(table, began, stage):
    """Record that the call has ended, if it has; return the stage."""
    if stage == DONE:
        ended = nanoseconds(table)
        record = record_of(table)
        if record != 0:
            store(record + ENDED * WORD_BYTES, bits_of(ended * 1e-9))
        add(table[TALLY] + NUM_CALLS * WORD_BYTES, 1)
        add(table[TALLY] + NANOSECONDS * WORD_BYTES, ended - began)
    return stage


@inlined
def equal_parts(table, count):
    """Return starts and counts of equal parts, one per rank; they lie in the table."""
    ranks = table[NUM_RANKS]
    first = MAILBOXES + 2 * ranks
    for rank in range(ranks):
        table[first + rank] = rank * count
        table[first + ranks + rank] = count
    return table[first : first + ranks], table[first + ranks : first + 2 * ranks]


@inlined
def in_slots(stage):
    """Return the stage of a loop in slots as these verbs return it."""
    return stage if stage == DONE else FIRST_IN_SLOTS + stage


@inlined
def code_of(verb, op, kind):
    """Return the code of a reduction, as loops take it."""
    return verb | op << VERB_BITS | kind << VERB_BITS + OPERATION_BITS


# ---- verbs: array, send, receive are 1-D ---------------------------------------------------------


@compiled
def barrier(table, site):
    """Wait for all ranks."""
    if is_refused(table):
        return REFUSED
    began = begin(table, BARRIER, 0, site, -1, 0)
    return end(table, began, in_slots(meet(table, 0)))


@compiled
def all_reduce(array, table, op, site):
    """Leave the reduction over ranks in the array."""
    if is_refused(table):
        return REFUSED
    kind = dtype_number(array)
    code = code_of(ALL_REDUCE, op, kind)
    sent = 2 * (table[NUM_RANKS] - 1) * array.nbytes // table[NUM_RANKS]
    began = begin(table, ALL_REDUCE, table[DTYPE_NAMES + kind], site, array.size, sent)
    stage = NOT_SHARED
    if array.nbytes > IN_SLOTS_BYTES:
        stage = all_reduce_in_heaps(array, table, op, code, 0)
    if stage == NOT_SHARED:
        stage = in_slots(all_reduce_in_slots(array, table, op, code, 0))
    return end(table, began, stage)


@compiled
def broadcast(array, root, table, site):
    """Leave the root's elements in the array."""
    if is_refused(table) or root < 0 or root >= table[NUM_RANKS]:
        return REFUSED
    name = table[DTYPE_NAMES + dtype_number(array)]
    sent = (table[NUM_RANKS] - 1) * array.nbytes if table[RANK] == root else 0
    began = begin(table, BROADCAST, name, site, array.size, sent)
    stage = in_slots(broadcast_in_slots(address_of(array), array.nbytes, root, table, 0))
    return end(table, began, stage)


@inlined
def are_apart(one, one_bytes, other, other_bytes):
    """Return True if the two have no byte in common."""
    return one + one_bytes <= other or other + other_bytes <= one or one_bytes == 0


@compiled
def reduce_scatter(send, receive, table, op, in_place, site):
    """Leave the reduction of this rank's slice, one of equal ones, in `receive`.

    in_place  1: that may be its slice of `send`
    """
    own, own_bytes = address_of(receive), receive.nbytes
    whole = address_of(send)
    place = whole + table[RANK] * own_bytes
    fits = receive.size * table[NUM_RANKS] == send.size and (
        are_apart(own, own_bytes, whole, send.nbytes) or (in_place != 0 and own == place)
    )
    if is_refused(table) or not fits:
        return REFUSED
    kind = dtype_number(send)
    code = code_of(REDUCE_SCATTER, op, kind)
    name, sent = table[DTYPE_NAMES + kind], send.nbytes - own_bytes
    began = begin(table, REDUCE_SCATTER, name, site, receive.size, sent)
    starts, counts = equal_parts(table, receive.size)
    stage = NOT_SHARED
    if send.nbytes > IN_SLOTS_BYTES:
        start = starts[table[RANK]]
        stage = reduce_scatter_in_heaps(send, receive, start, table, op, code, 0)
    if stage == NOT_SHARED:
        stage = in_slots(reduce_scatter_in_slots(send, receive, starts, counts, table, op, code, 0))
    return end(table, began, stage)


@compiled
def all_gather(send, receive, table, site):
    """Leave the equal slices of all ranks in `receive`; `send` may be in its place there."""
    own, own_bytes = address_of(send), send.nbytes
    whole = address_of(receive)
    fits = send.size * table[NUM_RANKS] == receive.size and (
        own == whole + table[RANK] * own_bytes or are_apart(own, own_bytes, whole, receive.nbytes)
    )
    if is_refused(table) or not fits:
        return REFUSED
    name = table[DTYPE_NAMES + dtype_number(send)]
    sent = (table[NUM_RANKS] - 1) * own_bytes
    began = begin(table, ALL_GATHER, name, site, receive.size, sent)
    starts, counts = equal_parts(table, own_bytes)
    whole_bytes = receive.nbytes
    stage = NOT_SHARED
    if whole_bytes > IN_SLOTS_BYTES:
        stage = all_gather_in_heaps(own, own_bytes, whole, whole_bytes, starts, counts, table, 0)
    if stage == NOT_SHARED:
        stage = in_slots(
            all_gather_in_slots(own, own_bytes, whole, whole_bytes, starts, counts, table, 0)
        )
    return end(table, began, stage)
