"""report: what a page and a text say about a run."""

from . import open_door

ROOM = "shardkit.report"
NAMES = {"": "describe_run page_of read_run_folder", "timeline": "predicted_of read_timeline"}

open_door(__name__)
