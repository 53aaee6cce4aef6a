"""The files that stand in no room: errors, the environment, settings, trees, plain values."""

from . import open_door

ROOM = "shardkit"
NAMES = {
    "environment": (
        "allocation_end batch_job environment_without_launcher gpu_aware_mpi launched_ranks "
        "launcher"
    ),
    "errors": "CorpusError DeviceMemoryError InputError LaunchError PeerError",
    "forks": "disown is_of_parent own",
    "plain": "plain unboxed",
    "public": "resting",
    "settings": "PATHS as_section fixed read_toml",
    "tree": "LEAF is_tree leaves map_tree named_leaves num_samples rebuild rows structure",
}
MODULES = {"errors": "errors"}

open_door(__name__)
