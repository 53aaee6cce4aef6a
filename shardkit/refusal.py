"""Values that one rank makes wrong are refused on all ranks.

A rank that raised alone would keep the others waiting. So where several ranks run a program, a
value that was made wrong keeps its error, which is raised where all ranks use it together:

    rank 0   AdamW(lr=0.1) --> ShardingConfiguration --> FSDPModel: rank 1: lr = -1; wanted ...
    rank 1   AdamW(lr=-1), which keeps its error ------> FSDPModel: rank 1: lr = -1; wanted ...
"""

import os
import traceback
from collections.abc import Callable
from contextvars import ContextVar

from .environment import launched_ranks
from .errors import ConfigurationError
from .plain import unboxed

_PACKAGE = os.path.dirname(__file__)
_num_ranks: ContextVar[int | None] = ContextVar("shardkit_num_ranks", default=None)


def run_beside(num_ranks: int) -> None:
    """Note that this thread is one of so many ranks."""
    _num_ranks.set(num_ranks)


def check_made(value, check: Callable[[], None], num_ranks: int | None = None) -> None:
    """Check a value that has been made; among several ranks its error waits for check_usable().
    Numbers and text in it become Python's own first, so that they can be stored (plain.py).

    num_ranks   that will use it together; None: those of this program
    Errors, with one rank: those of the check, and of the values that this one holds.
    """
    for name, own in vars(value).items():
        meant = _unboxed(own)
        if meant is not own:
            object.__setattr__(value, name, meant)
    try:
        check_usable(*vars(value).values())
        check()
    except ConfigurationError as error:
        if (num_ranks or _num_ranks.get() or launched_ranks() or 1) == 1:
            raise
        if not hasattr(error, "__notes__"):  # else a value that this one holds has said where
            error.add_note(f"{type(value).__name__} was made at {_place()}")
        object.__setattr__(value, "refusal", error)


def _unboxed(own):
    if type(own) is dict:
        changed = {name: unboxed(each) for name, each in own.items()}
        return changed if any(changed[name] is not own[name] for name in own) else own
    return unboxed(own)


def check_usable(*values) -> None:
    """Raise the error that one of these values, or of a tuple of them, keeps."""
    for value in values:
        refusal = getattr(value, "__dict__", {}).get("refusal")
        if isinstance(refusal, ConfigurationError):
            raise refusal
        if isinstance(value, tuple):
            check_usable(*value)


def _place() -> str:
    """Return the file and line of the nearest caller outside of this package."""
    callers = reversed(traceback.extract_stack())
    outside = (c for c in callers if not c.filename.startswith((_PACKAGE, "<string>")))
    caller = next(outside)
    return f"{caller.filename}:{caller.lineno}"
