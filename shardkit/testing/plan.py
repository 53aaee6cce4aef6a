"""plan: shapes, clusters, memory and seconds that are planned."""

from . import open_door

ROOM = "shardkit.plan"
NAMES = {
    "": (
        "MIXED MLPShape ModelShape RunLayout SHARDKIT SHARDKIT_BF16 known_clusters known_programs "
        "memory_of rank_memory read_cluster read_run search software_named step_cost why_not"
    ),
    "activations": "block_bytes",
    "band": "BEYOND KNOWN OWN RESIDUALS TUNED UNKNOWN band_of bands",
    "calibration": "fitted measured_steps",
    "collectives": "ALL_GATHER ALL_REDUCE REDUCE_SCATTER RankGroup SEND collective_seconds",
    "hardware": "SwitchLevel",
    "hardware_file": "FOLDER cluster_from",
    "measure_collectives": "LARGE_BYTES row_of",
    "memory": "NORM_BLOCK",
    "operations": "Setting block_seconds elements_around",
    "overlap": "slowest_of",
    "report": "PlannedTraining print_search",
    "settings": "left_out others_software settings_of software_of",
    "shape": "Share cuts_of",
    "software": "PROGRAMS Software in_float8",
    "stages": "blocks_per_stage stage_units",
    "timeline": "PipelineRun StageSeconds",
    "whole_run": "Interruptions interruptions_of",
    "windows": "seen_part",
}
MODULES = {
    "collectives_measured": "measure_collectives",
    "measured": "measure",
    "runtime_measured": "measure_runtime",
    "search_module": "search",
    "software_module": "software",
}

open_door(__name__)
