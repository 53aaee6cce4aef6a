"""Tasks: what a run trains. `train` knows the contract in task.py alone."""

from ..public import import_names

__all__ = import_names(
    __name__,
    {
        "task": "Task",
    },
)
