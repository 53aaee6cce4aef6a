# Written by packaging/stubs.py, from the table in __init__.py.
from .examination import examine as examine
from .finding import (
    Finding as Finding,
    as_json as as_json,
    as_text as as_text,
    exit_code as exit_code,
)
