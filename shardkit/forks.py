"""Processes that this one forks: they have a copy of what it owns, and own nothing of it.

    rank 1 --fork--> child      has the files, memory and place in MPI of rank 1: a verb that it
                                called would answer for rank 1

So what acts for a process, as a backend, a hook at its end or a connection does, is noted here when
it is made, and leaves in a child what is its parent's.
"""

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

_own: WeakKeyDictionary[Any, Callable[[Any], None] | None] = WeakKeyDictionary()
_of_parent: WeakSet[Any] = WeakSet()


def own(thing: Any, leave: Callable[[Any], None] | None = None) -> None:
    """Note that this process owns it, and the processes that it forks do not.

    leave   function (thing) that such a process calls at once
    """
    _own[thing] = leave


def disown(thing: Any) -> None:
    """Note that processes that are forked from now on may do with it what this one may."""
    _own.pop(thing, None)


def is_of_parent(thing: Any) -> bool:
    """Return True if this process was forked from one that owns it."""
    return thing in _of_parent


def _begin() -> None:
    owned = list(_own.items())
    _own.clear()
    for thing, leave in owned:
        _of_parent.add(thing)
        if leave is not None:
            leave(thing)


os.register_at_fork(after_in_child=_begin)
