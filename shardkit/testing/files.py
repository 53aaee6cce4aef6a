"""files: reading, writing and removing, owned folders, notes, trust."""

from . import open_door

ROOM = "shardkit.files"
NAMES = {
    "folders": "files_below",
    "arrays": "npy_array npz_arrays",
    "claims": "claimed",
    "notes": "MOST_BYTES Notes Screen read_note settle_output tell",
    "ownership": "OWNER_NAME Owner Ownership",
    "paths": "usable_path",
    "programs": "find_program import_folders python_command this_python",
    "reading": "checked_bytes loaded mapped open_regular read_bytes read_json read_toml understood",
    "removing": "FILE clear_folder few remove_file remove_folder remove_trial",
    "shown": "is_plain shown",
    "trust": "LIBRARIES Trust import_file is_class_of known",
    "writing": (
        "check_can_write fresh_file give_name move_file open_new open_to_append whole_file "
        "write_whole"
    ),
}
MODULES = {
    "claims": "claims",
    "notes": "notes",
    "ownership": "ownership",
    "packing": "packing",
    "removing": "removing",
    "writers": "writers",
    "writing": "writing",
}

open_door(__name__)
