"""Ranks that wait in shutdown() tell the others of their node which calls they have made.

    rank 0   shutdown(), its last call on the world 17   closing-<communicator>-00000 {"world": 17}
    rank 1   in call 18 on the world                     reads that rank 0 will never come there

A file of the job's folder, for as long as the rank waits.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...files.removing import remove_file
from ...files.writers import read_trusted
from ...files.writing import write_whole
from .attendance import attendance


@contextmanager
def closing(communicator: int, calls: dict[str, int]) -> Iterator[None]:
    """Enclose waiting for the others of a communicator that this rank closes.

    communicator   its number, the same on all its ranks
    calls          {group key: collective calls for which nobody needs this rank any more}
    """
    path = _path(communicator, attendance().rank)
    if path is None:
        yield
        return
    with suppress(OSError):  # a full disk: nobody is told
        write_whole(path, pickle.dumps(calls))
    try:
        yield
    finally:
        remove_file(path)


def calls_before_closing(communicator: int, rank: int) -> dict[str, int] | None:
    """Return the calls of a rank that is closing(); None of one that is not, or elsewhere."""
    path = _path(communicator, rank)
    content = None if path is None else read_trusted(path)
    return None if content is None else pickle.loads(content)


def _path(communicator: int, rank: int) -> Path | None:
    folder = attendance().folder
    return None if folder is None else folder / f"closing-{communicator:08x}-{rank:05d}"
