"""Attendance: this rank's entry in the roll of its node, and its warden.

    import_mpi()      with attendance().waiting("MPI_Init", ...)
    initialize()      with attendance().waiting("initialize()", ...)
    shutdown()        with attendance().waiting("shutdown()", ...)
    end of program    attendance().leave_mpi(), may_end(), close()      (mpi/ending.py)

Ledger, guard and watchdog work from the end of initialize() to the end of shutdown(); outside of
that a warden watches (warden.py). A job without a launcher's rank numbers, and a job of one rank,
have a warden during MPI_Init only.
"""

import math
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

from ...environment import launcher
from ...files.notes import tell
from ...files.writers import read_trusted
from ...files.writing import write_whole
from ...forks import is_of_parent, own
from .folder import PREFIX, JobFolder, note_segments, remove_abandoned
from .own_warden import OwnWarden
from .pulse import note_path
from .roll import EXIT_HOOKS, Entry, Roll

LAUNCHERS = (
    "hydra_pmi_proxy",
    "pmi_proxy",
    "mpiexec",
    "mpirun",
    "prterun",
    "prted",
    "orterun",
    "orted",
    "slurmstepd",
    "palsd",
)
POLL_SECONDS = 0.01


@cache
def attendance() -> "Attendance":
    """Return the attendance of this process."""
    return Attendance()


