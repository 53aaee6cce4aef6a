"""How the ranks of a group on one node meet: each counts its arrivals in its mailbox.

A rank writes slot and signature, then counts up. It goes on once every other has counted as far,
with the same signature: so no rank can be more than one arrival ahead, and what an arrival left is
overwritten two arrivals later, when all have read it. A rank that calls something else has another
signature, and is waited for like one that has not come: the watchdog reports which it is.

A rank that waits spins first, if every rank has a core; then lets others have the core; then
sleeps. A loop that has waited long returns a stage to be resumed at, since between two tries MPI
must be called: a neighbor may wait for a message of ours.
"""

from ...array.cpu.notation import inlined_once
from .atomic import doze, load, relax, store, wake, yield_core
from .mailbox import (
    HEAP,
    HEAP_BYTES,
    MAILBOXES,
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


@inlined_once
def own_mailbox(table):
    """Return the address of this rank's mailbox."""
    return table[MAILBOXES + table[RANK]]


@inlined_once
def slot_of(mailbox, number):
    """Return the address of the slot of this arrival."""
    return mailbox + SLOTS + (number & 1) * SLOT_BYTES


@inlined_once
def arrive(table, signature, offset):
    """Count one more arrival; the slot has been written. Returns its number."""
    mailbox = own_mailbox(table)
    number = load(mailbox) + 1
    at = mailbox + (number & 1) * WORD_BYTES
    store(at + SIGNATURE, signature)
    store(at + OFFSET, offset)
    store(mailbox, number)
    wake(mailbox)
    return number


@inlined_once
def has_come(mailbox, number, signature):
    """Return True if the rank of this mailbox is there, for the same call."""
    return (
        load(mailbox) >= number
        and load(mailbox + SIGNATURE + (number & 1) * WORD_BYTES) == signature
    )


@inlined_once
def is_in_time(mailbox, number, signature, table):
    """Wait until the rank has come; False if that takes long."""
    for _ in range(table[SPINS]):
        if has_come(mailbox, number, signature):
            return True
        relax()
    for _ in range(table[YIELDS]):
        if has_come(mailbox, number, signature):
            return True
        yield_core()
    for _ in range(table[NAPS]):
        if has_come(mailbox, number, signature):
            return True
        doze(mailbox, number)
    return has_come(mailbox, number, signature)


@inlined_once
def all_have_come(table, signature):
    """Wait until every rank has come to the last arrival of this one.

    Return False if that takes long.
    """
    number = load(own_mailbox(table))
    for rank in range(table[NUM_RANKS]):
        if not is_in_time(table[MAILBOXES + rank], number, signature, table):
            return False
    return True


@inlined_once
def heap_offset(address, num_bytes, table):
    """Return where an array begins in this rank's heap; NOWHERE if it is elsewhere.

    Where an empty one is does not matter.
    """
    offset = address - table[HEAP] if num_bytes else 0
    return offset if 0 <= offset < table[HEAP_BYTES] else NOWHERE


@inlined_once
def find_arrays(table):
    """Write to SOURCES where the array is that each rank brought.

    Return False if one is in no heap.
    """
    num_ranks = table[NUM_RANKS]
    number = load(own_mailbox(table))
    sources = own_mailbox(table) + SOURCES
    for rank in range(num_ranks):
        offset = load(table[MAILBOXES + rank] + OFFSET + (number & 1) * WORD_BYTES)
        if offset == NOWHERE:
            return False
        store(sources + rank * WORD_BYTES, table[MAILBOXES + num_ranks + rank] + offset)
    return True


@inlined_once
def find_slots(table):
    """Write to SOURCES where the slots are that each rank brought."""
    number, sources = load(own_mailbox(table)), own_mailbox(table) + SOURCES
    for rank in range(table[NUM_RANKS]):
        store(sources + rank * WORD_BYTES, slot_of(table[MAILBOXES + rank], number))
