"""train: runs by settings, their folders, logs and stops."""

from . import open_door

ROOM = "shardkit.train"
NAMES = {
    "": "bench_run train_run",
    "advice": "advise",
    "choice": "kept_blas measured_seconds products_of_layers products_of_step",
    "evaluation": "TrainedRun evaluate",
    "folder": "fallback_place has_checkpoints stored_settings stored_task task_of_run",
    "keeping": "KeptFolder",
    "log": "duration_text read_metrics seconds_text",
    "loop": "prepare_run",
    "model": "make_model",
    "prediction": "check_output predict",
    "ranks": "bits_text check_batch",
    "resuming": "changes schedule_line told_settings",
    "saves": "CheckpointNews",
    "settings": "Parallel Run configuration_of first_settings resumed settled with_steps",
    "stopping": "Clock end_of_slurm_job",
    "terminal": "console_of output_of_launcher",
    "tracking": "_known_id make_tracker",
    "validation": "Validation",
}
MODULES = {
    "agreement": "agreement",
    "choice": "choice",
    "folder": "folder",
    "loop": "loop",
    "stopping": "stopping",
    "terminal": "terminal",
    "tracking": "tracking",
}

open_door(__name__)
