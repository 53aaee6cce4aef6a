"""What a loop writes of its own call: its record in the ledger, its count, seconds and bytes."""

from ...array.cpu.notation import external, inlined_once, intrinsic, ir, types
from ..watch.ledger import (
    NUM_RECORDS,
    PLACE_IS_FREE,
    PLACE_NUMBER,
    PLACE_RING,
    RECORD_BYTES,
    offset_of,
)
from ..watch.progress import NANOSECONDS, NUM_CALLS
from ..watch.pulse import RECORD_FIELDS
from .atomic import address_of, load, store
from .mailbox import (
    BARRIER,
    CLOCK,
    DONE,
    DTYPE_NAMES,
    GROUP_NAME,
    IS_OPEN,
    ITEM_BYTES,
    NUM_VERBS,
    PLACE,
    TALLY,
    TRAFFIC,
    UNNOTED,
    VERB_NAMES,
    WORD_BYTES,
)

# Where the fields of a record are. Loops write whole words: of two fields in one, the later one
# is shifted.
NUMBER, NUMBER_ON_GROUP, VERB, GROUP, DTYPE, SITE, COUNT, BEGAN, ENDED = (
    offset_of(field) for field, _ in RECORD_FIELDS
)
GROUP_BITS, SITE_BITS = 8 * (GROUP - VERB), 8 * (SITE - DTYPE)
assert GROUP_BITS == SITE_BITS == 4 * WORD_BYTES
_MONOTONIC = 1
_clock = external("clock_gettime", "int32", "int32", "int64")


@intrinsic
def bits_of(typing, number):
    """Return the bits of a float64 as an integer."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


@inlined_once
def nanoseconds(table):
    """Return the time of the monotonic clock."""
    _clock(_MONOTONIC, address_of(table) + CLOCK * WORD_BYTES)
    return table[CLOCK] * 1_000_000_000 + table[CLOCK + 1]


@inlined_once
def is_refused(table):
    """Return True if the call must be made in Python: the group is closed, or somebody listens."""
    return table[IS_OPEN] == 0 or load(table[PLACE] + PLACE_IS_FREE * WORD_BYTES) == 0


@inlined_once
def record_of(table):
    """Return the address of the last record; 0 if no ledger is open."""
    place = table[PLACE]
    ring = load(place + PLACE_RING * WORD_BYTES)
    number = load(place + PLACE_NUMBER * WORD_BYTES)
    return ring + number % NUM_RECORDS * RECORD_BYTES if ring != 0 else 0


@inlined_once
def add(address, number):
    """Add to the 8 bytes there."""
    store(address, load(address) + number)


@inlined_once
def begin(table, verb, kind, site, num_bytes, sent):
    """Record that a call begins; return its time in nanoseconds.

    num_bytes, sent   of the array that it is about, and what it sends; a barrier has neither
    """
    began = nanoseconds(table)
    at = table[PLACE] + PLACE_NUMBER * WORD_BYTES
    number = load(at) + 1
    store(at, number)
    record = record_of(table)
    if record != 0:
        store(record + ENDED, 0)
        store(record + NUMBER, number)
        store(record + NUMBER_ON_GROUP, load(table[TALLY] + NUM_CALLS * WORD_BYTES) + 1)
        store(record + VERB, table[GROUP_NAME] << GROUP_BITS | table[VERB_NAMES + verb])
        carries = verb != BARRIER
        name = table[DTYPE_NAMES + kind] if carries else 0
        store(record + DTYPE, site << SITE_BITS | name)
        store(record + COUNT, num_bytes // table[ITEM_BYTES + kind] if carries else -1)
        store(record + BEGAN, bits_of(began * 1e-9))
    if verb != BARRIER:
        add(table[TRAFFIC] + verb * WORD_BYTES, sent)
        add(table[TRAFFIC] + (NUM_VERBS + verb) * WORD_BYTES, 1)
    return began


@inlined_once
def end(table, began, stage):
    """Record the end of a call whose begin is recorded, if it has ended; return the stage."""
    if stage == DONE and began != UNNOTED:
        ended = nanoseconds(table)
        record = record_of(table)
        if record != 0:
            store(record + ENDED, bits_of(ended * 1e-9))
        add(table[TALLY] + NUM_CALLS * WORD_BYTES, 1)
        add(table[TALLY] + NANOSECONDS * WORD_BYTES, ended - began)
    return stage
