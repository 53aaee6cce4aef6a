"""coupling: records, their order, buffers, and statistics."""

from . import open_door

ROOM = "shardkit.coupling"
MODULES = {"attendant": "attendant"}
NAMES = {
    "buffers": "open_buffer",
    "moments": "FieldMoments added from_stored moments_of to_stored",
    "records": "RecordForm header_of",
    "sides": "PutOrder",
}

open_door(__name__)
