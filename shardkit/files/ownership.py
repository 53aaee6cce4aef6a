"""A run has its folder to itself: a file there says who the owner is, for as long as it lives.

    owner.json              host, job, process, its start, since when; its time of change is a sign
                            of life, every BEAT_SECONDS
    owner.json.<token>      while somebody takes over from the dead owner of that token

Who comes second judges the owner that it finds:

    it is this run itself, or the same job before it was queued or launched again    gone
    same boot of the same machine: is that process there, with that start?           gone, or lives
    the file is locked (flock)                                                       lives
    not locked, on the same machine, and the owner's own lock held                   gone
    no sign of life for STALE_SECONDS, by the clock of the file system               gone
    else: it is watched until there is a sign of life, or none for STALE_SECONDS

The file appears by a link(2), which one of several wins; so does the right to replace a dead
owner's. Locks of files hold on a local disk, and across the nodes of NFS and of Lustre with
`flock`; where they are missing, or of one node only, the signs of life decide.
"""

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..environment import batch_job
from ..errors import ConfigurationError, FileError
from .reading import open_regular, opened
from .removing import remove_file
from .writing import give_name, named_errors

OWNER_NAME = "owner.json"
OWNER_NAMES = r"owner\.json(\.[0-9a-f]{16}(\.new)?)?"  # all that this file makes
BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
_POLL_SECONDS = 0.5
_MOST_BYTES = 4096
_NO_LINKS = errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES


@dataclass(frozen=True)
class Owner:
    """A process that has a folder to itself, for a run.

    token       of this owner alone, 16 hex digits; run: of all processes of its run
    job         number of the batch job, "" outside of one; launch: how often it was queued and
                launched again before
    process     its id; space: the namespace of the id; started: its start, in ticks of the boot
    boot        which boot of which machine
    since       Unix time, in seconds
    is_locked   it holds a lock on the file
    """

    token: str
    run: str = ""
    host: str = ""
    job: str = ""
    launch: int = 0
    process: int = 0
    space: str = ""
    started: str = ""
    boot: str = ""
    since: float = 0.0
    is_locked: bool = False

    @classmethod
    def this_process(cls, run: str) -> "Owner":
        """Return this process as the owner of something."""
        job, launch = batch_job()
        process = os.getpid()
        return cls(
            os.urandom(8).hex(),
            run,
            platform.node(),
            job or "",
            launch,
            process,
            _namespace(),
            _start_of(process) or "",
            _text("/proc/sys/kernel/random/boot_id"),
            round(time.time(), 3),
        )

    def __str__(self):
        job = f"job {self.job}, " if self.job else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{job}process {self.process} on {self.host or 'an unknown host'}, since {since}"


