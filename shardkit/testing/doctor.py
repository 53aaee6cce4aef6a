"""doctor: findings, and the judges of what was measured."""

from . import open_door

ROOM = "shardkit.doctor"
NAMES = {
    "": "Finding as_json as_text exit_code",
    "files": "check_folder check_python_files",
    "finding": "error ok warning",
    "gpus": "check_gpus",
    "machine": "check_products",
    "mpi": "_judge_trial",
    "network": "_judge",
}
MODULES = {"files": "files"}

open_door(__name__)