class Attendance:
    """This process in the roll of its node.

    limit     function () -> seconds that a wait at the end of the program may take
    folder    the job's folder on this node, from open() on; None before, or if it cannot be made
    warden    of this rank, from open() on; None before, and in a job of one rank
    """

    def __init__(self):
        found = launcher()
        self.rank = found.rank
        self.num_ranks = found.num_ranks or 1
        self.limit: Callable[[], float] = lambda: inf
        self._folders: dict[Path, JobFolder] = {}
        self.folder: Path | None = None
        own(self)
        self._entry = Entry(os.getpid())
        self._roll: Roll | None = None
        self.warden: OwnWarden | None = None
        self._num_exchanges = 0
        self._num_guests = 0  # open backends in a job of another program

    def open(self, facts: str, hints: dict[str, str], *, survives: bool) -> None:
        """Enter the roll, start a warden, and remove what killed jobs left on this node.

        No communication.
        facts, hints   for the messages of the warden
        survives       deaths of ranks do not end the job
        """
        if self._roll is not None:
            return
        try:
            above = Path(tempfile.gettempdir())
            remove_abandoned(above)
            self.folder = above / f"{PREFIX}{os.getuid()}-{job_key(self.num_ranks)}"
            self.share(self.folder)
            roll = Roll(self.folder)
            roll.make_room(self.num_ranks)
            self._roll = roll
            self._write(replace(self._entry, survives=survives, doing="its own code"))
            arguments = {
                "folder": str(self.folder),
                "rank": self.rank,
                "num_ranks": self.num_ranks,
                "process": os.getpid(),
                "launcher": os.getppid(),
                "facts": facts,
                "hints": hints,
            }
            self.warden = OwnWarden(arguments, lambda: not self._entry.has_left)
        except OSError as error:
            self.folder = None if self._roll is None else self.folder
            warnings.warn(
                f"this rank is not monitored outside collectives: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def share(self, path: Path) -> None:
        """Hold the folder of a job until close(). Errors: OSError."""
        if path not in self._folders:
            self._folders[path] = JobFolder.open(path)

    def has_started(self) -> None:
        """Note what MPI_Init made in shared memory, which stays there if the job is killed."""
        if self.warden is None:
            return
        self.enter_program()
        if self.num_ranks > 1:
            self.warden.await_watch()
            try:
                note_segments(self.folder)
            except OSError as error:
                tell(f"warning: {error}; if this job is killed, its shared memory stays")
        else:
            warden, self.warden = self.warden, None
            warden.end()

    @property
    def is_open(self) -> bool:
        """True if this process has an entry in the roll."""
        return self._roll is not None

    # ---- whose job it is ------------------------------------------------------------------------

    def guard_job(self, limit: Callable[[], float], *, survives: bool) -> None:
        """Note that shardkit guards this job.

        limit      function () -> seconds that a wait at the end of the program may take
        survives   deaths of ranks do not end it
        """
        self.limit = limit
        self._write(replace(self._entry, is_guest=False, may_end=False, survives=survives))

    def enter_program(self) -> None:
        """Note that MPI is initialized, and that the job is another program's, as far as known."""
        self._write(replace(self._entry, is_guest=True, may_end=True))

    def be_guest(self, change: int) -> None:
        """Count the open backends (+1, -1) in a job of another program: they need this process."""
        self._num_guests += change
        if self._entry.is_guest and not self._entry.has_left:
            self._write(replace(self._entry, may_end=self._num_guests == 0))

    # ---- entries ---------------------------------------------------------------------------------

    @contextmanager
    def waiting(self, doing: str, seconds: float):
        """Enclose a call that all ranks make, in the same order, and that waits for all."""
        before = self._entry
        self._write(
            replace(
                before,
                number=before.number + 1,
                is_waiting=True,
                since=time.monotonic(),
                seconds=seconds,
                doing=doing,
            )
        )
        try:
            yield
        except BaseException:
            self._write(replace(before, doing=f"its own code after an exception in {doing}"))
            raise
        self._write(replace(self._entry, is_waiting=False, doing=f"its own code after {doing}"))

    def leave(self, doing: str, seconds: float) -> None:
        """Note that the program is at its end and waits for the other ranks, until close()."""
        self._write(
            replace(
                self._entry,
                has_left=True,
                is_waiting=True,
                since=time.monotonic(),
                seconds=seconds,
                doing=doing,
            )
        )

    def leave_mpi(self) -> str | None:
        """Note that MPI_Finalize comes next; return who waits for this rank in vain, or None."""
        self.leave("MPI_Finalize", self.limit())
        if self.num_ranks == 1:
            self.close()
            return None
        is_told = self._roll is not None and not self._entry.survives and not self._entry.is_guest
        return self._who_waits() if is_told else None

    def own_limit(self) -> float:
        """Return the seconds after which this rank ends a wait at its end by itself.

        A warden does that better: it names who is missing, and its clock is fair (cores.py).
        """
        is_watched = self.warden is not None and self.warden.ended is None
        return inf if is_watched else self.limit()

    def others_here(self) -> dict[int, Entry]:
        """Return the entries of the other ranks of this node, as far as they are known."""
        if self._roll is None:
            return {}
        entries = {rank: self._roll.read(rank) for rank in range(self.num_ranks)}
        return {r: entry for r, entry in entries.items() if entry is not None and r != self.rank}

    def may_end(self) -> None:
        """Note that nobody needs this rank but in MPI_Finalize: its process may end at any time."""
        self._write(replace(self._entry, may_end=True, since=time.monotonic()))

    def run_exit_hooks(self) -> Callable[[], object]:
        """Note that exit hooks of the program may follow; return what notes that they are done.

        To be called when Python has cleared all modules.
        """
        if self._roll is None:
            return os.getpid
        after = self._roll.writer(self.rank, self._entry)
        self._write(replace(self._entry, doing=EXIT_HOOKS))
        return after

    def note_ledger(self, path: Path | None, start: int = 0) -> None:
        """Note for the warden where this rank keeps its ledger; None: it keeps none any more.

        start   of the ledger in that file, in bytes
        """
        if self._roll is not None and not is_of_parent(self):
            with suppress(OSError):  # a full disk: the other ranks watch, as ever
                note_path(self.folder, self.rank, path, start)

    def _who_waits(self):
        for rank, other in self.others_here().items():
            if other.is_waiting and not other.has_left and other.number > self._entry.number:
                return f"rank {rank} waits for it in {other.doing}"
        return None

    def dismiss_warden(self) -> None:
        """Let nobody watch over this process any more, which may end at any time from here on.

        The launcher of MPICH kills the others when a rank that never finalizes MPI has ended, and
        its standard error is still open in a warden.
        """
        if self.warden is not None and not is_of_parent(self):
            self.warden.end()

    def close(self) -> None:
        """Note that MPI is finalized: what this process still does is its own business."""
        self._write(replace(self._entry, may_end=True, is_waiting=False))
        if not is_of_parent(self):
            for folder in self._folders.values():
                folder.close()

    def _write(self, entry):
        if self._roll is not None and not is_of_parent(self):
            self._entry = entry
            self._roll.write(self.rank, entry)

    # ---- when it goes wrong ----------------------------------------------------------------------

    def may_speak(self) -> bool | None:
        """Return True for the first process of the node that asks; None if there is no roll."""
        return None if self._roll is None else self._roll.may_report()

    def end_job(self) -> None:
        """Let the wardens of this node kill ranks that still run in some seconds."""
        if self._roll is not None:
            self._roll.end()

    def is_job_ended(self) -> bool:
        """Return True once a process of this node has ended the job."""
        return self._roll is not None and self._roll.is_ended()

    def exchange_within(self, note, seconds: float | None) -> list | None:
        """Return the notes of all ranks, or None if some do not call this within the time.

        None: no time limit. Works without MPI, so for the ranks of one node only.
        """
        if self._roll is None:
            return [note] if self.num_ranks == 1 else None
        self._num_exchanges += 1
        paths = [
            self.folder / f"note-{self._num_exchanges}-{rank:05d}" for rank in range(self.num_ranks)
        ]
        own = paths[self.rank]
        try:
            write_whole(own, pickle.dumps(note))
        except OSError:  # the others wait for the note in vain, and so learn that something failed
            return None
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)
        notes = [content for path in paths if (content := read_trusted(path)) is not None]
        return [pickle.loads(note) for note in notes] if len(notes) == len(paths) else None


def job_key(num_ranks: int) -> str:
    """Return what only the ranks of one job on this node share: the process that started them."""
    if num_ranks == 1:
        return f"alone-{_identity(os.getpid())}"
    process = os.getppid()
    while process > 1:
        name, parent = _name_and_parent(process)
        if name.startswith(LAUNCHERS):
            return f"{name}-{_identity(process)}"
        process = parent
    return f"parent-{_identity(os.getppid())}"


def _name_and_parent(process: int) -> tuple[str, int]:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # no /proc, or the process is not visible from here
        return "", 0
    name = text[text.index("(") + 1 : text.rindex(")")]
    return name, int(text.rpartition(")")[2].split()[1])


def _identity(process: int) -> str:
    """Return the process's id, the namespace of the id, and its start time: ids are reused."""
    try:
        started = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{process}-{os.stat('/proc/self/ns/pid').st_ino}-{started}"
    except OSError:
        return str(process)
