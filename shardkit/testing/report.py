"""report: what a page and a text say about a run."""

from . import open_door

ROOM = "shardkit.report"
NAMES = {
    "": "describe_run describe_sweep page_of page_of_sweep read_run_folder read_sweep",
    "timeline": "predicted_of read_timeline",
}

open_door(__name__)
