"""How the ranks of a group on one node meet: each counts its arrivals in a word that the others
read (desk.py).

A rank writes slot and signature, then counts up. It goes on once every other has counted as far,
with the same signature: so nobody can be more than one arrival ahead, and what an arrival left is
overwritten two arrivals later, when all have read it. A rank that calls something else has another
signature, and is waited for like one that has not come: the watchdog tells who it is.

Whoever waits spins first, if every rank has a core; then lets others have the core; then sleeps. A
loop that has waited long
returns a stage to be resumed at, since between two tries MPI must be called: a neighbor may wait
for a message of ours.
"""

from ...array.cpu.compiled import compiled, inlined
from .atomic import address_of, doze, load, relax, store, wake, yield_core
from .desk import (
    BARRIER,
    DESKS,
    DONE,
    HEAP,
    HEAP_BYTES,
    NAPS,
    NOWHERE,
    NUM_RANKS,
    OFFSET,
    RANK,
    SIGNATURE,
    SLOT_BYTES,
    SLOTS,
    SOURCES,
    SPINS,
    WORD_BYTES,
    YIELDS,
)


@inlined
def own_desk(table):
    """Its address."""
    return table[DESKS + table[RANK]]


@inlined
def slot_of(desk, number):
    """The address of the slot of this arrival."""
    return desk + SLOTS + (number & 1) * SLOT_BYTES


@inlined
def arrive(table, signature, offset):
    """Count one more arrival; the slot has been written. Returns its number."""
    desk = own_desk(table)
    number = load(desk) + 1
    at = desk + (number & 1) * WORD_BYTES
    store(at + SIGNATURE, signature)
    store(at + OFFSET, offset)
    store(desk, number)
    wake(desk)
    return number


@inlined
def has_come(desk, number, signature):
    """True if the rank of this desk is there, for the same call."""
    return load(desk) >= number and load(desk + SIGNATURE + (number & 1) * WORD_BYTES) == signature


@inlined
def is_in_time(desk, number, signature, table):
    """Wait until the rank has come; False if that takes long."""
    for _ in range(table[SPINS]):
        if has_come(desk, number, signature):
            return True
        relax()
    for _ in range(table[YIELDS]):
        if has_come(desk, number, signature):
            return True
        yield_core()
    for _ in range(table[NAPS]):
        if has_come(desk, number, signature):
            return True
        doze(desk, number)
    return has_come(desk, number, signature)


@inlined
def all_have_come(table, signature):
    """Wait until every rank has come to the arrival that this one counted last; False if that takes
    long.
    """
    number = load(own_desk(table))
    for rank in range(table[NUM_RANKS]):
        if not is_in_time(table[DESKS + rank], number, signature, table):
            return False
    return True


@inlined
def offset_of(array, table):
    """Where the array begins in this rank's heap; NOWHERE if it is elsewhere, and nobody asks where
    an empty one is.
    """
    if array.size == 0:
        return 0
    return heap_offset(address_of(array), table)


@inlined
def heap_offset(address, table):
    """The same of an address."""
    offset = address - table[HEAP]
    return offset if 0 <= offset < table[HEAP_BYTES] else NOWHERE


@inlined
def find_arrays(table):
    """Write to SOURCES where the array is that each rank came with; False if one is in no heap."""
    num_ranks, number, sources = table[NUM_RANKS], load(own_desk(table)), own_desk(table) + SOURCES
    for rank in range(num_ranks):
        offset = load(table[DESKS + rank] + OFFSET + (number & 1) * WORD_BYTES)
        if offset == NOWHERE:
            return False
        store(sources + rank * WORD_BYTES, table[DESKS + num_ranks + rank] + offset)
    return True


@inlined
def find_slots(table):
    """Write to SOURCES where the slots are that each rank came with."""
    number, sources = load(own_desk(table)), own_desk(table) + SOURCES
    for rank in range(table[NUM_RANKS]):
        store(sources + rank * WORD_BYTES, slot_of(table[DESKS + rank], number))


@compiled
def meet(table, stage):
    """A barrier."""
    if stage == 0:
        arrive(table, BARRIER, NOWHERE)
    return DONE if all_have_come(table, BARRIER) else 1
