"""task: the tasks that shardkit brings, and how one is found."""

from . import open_door

ROOM = "shardkit.task"
NAMES = {
    "described": "Described",
    "generation": "Sample write_texts",
    "given": "ArraySamples as_samples parts_of task_of",
    "language": "Language",
    "load": "BUILT_IN absolute_task load_task",
    "streaming": "TextStream continuation until",
    "table": "TableMLP described_on",
}
MODULES = {"architectures": "architectures", "images": "images", "survey": "survey"}

open_door(__name__)
