# Written by packaging/stubs.py, from the table in __init__.py.
from .page import page_of as page_of
from .run import (
    RunRecord as RunRecord,
    read_run_folder as read_run_folder,
)
from .text import describe_run as describe_run
