"""Mailboxes: for each rank of a group a place in its own heap that the ranks of its node read.

    | arrivals, two signatures, two offsets | a rank sleeps | a nap |      written by this rank
    | slot 0 of arrival 2k | slot 1 of arrival 2k+1 |                      written by this rank
    | sources, scratch |                                                   for this rank alone

Only numbers: Numba, which the loops on mailboxes need, is loaded when the first of them runs.
"""

import numpy

WORD_BYTES = 8
SIGNATURE, OFFSET = 8, 24  # two words each, after the count of arrivals
SLEEPERS = 64  # on a cache line of its own: 1 if a rank sleeps until this one arrives
NAP = 128  # a struct timespec: how long at most
SLOTS, SLOT_BYTES = 4096, 1 << 18
SOURCES = SLOTS + 2 * SLOT_BYTES  # where the neighbors' arrays are
MAX_LEVELS, BLOCK_BYTES = 12, 8192  # of the tree over ranks, 4096 of them; what is added in one go
SCRATCH = SOURCES + (1 << MAX_LEVELS) * WORD_BYTES
MAILBOX_BYTES = SCRATCH + (1 + MAX_LEVELS) * BLOCK_BYTES
NAP_NANOSECONDS = 1_000_000
NOWHERE = -1  # the offset of an array that is in no heap

# What a loop knows about its group, in one array of int64: these, the addresses of all mailboxes,
# then of all heaps, then room for the places of slices.
NUM_RANKS, RANK, SPINS, YIELDS, NAPS, HEAP, HEAP_BYTES = range(7)
# For verbs that take the whole call (noted.py): whether they may; addresses of Names.place, of the
# group's tally, of Traffic.of_loops; names for the ledger; a struct timespec.
IS_OPEN, PLACE, TALLY, TRAFFIC, GROUP_NAME, CLOCK = range(7, 13)
VERB_NAMES, DTYPE_NAMES, ITEM_BYTES, MAILBOXES = 14, 19, 24, 29
DTYPES = "fdilB"  # that are added here: NumPy's characters
SPIN_TURNS = 4000
YIELD_TURNS = 200
NAP_TURNS = 2

START = DONE = 0  # stages of a loop: the first ones are in heaps, all others in slots
FIRST_IN_SLOTS = 3
NOT_SHARED, REFUSED = -1, -2  # an array is in no heap; the loop does not make this call
UNNOTED = -1  # the place of a caller whose call is in no record
BARRIER, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, END = range(6)
NUM_VERBS = END
VERB_BITS, OPERATION_BITS = 4, 4  # of the code that ranks must agree on
IN_SLOTS_BYTES = 2048  # up to here copying to a slot costs less than meeting a second time
SUM, PRODUCT, MIN, MAX = range(4)


def new_mailbox(heap):
    """Return the mailbox of a rank that has not arrived anywhere yet, in its heap.

    None if the heap is full.
    """
    mailbox = heap.empty(MAILBOX_BYTES, "uint8")
    if mailbox is not None:
        mailbox[:SLOTS] = 0
        mailbox[NAP + WORD_BYTES : NAP + 2 * WORD_BYTES].view("int64")[:] = NAP_NANOSECONDS
    return mailbox


def table_of(
    rank: int, mailboxes: list[int], heaps: list[int], heap_bytes: int, *, has_cores: bool
):
    """Return the table of a group, for its loops. Lists: of addresses in this process, by rank.

    has_cores  False: more ranks than cores, so that a spin keeps others from arriving
    """
    spins = SPIN_TURNS if has_cores else 0
    return numpy.array(
        [
            len(mailboxes),
            rank,
            spins,
            YIELD_TURNS,
            NAP_TURNS,
            heaps[rank],
            heap_bytes,
            *[0] * (ITEM_BYTES - IS_OPEN),
            *(numpy.dtype(char).itemsize for char in DTYPES),
            *mailboxes,
            *heaps,
            *[0] * (2 * len(mailboxes)),
        ],
        numpy.int64,
    )
