"""Processes that a rank forks: they are no ranks.

    rank 1 --fork--> child      has the files, memory and place in MPI of rank 1: a verb that it
                                called would answer for rank 1

So in a child the backends of its parent carry nothing, and say why.
"""

import os
from typing import Any
from weakref import WeakSet

_open: WeakSet[Any] = WeakSet()  # backends of several ranks
_of_parent: WeakSet[Any] = WeakSet()


def note(backend) -> None:
    """Note a backend that forked processes must leave alone."""
    _open.add(backend)


def is_of_parent(backend) -> bool:
    """Return True if this process was forked while the backend was open."""
    return backend in _of_parent


def _leave() -> None:
    for backend in list(_open):
        if backend.is_initialized:
            backend.use(None)
            _of_parent.add(backend)
    _open.clear()


os.register_at_fork(after_in_child=_leave)
