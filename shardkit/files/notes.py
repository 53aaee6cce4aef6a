"""Notes: lines and small files that a program writes down beside its work, and that never end it.

    work --line--> waiting, the newest MiB --as the place takes them--> metrics.jsonl, logs, stdout
                      |_ one warning that names the place, and a line when all is written again

A place that takes nothing (a full disk, a quota, a file system that became read-only, a reader that
left or stands still) is tried again with later lines, and at the end. Nothing here raises OSError,
or waits for a reader longer than a moment.
"""

import errno
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import FileError
from .reading import read_bytes
from .shown import shown
from .writing import open_to_append, write_whole

MOST_BYTES = 1 << 20  # that wait for one place
MOST_READ_BYTES = 1 << 30  # of a file
RETRY_SECONDS = 1.0  # between two tries of a place that took nothing
READER_SECONDS = 2.0  # that a pipe is given before its reader counts as one who stands still
_ATOMIC_BYTES = 4096  # that a pipe which is ready takes without waiting (pipe(7))


def tell(text: str) -> None:
    """Write a line to standard error, if that takes it."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    rest = f"shardkit: {shown(text)}\n".encode(encoding, "backslashreplace")
    with suppress(OSError, AttributeError):  # no stream at all
        while rest:
            rest = rest[_write_some(sys.stderr, rest, READER_SECONDS) :]


class Backlog:
    """Pieces on their way to one place, in their order. Any thread may add.

    name   of the place, for warnings
    send   function (pieces) -> how many of them it took whole, the first ones. It may shorten the
           next one by what it took of that, and raises OSError if it took nothing
    """

    def __init__(self, name: str, send: Callable[[list[bytes]], int]):
        self._name, self._send = name, send
        self._lock = threading.RLock()
        self._waiting: list[bytes] = []
        self._num_late = self._num_lost = 0  # since the place takes nothing
        self._next_try = 0.0
        self.failure: str | None = None  # why the place takes nothing now

    def add(self, piece: bytes) -> None:
        """Send this piece after all that wait, now or later."""
        with self._lock:
            self._waiting.append(piece)
            self._drop_oldest()
            self.retry()

    def retry(self) -> None:
        """Send what waits, if the last try in vain was long enough ago."""
        if self._waiting and time.monotonic() >= self._next_try:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        with self._lock:
            try:
                while self._waiting:
                    num_sent = self._send(self._waiting)
                    del self._waiting[:num_sent]
            except OSError as error:
                self._fail(error)
            else:
                self._recover()

    def close(self) -> None:
        """Send what waits, or say what is lost."""
        self.flush()
        if self._waiting:
            num_lost = self._num_lost + len(self._waiting)
            tell(f"warning: {self._name}: {num_lost:,} entries were never written: {self.failure}")

    def _fail(self, error: OSError):
        self._next_try = time.monotonic() + RETRY_SECONDS
        self._num_late = max(self._num_late, len(self._waiting))
        if self.failure is None:
            self.failure = error.strerror or str(error)
            tell(
                f"warning: {self._name} cannot be written: {self.failure}; the work goes on, and "
                "what belongs there is kept until there is room"
            )

    def _recover(self):
        if self.failure is not None:
            lost = f", {self._num_lost:,} are lost" if self._num_lost else ""
            tell(f"{self._name} is written again: {self._num_late:,} entries came late{lost}")
        self.failure, self._num_late, self._num_lost = None, 0, 0

    def _drop_oldest(self):
        num_bytes = sum(map(len, self._waiting)) if self.failure is not None else 0
        while num_bytes > MOST_BYTES and len(self._waiting) > 1:
            num_bytes -= len(self._waiting.pop(0))
            self._num_lost += 1


class NoteFile:
    """One file of notes."""

    def __init__(self, path: Path):
        self._path = path
        self._content: bytes | None = None  # the file starts over with this
        self.backlog = Backlog(str(path), self._send)

    def start_over(self, content: bytes) -> None:
        """Write the file whole: what it held before is gone."""
        self._content = content
        self.backlog.add(b"")

    def _send(self, pieces: list[bytes]) -> int:
        if self._content is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, self._content)
            self._content = None
        try:
            return _append(self._path, pieces)
        except FileNotFoundError:  # its folder is not there yet, or was removed
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return _append(self._path, pieces)


class Notes:
    """The files that one process writes notes into: lines added, or small ones written whole."""

    def __init__(self) -> None:
        self._files: dict[Path, NoteFile] = {}

    def add(self, path: Path, line: str) -> None:
        """Add a line to this file, which is made if it is missing, as its folder is."""
        self._of(path).backlog.add(_encoded(line + "\n"))
        self._retry()

    def write(self, path: Path, text: str) -> None:
        """Write this file whole; it is made, or replaced."""
        self._of(path).start_over(_encoded(text))
        self._retry()

    def flush(self) -> None:
        """Write what waits."""
        for file in self._files.values():
            file.backlog.flush()

    def close(self) -> None:
        """Write what waits, or say what is lost. More may be added, and closed again."""
        for file in self._files.values():
            file.backlog.close()
        self._files.clear()

    def _of(self, path: Path) -> NoteFile:
        if path not in self._files:
            self._files[path] = NoteFile(path)
        return self._files[path]

    def _retry(self):
        for file in self._files.values():
            file.backlog.retry()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def read_note(path: Path) -> str:
    """Return what is in a file of notes; "" if there is none, or nothing that can be read."""
    try:
        return read_bytes(path, MOST_READ_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except (OSError, FileError) as error:
        tell(f"warning: {error}")
        return ""


# ---- files ---------------------------------------------------------------------------------------


def _append(path: Path, pieces: list[bytes]) -> int:
    """Add whole pieces to a file; return how many there was room for, at least one.

    Opened for each call: some file systems say only at the close that there was no room.
    """
    content, num_bytes, failure = b"".join(pieces), 0, None
    with open_to_append(path) as file:
        descriptor = file.fileno()  # what a full disk does not take shall be in no buffer
        before = os.fstat(descriptor).st_size
        try:
            while num_bytes < len(content):
                num_bytes += os.write(descriptor, content[num_bytes:])
        except OSError as error:
            failure = error
        num_whole, size = _whole(pieces, num_bytes)
        if size < num_bytes:  # nobody shall find half a line
            os.ftruncate(descriptor, before + size)
    if failure is not None and not num_whole:
        raise failure
    return num_whole


def _whole(pieces: list[bytes], num_bytes: int) -> tuple[int, int]:
    """Return how many pieces are whole in so many bytes, and their own bytes."""
    num = size = 0
    for piece in pieces:
        if size + len(piece) > num_bytes:
            break
        num, size = num + 1, size + len(piece)
    return num, size


# ---- streams -------------------------------------------------------------------------------------


class Screen:
    """A stream of text for people, around sys.stdout say, that never ends the work.

    Characters that its encoding lacks are replaced.
    stream   None: there is none, and what is written is dropped
    """

    def __init__(self, stream: Any):
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self._backlog = Backlog(_name_of(stream), self._send)

    def write(self, text: str) -> int:
        """Write, now or later."""
        if self._stream is not None and text:
            self._backlog.add(text.encode(self.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: all is written at once."""

    def close(self) -> None:
        """Write what waits, or say what is lost. The stream itself stays open."""
        self._backlog.close()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # it is closed
            return False

    def fileno(self) -> int:
        """Return its descriptor. Errors: OSError, ValueError or AttributeError if it has none."""
        return self._stream.fileno()

    def _send(self, pieces: list[bytes]) -> int:
        seconds = 0.0 if self._backlog.failure is not None else READER_SECONDS
        num_bytes = _write_some(self._stream, pieces[0], seconds)
        pieces[0] = pieces[0][num_bytes:]
        return int(not pieces[0])


