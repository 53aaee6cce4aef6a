"""Ranks that wait in shutdown() tell the others of their node which calls they have made.

    rank 0   shutdown(), its last call on the world 17   closing-<communicator>-00000 {"world": 17}
    rank 1   in call 18 on the world                     reads that rank 0 will never come there

A file of the job's folder, for as long as the rank waits. Of two communicators that a thread has
opened, one is closed while the other waits for the thread; so it tells of its calls on both, and a
rank that waits looks for files of all that it has opened itself: where it is missed too.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident

from ...files.removing import remove_file
from ...files.writers import read_trusted
from ...files.writing import write_whole
from .attendance import attendance

Calls = dict[str, int]  # {group key: collective calls for which nobody needs this rank any more}
# {communicator: the thread that opened it, its calls so far}
_open: dict[int, tuple[int, Callable[[], Calls]]] = {}


def note_open(communicator: int, calls: Callable[[], Calls]) -> None:
    """Note a communicator that this thread has opened; it is the same number on all its ranks."""
    _open[communicator] = get_ident(), calls


def note_closed(communicator: int) -> None:
    """Note that a communicator is closed."""
    _open.pop(communicator, None)


@contextmanager
def closing(communicator: int) -> Iterator[None]:
    """Enclose waiting for the others of a communicator that this rank closes."""
    path = _path(communicator, attendance().rank)
    if path is None:
        yield
        return
    told = {number: _open[number][1]() for number in _beside(communicator)}
    with suppress(OSError):  # a full disk: nobody is told
        write_whole(path, pickle.dumps(told))
    try:
        yield
    finally:
        remove_file(path)


def calls_before_closing(communicator: int, rank: int) -> Calls | None:
    """Return the calls of a rank that closes this communicator, or another one that this thread has
    opened as well; None of one that does not, or elsewhere.
    """
    for number in _beside(communicator):
        path = _path(number, rank)
        content = None if path is None else read_trusted(path)
        told = {} if content is None else pickle.loads(content)
        if communicator in told:
            return told[communicator]
    return None


def _beside(communicator: int) -> list[int]:
    """Return a communicator, and the others that this thread has opened."""
    here = get_ident()
    known = list(_open.items())
    others = [number for number, (thread, _) in known if thread == here]
    return list(dict.fromkeys((communicator, *others)))


def _path(communicator: int, rank: int) -> Path | None:
    folder = attendance().folder
    return None if folder is None else folder / f"closing-{communicator:08x}-{rank:05d}"
