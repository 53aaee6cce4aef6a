"""Tasks: what a run trains. `train` knows the contract in task.py alone."""

from ..public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, {".": "transforms", "task": "Task"})