def _write_some(stream: Any, content: bytes, seconds: float) -> int:
    """Write to a stream; return how many bytes it took, at least one.

    Past the buffer of a stream of the interpreter: what a full disk does not take would stay there,
    and end the process with an error.
    seconds   to wait for a reader
    Errors: OSError.
    """
    try:
        if type(stream) is not io.TextIOWrapper:  # of a notebook, or of a test
            stream.write(content.decode(getattr(stream, "encoding", None) or "utf-8", "replace"))
            stream.flush()
            return len(content)
        stream.flush()
        descriptor = stream.fileno()
    except ValueError as error:  # it is closed
        raise OSError(errno.EBADF, str(error)) from None
    waiter = select.poll()
    waiter.register(descriptor, select.POLLOUT)
    if not waiter.poll(seconds * 1e3):
        raise OSError(errno.EAGAIN, "nobody reads it")
    return os.write(descriptor, content[:_ATOMIC_BYTES])


@contextmanager
def replaced_characters(stream: Any) -> Iterator[None]:
    """Inside, characters that the encoding of this stream lacks are replaced, not refused."""
    before = getattr(stream, "errors", None)
    if not isinstance(stream, io.TextIOWrapper) or before not in ("strict", "surrogateescape"):
        yield
        return
    stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # what its buffer holds is not taken; or it is closed
            stream.reconfigure(errors=before)


def settle_output() -> bool:
    """Empty the buffers of standard output and error before the process ends.

    returns  False if one of them does not take what is left: that is dropped then, since the
             interpreter would end with an error over it
    """
    is_written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            is_written = False
            tell(f"warning: {_name_of(stream)} cannot be written: {error}")
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                stream.flush()
    return is_written


def _name_of(stream: Any) -> str:
    """Return "standard output (/dev/full)", say."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return "the output"
    names = {1: "standard output", 2: "standard error"}
    with suppress(OSError):
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        return f"{names.get(descriptor, 'the output')} ({target})"
    return names.get(descriptor, "the output")