class Ownership:
    """A folder that belongs to this process until release().

    advice   what to do if it belongs to another, for the message
    """

    def __init__(self, folder: Path, me: Owner, advice: str):
        self.folder, self.me = folder, me
        self._path, self._advice = folder / OWNER_NAME, advice
        self._file: int | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def take(
        cls,
        folder,
        advice: str,
        *,
        run: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> "Ownership":
        """Own a folder that is there, or raise ConfigurationError, which names both owners.

        run   of which a process may have had the folder, and this one goes on; None: none has
        say   called with a line before a wait, of STALE_SECONDS at most
        Errors: OSError too.
        """
        owned = cls(Path(folder), Owner.this_process(run or os.urandom(8).hex()), advice)
        owned._take(say)
        owned._thread = threading.Thread(target=owned._beat, daemon=True, name="shardkit owner")
        owned._thread.start()
        return owned

    def check(self) -> bool:
        """Make sure that the folder is still this process's; return True if that was not written
        there any more, and now is.

        Errors: ConfigurationError if another one has taken it over; OSError.
        """
        found = self._last()
        if found is None:
            self._take(lambda text: None)
            return True
        if found.owner.token != self.me.token:
            raise ConfigurationError(
                f"{self.folder} belongs to {found.owner} by now: {self.me}, had it before and gave "
                f"no sign of life for {STALE_SECONDS:g} s, or {OWNER_NAME} was removed; one run "
                "goes on there, and this one ends"
            )
        return False

    def holds(self) -> bool:
        """Return True if the folder is still this process's."""
        try:
            found = self._last()
        except (OSError, ConfigurationError):
            return False
        return found is not None and found.owner.token == self.me.token

    def release(self) -> None:
        """Give the folder up; a second call does nothing. Errors are none: a dead owner's file is
        taken over.
        """
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._file is None:
            return
        with suppress(OSError):
            if self.holds():
                remove_file(self._path)
        os.close(self._file)
        self._file = None

    def _beat(self):
        """Give signs of life: by the file itself, whatever has its name by now."""
        while not self._stopped.wait(BEAT_SECONDS):
            with suppress(OSError):
                os.utime(self._file)

    # ---- taking ----------------------------------------------------------------------------------

    def _take(self, say) -> None:
        found = self._last()
        if found is not None and self._judge(found) is False:
            raise self._refusal(found)  # nothing is written there
        new = self._written()
        try:
            while True:
                try:
                    if self._has_taken(new, say):
                        break
                except FileNotFoundError:  # an owner took it for one of the dead
                    new = self._written()
        except BaseException:
            remove_file(new)
            raise
        self._remove_files_of_dead()

    def _remove_files_of_dead(self) -> None:
        """Remove what those left who died in taking the folder; one that lives makes it again."""
        for path in self.folder.glob(f"{OWNER_NAME}.*.new"):
            if not re.fullmatch(OWNER_NAMES, path.name):
                continue
            with suppress(OSError, ConfigurationError):
                found = _read(path)
                if found is not None and self._judge(found) is not False:
                    remove_file(path)

    def _refusal(self, found: "_OwnerFile") -> ConfigurationError:
        return ConfigurationError(
            f"{self.folder} belongs to {found.owner}, and this is {self.me}; {self._advice}"
        )

    def _written(self) -> Path:
        """Return the path of a file that names this process, locked if that is possible."""
        new = self._path.with_name(f"{OWNER_NAME}.{self.me.token}.new")
        with named_errors(self._path):
            file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.me = replace(self.me, is_locked=True)
        except OSError:  # a file system without locks
            self.me = replace(self.me, is_locked=False)
        os.write(file, _content(self.me))
        if self._file is not None:
            os.close(self._file)
        self._file = file
        return new

    def _has_taken(self, new: Path, say) -> bool:
        """Try once; return False if something has changed in the meantime."""
        chain = self._chain()
        if not chain:
            return self._wins(new, self._path)
        if not self._is_gone(chain[-1], say):
            raise self._refusal(chain[-1])
        claim = self._claim(chain[-1].owner)
        if not self._wins(new, claim, keeps=True):
            return False
        is_first = False
        try:
            now = self._chain()
            is_first = [each.owner for each in now[:-1]] == [each.owner for each in chain]
            if is_first:
                give_name(new, self._path)
        finally:
            for each in [claim, *(found.path for found in chain[1:] if is_first)]:
                remove_file(each)
        return is_first

    def _wins(self, new: Path, name: Path, *, keeps: bool = False) -> bool:
        """Give the file this name too, if nobody has it; keeps: its own name as well."""
        try:
            os.link(new, name, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._wins_without_links(new, name, keeps=keeps)
        if not keeps:
            remove_file(new)
        return True

    def _wins_without_links(self, new: Path, name: Path, *, keeps: bool) -> bool:
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        try:
            os.write(file, _content(self.me))
        finally:
            os.close(file)
        if not keeps:
            give_name(new, name)
        return True

    # ---- judging ---------------------------------------------------------------------------------

    def _claim(self, owner: Owner) -> Path:
        return self._path.with_name(f"{OWNER_NAME}.{owner.token}")

    def _chain(self) -> list["_OwnerFile"]:
        """Return the owner, and who is taking over from it, and from that one.

        A file that names an owner once more says nothing, as one that is damaged.
        """
        chain: list[_OwnerFile] = []
        tokens: set[str] = set()
        path = self._path
        while (found := _read(path)) is not None:
            if found.owner.token in tokens:
                found = replace(found, owner=_unknown(os.lstat(path)))
            chain.append(found)
            tokens.add(found.owner.token)
            path = self._claim(found.owner)
        return chain

    def _last(self) -> "_OwnerFile | None":
        chain = self._chain()
        return chain[-1] if chain else None

    def _is_gone(self, found: "_OwnerFile", say) -> bool:
        """Return whether an owner lives no more; wait for a sign of life if nothing else tells."""
        known = self._judge(found)
        if known is not None:
            return known
        if self._now() - found.changed > STALE_SECONDS:
            return True
        say(
            f"{self.folder} belongs to {found.owner}; waiting up to {STALE_SECONDS:g} s for a sign "
            "of life"
        )
        deadline = time.monotonic() + STALE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            now = _read(found.path)
            if now is None or now.owner != found.owner:
                return True  # the next look finds out who has it now
            if now.changed != found.changed:
                return False
        return True

    def _judge(self, found: "_OwnerFile") -> bool | None:
        """Return whether an owner is gone; None if that cannot be told at once."""
        other, me = found.owner, self.me
        if other.run == me.run:
            return True
        if other.job and (other.job == me.job and other.launch < me.launch):
            return True
        is_here = bool(me.boot) and other.boot == me.boot
        if is_here and other.space == me.space and other.started:
            return _start_of(other.process) != other.started
        if _is_locked(found.path):
            return False
        return True if is_here and other.is_locked else None

    def _now(self) -> float:
        """Return what the clock of the file system says."""
        assert self._file is not None
        os.utime(self._file)
        return os.fstat(self._file).st_mtime


@dataclass(frozen=True)
class _OwnerFile:
    """What a file of an owner says.

    changed   when it was changed the last time, by the clock of the file system
    """

    path: Path
    owner: Owner
    changed: float


def _read(path: Path) -> _OwnerFile | None:
    """Return what the file says; None if there is none. Errors: OSError, ConfigurationError."""
    try:
        with opened(path, follows_links=False) as file:
            about = os.fstat(file.fileno())
            content = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except FileError:
        raise _no_owner(path) from None
    return _OwnerFile(path, _parsed(content, about), about.st_mtime)


def _parsed(content: bytes, about: os.stat_result) -> Owner:
    """Return the owner; of a file that is damaged or not yet written, one of which nothing is
    known.
    """
    try:
        values = json.loads(content)
        owner = Owner(**values)
        has_types = all(
            isinstance(value, _TYPES[name]) and _is_plain(value) for name, value in values.items()
        )
        if has_types and re.fullmatch("[0-9a-f]{16}", owner.token):
            return owner
    except (ValueError, TypeError, RecursionError):
        pass
    return _unknown(about)


def _unknown(about: os.stat_result) -> Owner:
    """Return an owner of whom nothing is known but the file."""
    key = f"{about.st_dev} {about.st_ino} {about.st_mtime_ns}"
    return Owner(hashlib.sha256(key.encode()).hexdigest()[:16], since=about.st_mtime)


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("token", "run", "host", "job", "space", "started", "boot"), str),
    **dict.fromkeys(("launch", "process", "is_locked"), int),
    "since": (int, float),
}


def _is_plain(value) -> bool:
    """Return True for what a message can show: a short text, or a number that may be a time."""
    if isinstance(value, str):
        return value.isprintable() and len(value) < 200
    return isinstance(value, (int, float)) and 0 <= value < 2**40


def _content(owner: Owner) -> bytes:
    return json.dumps(asdict(owner), indent=1).encode()


def _no_owner(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is no ordinary file, and says who the folder belongs to; remove it, or choose "
        "another folder"
    )


def _is_locked(path: Path) -> bool:
    """Return True if a process holds the lock of this file, as far as the file system tells."""
    try:
        file = open_regular(path, follows_links=False)
    except (OSError, FileError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look as well
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _start_of(process: int) -> str | None:
    """Return when a process was started, in ticks of this boot; None if it is gone."""
    fields = _text(f"/proc/{process}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else None


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _text(path: str) -> str:
    """Return the content of a file of the kernel; "" where it has none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
