"""Errors of one rank on all ranks: raised everywhere, voted on, or the end of the job.

    with collectively(backend):            # local work in here; an error on one rank is raised on
                                           all of them
        check_files(rank_path)

    if agree(backend, loss_is_nan): ...    # every rank takes the same branch

    with abort_on_error(backend) as program:     # around a main program
        program.run_folder = folder              # optional: where error files go
        train()

Source: the idea of raising a rank's error on all ranks is from PyOP2 and mpi-pytest.
"""

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy

from ...errors import CommunicationTimeout, PeerError, ShardkitError
from ..operations import ReductionOperation
from .ballot import Ballot

INTERRUPTED_CODE = 130  # the exit code after Ctrl-C, a convention of shells
# Ranks that find the same user error find it within this time, on a busy machine too.
TOGETHER_SECONDS = 5.0
# Other errors mostly happen on one rank alone: waiting for more only delays the end.
ALONE_SECONDS = 1.0


def agree(backend, flag: bool) -> bool:
    """Return True on all ranks if the flag is true on any. Collective over the backend."""
    return agree_on_each(backend, [flag])[0]


def agree_on_each(backend, flags: list[bool]) -> list[bool]:
    """Return, for each flag, True on all ranks if it is true on any, in one message. Collective."""
    votes = numpy.array(flags, numpy.uint8)
    backend.all_reduce(votes, ReductionOperation.MAX)
    return [bool(vote) for vote in votes]


@contextmanager
def collectively(backend, ballot: Ballot | None = None):
    """Run local work so that an error on one rank is raised on all ranks. Also a decorator.

    Collective over the backend at the end of the block. No verb in the block may follow a line that
    can raise.
    ballot   decided in the same message if nothing is raised; all ranks pass one, or none does
    Errors: the rank's own error where it happened. Elsewhere the same error again, from a PeerError
    that names the rank, if callers handle its type (ShardkitError, OSError, ValueError, TypeError);
    otherwise that PeerError. KeyboardInterrupt, SystemExit and CommunicationTimeout pass unchanged:
    after them the ranks are no longer in step.
    """
    error = None
    try:
        yield
    except CommunicationTimeout:
        raise
    except Exception as caught:
        error = caught
    has_failed, *decided = agree_on_each(
        backend, [error is not None, *(ballot.cast() if ballot else ())]
    )
    if has_failed:
        raise_together(backend, error)
    if ballot:
        ballot.count(decided)


def raise_together(backend, error):
    """Raise this rank's own error, or the error of the first rank that has one. Collective."""
    notes = backend.all_gather_object(
        None if error is None else (describe_error(error), error if _is_shared(error) else None)
    )
    if error is not None:
        raise error
    rank, (text, original) = next(
        (rank, note) for rank, note in enumerate(notes) if note is not None
    )
    origin = PeerError(f"rank {rank} failed: {text}")
    if original is None:
        raise origin
    raise original from origin


def _is_shared(error) -> bool:
    """Return True if callers may handle this error by its type, and if it can be pickled."""
    is_handled = isinstance(error, (ShardkitError, OSError, ValueError, TypeError))
    return is_handled and type(error).__module__ in ("builtins", ShardkitError.__module__)


def _is_echo(error) -> bool:
    """Return True if another rank raised this error first."""
    return isinstance(error, PeerError) or isinstance(error.__cause__, PeerError)


@dataclass
class Program:
    """The context of a main program, for the report of a failure.

    run_folder   folder for an error file with time, rank, activity and traceback; None: no file
    describe     function () -> str: what this rank is doing ("step 12"), for message and file
    """

    run_folder: Path | str | None = None
    describe: Callable[[], str] | None = None

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
    if all(failure.message == note.message for failure in failures):
        where = f"all {len(failures)} ranks" if len(failures) > 1 else f"rank {note.rank}"
        return f"{note.message} (on {where})"
    return str(note)


def write_error_file(run_folder, rank: int, doing: str, trace: str) -> Path:
    """Write error-rank-00003.txt into the folder, made if it is missing, and return its path."""
    folder = Path(run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"error-rank-{rank:05d}.txt"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %z")
    path.write_text(f"time   {stamp}\nrank   {rank}\ndoing  {doing or '-'}\n\n{trace}")
    return path


def trace_of(error) -> str:
    """Return the traceback, formatted to follow a message."""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def describe_error(error) -> str:
    """Return type and message in one line: "ValueError: 3 is not 4"."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}"
