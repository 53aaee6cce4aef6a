# Written by packaging/stubs.py, from the table in __init__.py.
from . import transforms as transforms
from .task import Task as Task
