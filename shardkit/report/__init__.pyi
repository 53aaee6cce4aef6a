# Written by packaging/stubs.py, from the table in __init__.py.
from .page import (
    page_of as page_of,
    page_of_sweep as page_of_sweep,
)
from .run import (
    RunRecord as RunRecord,
    read_run_folder as read_run_folder,
)
from .sweep import (
    describe_sweep as describe_sweep,
    is_sweep as is_sweep,
    read_sweep as read_sweep,
)
from .text import describe_run as describe_run
