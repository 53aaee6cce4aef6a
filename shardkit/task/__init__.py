"""Tasks: what a run trains. `train` knows the contract in task.py alone."""

from .task import Task

__all__ = ["Task"]
