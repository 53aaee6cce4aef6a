"""The end of a main program: its failure is printed once, and no rank waits for the failed one.

    with abort_on_error(backend) as program:
        program.run_folder = folder        # optional: where error files go
        train()

Of several ranks that fail, the one that failed first prints its message.
"""

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import PeerError, ShardkitError
from ...files.notes import Notes
from .agreement import describe_error

INTERRUPTED_CODE = 130  # the exit code after Ctrl-C, a convention of shells
# Ranks that find the same user error find it within this time, on a busy machine too.
TOGETHER_SECONDS = 5.0
# Other errors mostly happen on one rank alone: waiting for more only delays the end.
ALONE_SECONDS = 1.0


@dataclass
class Program:
    """The context of a main program, for the report of a failure.

    run_folder   folder for an error file with time, rank, activity and traceback; None: no file
    describe     function () -> str: what this rank is doing ("step 12"), for message and file
    """

    run_folder: Path | str | None = None
    describe: Callable[[], str] | None = None

    def tell_of(self, run_folder: Path, describe: Callable[[], str]) -> None:
        """From now on, report a failure with what this rank is doing, and into this folder."""
        self.run_folder, self.describe = run_folder, describe

    def doing(self) -> str:
        """Return what this rank is doing, or "" if that is unknown."""
        return "" if self.describe is None else self.describe()


@contextmanager
def abort_on_error(backend, run_folder=None, describe=None):
    """End the whole job with one message if a main program fails; yield its Program.

    Errors: SystemExit with the error's exit code, after one message, if all ranks raise (a user
    error that all of them find). If only some ranks raise, the job is aborted. SystemExit with a
    code other than 0 counts as an error. Ctrl-C prints one line, and the exit code is 130.
    """
    program = Program(run_folder, describe)
    try:
        yield program
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        sys.exit(report_failure(backend, error, program))


def report_failure(backend, error, program: Program = Program()) -> int:
    """Print the failure once; end the job if this rank failed alone, else return the exit code."""
    rank = backend.world_ranks[backend.rank]
    is_expected = isinstance(error, (ShardkitError, OSError, KeyboardInterrupt))
    trace = "" if is_expected else trace_of(error)
    if program.run_folder is not None and trace and not isinstance(error, SystemExit):
        write_error_file(program.run_folder, rank, program.doing(), trace)
    note = Failure(rank, program.doing(), describe_error(error), _is_echo(error), time.time())
    is_common = is_expected and not isinstance(error, KeyboardInterrupt)
    notes = backend.exchange_within(note, TOGETHER_SECONDS if is_common else ALONE_SECONDS)
    if notes is None:
        backend.abort(f"{note}{trace}", _exit_code(error))
    # A rank that reached its end without an error sends None.
    failures = [other for other in notes if other is not None]
    first = min(failures, key=lambda failure: (failure.is_echo, failure.time, failure.rank))
    if note == first and not isinstance(error, SystemExit):
        backend.say(_summary(note, failures) + trace)
    return _exit_code(error)


def _exit_code(error) -> int:
    """Return the exit code of the process after this error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED_CODE
    return error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one rank.

    is_echo   it repeats the failure of another rank, whose message is better
    time      Unix time in seconds: the first of several failures is the cause
    """

    rank: int
    doing: str
    message: str
    is_echo: bool
    time: float

    def __str__(self):
        return f"rank {self.rank}{f' ({self.doing})' if self.doing else ''} failed: {self.message}"


def _summary(note, failures):
    if f": rank {note.rank}: " in note.message:
        return note.message
    if all(failure.message == note.message for failure in failures):
        where = f"all {len(failures)} ranks" if len(failures) > 1 else f"rank {note.rank}"
        return f"{note.message} (on {where})"
    return str(note)


def write_error_file(run_folder, rank: int, doing: str, trace: str) -> Path:
    """Write error-rank-00003.txt into the folder, made if it is missing, and return its path.

    Where that is not possible, a line on standard error says so.
    """
    path = Path(run_folder) / f"error-rank-{rank:05d}.txt"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %z")
    notes = Notes()
    notes.write(path, f"time   {stamp}\nrank   {rank}\ndoing  {doing or '-'}\n\n{trace}\n")
    notes.close()
    return path


def _is_echo(error) -> bool:
    """Return True if another rank raised this error first."""
    return isinstance(error, PeerError) or isinstance(error.__cause__, PeerError)


def trace_of(error) -> str:
    """Return the traceback, formatted to follow a message."""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()
