"""Work that a rank does alone, while the others wait for it in a verb.

backend.work()                     after each piece: the others wait from here on
with native_work(backend, 3600):   a thread says so, around one call of native code
wait_until(backend, is_done, 0)    sleep until rank 0 has done something, and be watched
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..annotations import FilePath
from .backend import CommunicationBackend

_POLL_SECONDS, _NOTE_SECONDS = 0.1, 0.25


@contextmanager
def native_work(backend: CommunicationBackend, seconds: float) -> Iterator[None]:
    """Inside, a thread notes that this rank gets on: for one call of native code, which cannot.

    A process that is stopped is noticed all the same.
    seconds   after which nothing is noted any more
    """
    ended, began = threading.Event(), time.monotonic()

    def note_native_work():
        while not ended.wait(_NOTE_SECONDS) and time.monotonic() - began < seconds:
            backend.work()

    backend.work()
    thread = threading.Thread(target=note_native_work, name="shardkit at work", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_until(backend: CommunicationBackend, is_done: Callable[[], bool], rank: int) -> None:
    """Wait until something is done that another rank brings about without a message.

    Sleeps meanwhile: a rank that waits in MPI would take a core. Watched as a verb is.
    is_done   function (), called several times a second
    """
    progress = backend.progress
    progress.begin_message("wait", backend.group_key, (backend.world_ranks[rank],))
    try:
        while not is_done():
            time.sleep(_POLL_SECONDS)
    except BaseException:
        progress.fail()
        raise
    progress.end()


@contextmanager
def ledger_in(backend: CommunicationBackend, folder: FilePath) -> Iterator[None]:
    """Inside, the ledger of a rank that is watched is kept in a folder that all ranks see.

    folder   made if it is missing; it may be removed afterwards
    """
    before = backend.ledger_folder
    if before is None:
        yield
        return
    backend.keep_ledger(folder)
    try:
        yield
    finally:
        backend.keep_ledger(before)
