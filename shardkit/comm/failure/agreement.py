"""Errors and decisions of one rank, made common to all ranks.

    with collectively(backend):            # local work; an error on one rank is raised on all
        check_files(rank_path)

    if agree(backend, loss_is_nan): ...    # every rank takes the same branch

    form = CommonNumber()
    with collectively(backend, form):      # the same message compares a number of all ranks
        form.value = checksum(batch)
    if not form.is_common: ...

Source: the idea of raising a rank's error on all ranks is from PyOP2 and mpi-pytest.
"""

from contextlib import contextmanager
from itertools import chain, islice

import numpy

from ...errors import CommunicationTimeout, PeerError, ShardkitError
from ..operations import ReductionOperation
from ..ranks import in_words
from .ballot import Ballot


def agree(backend, flag: bool) -> bool:
    """Return True on all ranks if the flag is true on any. Collective over the backend."""
    return bool(_largest(backend, [flag])[0])


def _largest(backend, votes: list[int]) -> list[int]:
    """Return the largest of all ranks' votes on each question, numbers of 8 bits."""
    if backend.world_size == 1:
        return votes
    box = numpy.array(votes, numpy.uint8)
    backend.all_reduce(box, ReductionOperation.MAX)
    return box.tolist()


class CommonNumber:
    """A number that all ranks should have, compared in a vote.

    value       this rank's, 0 <= value < 2^32; it may be set until the votes are cast
    is_common   after the vote, the same on all ranks: whether all ranks have the same

    Each byte is cast with its complement. The largest of both over all ranks add up to 255 only if
    all ranks cast the same byte.
    """

    def __init__(self):
        self.value = 0
        self.is_common = True

    def __len__(self) -> int:
        return 8

    def cast(self) -> list[int]:
        """Return this rank's votes: four bytes, then their complements."""
        number = self.value.to_bytes(4, "little")
        return [*number, *(255 - byte for byte in number)]

    def count(self, decided: list[int]) -> None:
        """Record the largest votes of all ranks."""
        self.is_common = all(byte + other == 255 for byte, other in zip(decided[:4], decided[4:]))


@contextmanager
def collectively(backend, *ballots: Ballot | CommonNumber | None):
    """Run local work so that an error on one rank is raised on all ranks. Also a decorator.

    Collective over the backend at the end of the block. No verb in the block may follow a line that
    can raise.
    ballots  decided in the same message if nothing is raised, by their questions neither; all ranks
             pass the same kinds of them, or None
    Errors: if callers handle its type (ShardkitError, OSError, ValueError, TypeError), the error of
    the first rank that has one, on all ranks; its message names the ranks that have it unless all
    have. Otherwise the rank's own error where it happened, and elsewhere a PeerError.
    KeyboardInterrupt, SystemExit and CommunicationTimeout pass unchanged:
    after them the ranks are no longer in step.
    """
    error = None
    try:
        yield
    except CommunicationTimeout:
        raise
    except Exception as caught:
        error = caught
    ballots = [ballot for ballot in ballots if ballot is not None]
    votes, caught = _votes_on(ballots)
    error = caught if error is None else error  # which may be false, as any object
    has_failed, *decided = _largest(backend, [error is not None, *votes])
    if has_failed:
        raise_together(backend, error)
    decided = iter(decided)
    for ballot in ballots:
        ballot.count(list(islice(decided, len(ballot))))


def by_first(backend, work):
    """Return on all ranks what `work()` returns on rank 0, which alone calls it. Collective.

    Errors, on all ranks: as collectively().
    """
    with collectively(backend):
        done = work() if backend.rank == 0 else None
    return backend.broadcast_object(done, 0)


def _votes_on(ballots: list[Ballot | CommonNumber]) -> tuple[list[int], Exception | None]:
    """Return this rank's votes on all ballots, and the error of a question that raised one."""
    try:
        return [*chain.from_iterable(ballot.cast() for ballot in ballots)], None
    except Exception as error:
        return [0] * sum(map(len, ballots)), error


def raise_together(backend, error):
    """Raise the error of the first rank that has one, on all ranks. Collective.

    Its message names the ranks that have it, by their numbers in the first backend, unless all
    have it or it names some already. A rank whose own error callers do not handle by its type
    raises that. A PeerError tells of another one, which counts if it is there.
    """
    notes = backend.all_gather_object(
        None if error is None else (describe_error(error), error if _is_shared(error) else None)
    )
    raised = [rank for rank, note in enumerate(notes) if note is not None]
    rank = min(raised, key=lambda rank: isinstance(notes[rank][1], PeerError))
    text, original = notes[rank]
    failed = [rank for rank, note in enumerate(notes) if note is not None and note[0] == text]
    named = [backend.world_ranks[rank] for rank in failed] if len(failed) < len(notes) else []
    if error is not None and not _is_shared(error):
        raise error
    if backend.rank in failed:
        raise _named(error, named)
    origin = PeerError(f"rank {backend.world_ranks[rank]} failed: {text}")
    if original is None:
        raise origin
    raise _named(original, named) from origin


def _named(error, ranks: list[int]):
    """Return the error with these ranks in front of its message, unless that begins so."""
    message = error.args[0] if len(error.args) == 1 else None
    if ranks and message == str(error) and not message.startswith(("rank ", "ranks ")):
        error.args = (f"{in_words(ranks)}: {message}",)
    return error


def _is_shared(error) -> bool:
    """Return True if callers may handle this error by its type, and if it can be pickled."""
    is_handled = isinstance(error, (ShardkitError, OSError, ValueError, TypeError))
    return is_handled and type(error).__module__ in ("builtins", ShardkitError.__module__)


def describe_error(error) -> str:
    """Return type and message in one line: "ValueError: 3 is not 4"."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}"
