"""`python -m shardkit` imports nothing from the folder where it was started.

Python puts that folder in front of the standard library, so that a json.py beside the data would be
run. It is taken away before anything else is imported; what Python itself imports until then
(`python -v -m shardkit` lists it) can only be kept out by `python -P -m`, or by the command
`shardkit`. This file imports nothing that could come from there.
"""

import os
import sys
from importlib import import_module

_PROGRAM = "shardkit"
_LOOK_FOR_OTHERS = "copy", "pathlib", "pickle", "subprocess"  # for org, nt, _winapi, msvcrt


def leave_working_folder() -> None:
    """Take the working folder from sys.path, if this program began as `python -m shardkit`."""
    if _is_program() and not sys.flags.safe_path and sys.path:
        if os.path.realpath(sys.path[0] or ".") == os.path.realpath("."):
            del sys.path[0]


def look_for_other_systems() -> None:
    """Import those parts of the standard library that look for what other systems than Linux have.

    All ranks need them. The rest of shardkit is imported when it is used (public.py); by then a
    program may have added folders of its own to sys.path, in which they would look too.
    """
    for name in _LOOK_FOR_OTHERS:
        import_module(name)


def _is_program() -> bool:
    """Return True if the command line has -m shardkit, alone or behind another -m."""
    words = sys.orig_argv
    for before, word in zip(words, words[1:]):
        is_option = before.startswith("-") and not before.startswith("--")
        if is_option and before.endswith("m") and word == _PROGRAM:
            return True
    return f"-m{_PROGRAM}" in words
