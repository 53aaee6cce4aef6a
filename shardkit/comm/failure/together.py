"""What happens when a rank fails: raised on all ranks, voted on, or the end of the job. No rank
waits for a dead one.

    with collectively(backend):            # local work in here; an error on one rank is raised on
                                           all of them
        check_files(rank_path)

    if agree(backend, loss_is_nan): ...    # every rank takes the same branch

    with abort_on_error(backend) as program:     # around a main program
        program.run_folder = folder              # optional: where error files go, and what a rank
                                                 is doing
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

TOGETHER_SECONDS = (
    5.0  # ranks that find the same user error do so within this time, on a busy machine too
)
INTERRUPTED_CODE = 130  # of a process that Ctrl-C has ended, as shells have it
ALONE_SECONDS = (
    1.0  # other errors are mostly of one rank alone; waiting for company holds the job up
)


def agree(backend, flag: bool) -> bool:
    """True on all ranks if the flag is true on any. Collective over the backend."""
    return agree_on_each(backend, [flag])[0]


def agree_on_each(backend, flags: list[bool]) -> list[bool]:
    """For each flag: True on all ranks if it is true on any. Collective over the backend, one
    message.
    """
    votes = numpy.array(flags, numpy.uint8)
    backend.all_reduce(votes, ReductionOperation.MAX)
    return [bool(vote) for vote in votes]


@contextmanager
def collectively(backend, ballot: Ballot | None = None):
    """Around local work: if it raises on one rank, it raises on all. Also a decorator.

    Collective over the backend, at the end of the block; no verb inside the block may follow what
    can raise.
    ballot   voted on in the same message, if nothing is raised; all ranks give one or none does
    Errors: the rank's own error where it happened. Elsewhere the same error again if it is of the
    kind that callers handle (ShardkitError, OSError, ValueError, TypeError), from a PeerError that
    names the rank; else that PeerError itself. KeyboardInterrupt and SystemExit pass untouched, and
    so does CommunicationTimeout: after it the ranks are not together.
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
    """Raise this rank's own error, or that of the first rank that has one. Collective."""
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
    """True for errors that a caller may handle by type, and that survive the journey to another
    rank.
    """
    return isinstance(error, (ShardkitError, OSError, ValueError, TypeError)) and type(
        error
    ).__module__ in ("builtins", ShardkitError.__module__)


def _is_echo(error) -> bool:
    """True if another rank raised this error first."""
    return isinstance(error, PeerError) or isinstance(error.__cause__, PeerError)


@dataclass
class Program:
    """What a failing rank can say about its program.

    run_folder   where an error file with time, rank, what the rank was doing and the traceback is
                 written; None: no file
    describe     function () -> str: what this rank was doing ("step 12"), for the message and the
                 file
    """

    run_folder: Path | str | None = None
    describe: Callable[[], str] | None = None

    def doing(self) -> str:
        """What this rank is doing, "" if nobody says."""
        return "" if self.describe is None else self.describe()


@contextmanager
def abort_on_error(backend, run_folder=None, describe=None):
    """Around a main program: an error ends the whole job, with one message. Gives a Program, to be
    filled in later.

    Errors: if all ranks raise (a user error found everywhere), SystemExit with the error's exit
    code on all of them, after one message; if only some do, the job is aborted. SystemExit with a
    code other than 0 on some ranks counts as an error. Ctrl-C does too: one line without a
    traceback, and exit code 130.
    """
    program = Program(run_folder, describe)
    try:
        yield program
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        sys.exit(report_failure(backend, error, program))


def report_failure(backend, error, program: Program = Program()) -> int:
    """Say once what went wrong. Ends the job if this rank failed alone, else returns the exit code
    for all ranks.
    """
    rank, is_expected = (
        backend.world_ranks[backend.rank],
        isinstance(error, (ShardkitError, OSError, KeyboardInterrupt)),
    )
    trace = "" if is_expected else trace_of(error)
    if program.run_folder is not None and trace and not isinstance(error, SystemExit):
        write_error_file(program.run_folder, rank, program.doing(), trace)
    note = Failure(rank, program.doing(), describe_error(error), _is_echo(error), time.time())
    is_told_to_all = is_expected and not isinstance(error, KeyboardInterrupt)
    notes = backend.exchange_within(note, TOGETHER_SECONDS if is_told_to_all else ALONE_SECONDS)
    if notes is None:
        backend.abort(f"{note}{trace}", _exit_code(error))
    failures = [
        other for other in notes if other is not None
    ]  # None: that rank reached its end without an error
    first = min(failures, key=lambda failure: (failure.is_echo, failure.time, failure.rank))
    if note == first and not isinstance(error, SystemExit):
        backend.say(_summary(note, failures) + trace)
    return _exit_code(error)


def _exit_code(error) -> int:
    """What the process ends with."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED_CODE
    return error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failing rank says.

    is_echo   it repeats another rank's failure, which has the better message
    time      Unix time of the failure, in seconds: of several, the first is the cause
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
        return f"{note.message} (on {f'all {len(failures)} ranks' if len(failures) > 1 else f'rank {note.rank}'})"
    return str(note)


def write_error_file(run_folder, rank: int, doing: str, trace: str) -> Path:
    """error-rank-00003.txt in the folder, which is made if it is missing; its path."""
    folder = Path(run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"error-rank-{rank:05d}.txt"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %z")
    path.write_text(f"time   {stamp}\nrank   {rank}\ndoing  {doing or '-'}\n\n{trace}")
    return path


def trace_of(error) -> str:
    """Its traceback, to follow a message."""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def describe_error(error) -> str:
    """Type and message in one line: "ValueError: 3 is not 4"."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}"
