"""coupling: records, their order, buffers, and statistics."""

from . import open_door

ROOM = "shardkit.coupling"
MODULES = {"attendant": "attendant"}
NAMES = {
    "buffers": "open_buffer",
    "desk": "NOTE_TAG RECORD_TAG NoteDesk",
    "embedding": "EmbeddedCoupling NATIVE array_at compiler_flags",
    "moments": "FieldMoments added from_stored moments_of to_stored",
    "receiving": "Receiver",
    "records": "RecordMemory RecordForm header_of",
    "sides": "Options PutOrder Sides",
}

open_door(__name__)
