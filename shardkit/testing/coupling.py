"""coupling: records, their order, buffers, and statistics."""

from . import open_door

ROOM = "shardkit.coupling"
MODULES = {"attendant": "attendant"}
NAMES = {
    "buffers": "open_buffer",
    "embedding": "EmbeddedCoupling NATIVE array_at compiler_flags",
    "moments": "FieldMoments added from_stored moments_of to_stored",
    "records": "Record RecordForm header_of",
    "sides": "PutOrder",
}

open_door(__name__)
