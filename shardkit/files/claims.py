"""Work that one process does for all that want its result, a file: who does it has a claim.

    NAME.claim     beside the file, locked (flock) by the process that makes it

The lock ends with the process, so the claim of a dead one is the next one's at once. Where a file
system has no locks, or its folder cannot be written to, every process does the work by itself; so
it does after WAIT_SECONDS, whatever became of the other. No process waits for ever.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .removing import remove_file

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.02
Result = TypeVar("Result")


@contextmanager
def claimed(
    paths: Sequence[Path],
    find: Callable[[], Result | None],
) -> Iterator[Result | None]:
    """Enclose the making of a file by one of several processes: what another has made, or None.

        with claimed(paths, find) as found:
            if found is None: make the file

    paths   where the file may be, the best first: the claim is in the first folder that takes it
    find    function () that returns what is in the file; None as long as it is not there
    """
    with ExitStack() as claims:
        yield _claimed_or_found(paths, find, claims)


def _claimed_or_found(paths, find, claims):
    """Return what was found, or None: then this process has the claim, if any could be taken."""
    deadline = time.monotonic() + WAIT_SECONDS
    for path in paths:
        try:
            while (claim := _Claim.take(path)) is None:
                if (found := find()) is not None or time.monotonic() > deadline:
                    return found
                time.sleep(POLL_SECONDS)
        except OSError:
            continue
        claims.callback(claim.release)
        return find()  # it may have been made between two looks
    return None


@dataclass(frozen=True)
class _Claim:
    """A file that is open, and locked."""

    path: Path
    file: int

    @classmethod
    def take(cls, path: Path) -> "_Claim | None":
        """Return the claim for this path; None if another process has it. Errors: OSError."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        name = path.with_name(f"{path.name}.claim")
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(name), os.fstat(file)):
                return cls(name, file)
        except (BlockingIOError, FileNotFoundError):  # the one before has removed it
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    def release(self) -> None:
        """Let the next process have it."""
        with suppress(OSError):
            remove_file(self.path)
        os.close(self.file)
