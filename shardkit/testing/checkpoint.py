"""checkpoint: stores, images, files of tensors, and the tools that read them."""

from . import open_door

ROOM = "shardkit.checkpoint"
NAMES = {
    "": "Checkpoint CheckpointStore find_checkpoint",
    "background": "Snapshot _Task",
    "candidates": "Candidates",
    "choice": "checked_choice",
    "find": "find_description",
    "fit": "Wanted",
    "format.description": "storable",
    "format.files": "checksum",
    "format.manifest": "read_manifest write_manifest",
    "format.parts": "TensorCut Summary are_whole fingerprint range_of runs_of tables_of",
    "format.reads": "READERS Reader",
    "format.stored": "SEGMENT_BYTES StoredBox num_segments",
    "format.tabled": "TabledBoxes",
    "format.tables": "FileTable encoded table_bytes",
    "image": "image_of read_image",
    "models": "gpt_of",
    "names": "CodeNames",
    "pretrained.adapter": "SETTINGS_NAME TENSORS_NAME",
    "pretrained.families": "FAMILIES configuration_of read_configuration",
    "pretrained.folder": "TransformersFolder",
    "pretrained.safetensors": "read_header write_tensors",
    "sources": "find_model",
    "tools.convert": "from_safetensors to_adapter to_safetensors",
    "tools.describe": "describe",
    "tools.diff": "compare comparison_text",
    "values": "DataReader DataWriter",
}
MODULES = {
    "companions": "format.companions",
    "diff": "tools.diff",
    "files": "format.files",
    "manifest": "format.manifest",
    "rank_file": "rank_file",
    "saving": "saving",
    "store": "store",
    "tabled": "format.tabled",
}

open_door(__name__)
