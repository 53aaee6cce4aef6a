"""Many files at once: where a shared file system takes a millisecond to open one, threads wait for
a dozen of them together.

    128 files | thread 0: every 16th | thread 1: ... | thread 15 |     then the next 128

What no thread has read, since it could not start at the end of the interpreter say, the caller
reads by itself.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

AT_ONCE = 128  # files whose content is held
FILES_PER_THREAD = 8  # of these; so few are read without a thread


def read_each(read: Callable[[Any], Any], paths: list) -> Iterator[Any]:
    """Yield read(path) of each path, in order; what it raises, it raises here.

    read   called in several threads, and again for a path of which it raised in one
    """
    for start in range(0, len(paths), AT_ONCE):
        part = paths[start : start + AT_ONCE]
        found = _read_together(read, part)
        for path in part:
            yield found.pop(path) if path in found else read(path)


def _read_together(read: Callable[[Any], Any], part: list) -> dict:
    """Return {path: what threads have read}, perhaps not of all."""
    found: dict = {}
    num_threads = -(-len(part) // FILES_PER_THREAD)
    threads = [
        Thread(target=_read_into, args=(found, read, part[first::num_threads]), daemon=True)
        for first in range(1, num_threads)
    ]
    started = [thread for thread in threads if _has_started(thread)]
    _read_into(found, read, part[::num_threads])
    for thread in started:
        thread.join()
    return found


def _read_into(found: dict, read: Callable[[Any], Any], paths: list) -> None:
    for path in paths:
        with suppress(OSError):  # read again, and raised, where it is heard
            found[path] = read(path)


def _has_started(thread: Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, or there may be no more threads
        return False
    return True
