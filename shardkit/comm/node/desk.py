"""What ranks of one node have to read of each other: a desk in its own heap for each rank of a
group.

    | arrivals, two signatures, two offsets | somebody sleeps | a nap | slot 0      | slot 1      | sources, scratch |
      written by this rank, read by all                                 arrival 2k    arrival 2k+1   for this rank alone

Only numbers: Numba, which the loops on desks need, is loaded when the first of them runs.
"""

import numpy

WORD_BYTES = 8
SIGNATURE, OFFSET = 8, 24  # two words each, after the count of arrivals
SLEEPERS = 64  # on a cache line of its own: 1 if somebody sleeps until the rank arrives
NAP = 128  # a struct timespec: how long at most
SLOTS, SLOT_BYTES = 4096, 1 << 18
SOURCES = SLOTS + 2 * SLOT_BYTES  # where the neighbors' arrays are
MAX_LEVELS, BLOCK_BYTES = 12, 8192  # of the tree over ranks, 4096 of them; what is added at once
SCRATCH = SOURCES + (1 << MAX_LEVELS) * WORD_BYTES
DESK_BYTES = SCRATCH + (1 + MAX_LEVELS) * BLOCK_BYTES
NAP_NANOSECONDS = 1_000_000
NOWHERE = -1  # the offset of an array that is in no heap

# What a loop knows about its group, in one array of int64: these, the addresses of all desks, then
# of all heaps.
NUM_RANKS, RANK, SPINS, YIELDS, NAPS, HEAP, HEAP_BYTES, DESKS = range(8)
SPIN_TURNS, YIELD_TURNS, NAP_TURNS = 4000, 200, 2

DONE, NOT_SHARED = 0, -1  # what a loop returns instead of a stage to resume at
BARRIER, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, END = range(6)
SUM, PRODUCT, MIN, MAX = range(4)


def new_desk(heap):
    """The desk of a rank that has not arrived anywhere yet, in its heap; None if that is full."""
    desk = heap.empty(DESK_BYTES, "uint8")
    if desk is not None:
        desk[:SLOTS] = 0
        desk[NAP + WORD_BYTES : NAP + 2 * WORD_BYTES].view("int64")[:] = NAP_NANOSECONDS
    return desk


def table_of(rank: int, desks: list[int], heaps: list[int], heap_bytes: int, *, has_cores: bool):
    """The table of a group, for its loops. Lists: of addresses in this process, by rank.

    has_cores  False: more ranks than cores, so that a spin keeps others from coming
    """
    spins = SPIN_TURNS if has_cores else 0
    return numpy.array(
        [len(desks), rank, spins, YIELD_TURNS, NAP_TURNS, heaps[rank], heap_bytes, *desks, *heaps],
        numpy.int64,
    )
