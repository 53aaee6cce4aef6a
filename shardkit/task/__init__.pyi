# Written by packaging/stubs.py, from the table in __init__.py.
from .task import Task as Task
