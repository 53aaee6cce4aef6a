"""Whose turn it is to read many ledgers: one rank looks for all that wait for the same.

    look-5a1f0c3e    "17 204"    rank 17 looks, and has said so 204 times
                     "17 204"    still, after a while: rank 17 has gone, and another one looks

Otherwise each rank of a large group would read the ledgers of all others, again and again.
"""

import time
import zlib
from contextlib import suppress
from pathlib import Path

from ...files.reading import MOST_TABLE_BYTES, read_bytes
from ...files.writing import make_empty, write_whole
from .folder import LOOK_NAME
from .hang import idle_since
from .pulse import beat_seconds

FEW_RANKS = 64  # each of so few reads the ledgers of the others
MOST_PATIENCE_SECONDS = 30.0


class Idle:
    """Looks for ranks in no call that note no work, while all that work do; one rank for all.

    folder   of the ledgers; None: there are none
    """

    def __init__(self, folder, rank: int, world_size: int):
        self._folder, self._world_size = folder, world_size
        self._turn = Turn(folder, rank)
        self._next_look = 0.0

    def ranks(self, limit: float) -> str:
        """Return those that got nowhere for the limit, in words; "" if none did. Often called."""
        now = time.monotonic()
        if self._folder is None or now < self._next_look:
            return ""
        self._next_look = now + beat_seconds(limit)
        if not self._turn.is_mine("work", self._world_size, limit):
            return ""
        with suppress(OSError):
            return idle_since(self._folder, time.time() - limit)
        return ""


class Turn:
    """The turns of one rank.

    folder   of the ledgers; None: there are none
    """

    def __init__(self, folder, rank: int):
        self._folder = None if folder is None else Path(folder)
        self._sign = b"%d " % rank
        self._said = 0
        self._seen: dict[str, tuple[bytes, float]] = {}  # of others, and when it was new

    def is_mine(self, purpose: str, num_ranks: int, limit: float) -> bool:
        """Return True if this rank is to look, which says so by asking again and again.

        purpose     the same on all ranks that would do for each other
        num_ranks   whose ledgers are read
        limit       seconds that a call may take: who is silent for a part of it has gone
        """
        if self._folder is None or num_ranks <= FEW_RANKS:
            return True
        path = self._folder / LOOK_NAME.format(zlib.crc32(purpose.encode()))
        try:
            if not _is_made(path) and self._others_have(
                path, min(MOST_PATIENCE_SECONDS, limit / 4)
            ):
                return False
            self._said += 1
            write_whole(path, self._sign + b"%d" % self._said)
        except OSError:  # a full disk: each rank looks
            pass
        return True

    def _others_have(self, path: Path, patience: float) -> bool:
        """Return True if another rank has the turn, and has said so lately."""
        content, now = read_bytes(path, MOST_TABLE_BYTES), time.monotonic()
        said, since = self._seen.get(path.name, (b"", now))
        since = since if content == said else now
        self._seen[path.name] = content, since
        return not content.startswith(self._sign) and now - since <= patience


def _is_made(path: Path) -> bool:
    """Make an empty file; return False if it is there already."""
    try:
        make_empty(path)
    except FileExistsError:
        return False
    return True
