"""Errors and decisions of one rank, made common to all ranks.

    with collectively(backend):            # local work; an error on one rank is raised on all
        check_files(rank_path)

    if agree(backend, loss_is_nan): ...    # every rank takes the same branch

Source: the idea of raising a rank's error on all ranks is from PyOP2 and mpi-pytest.
"""

from contextlib import contextmanager

import numpy

from ...errors import CommunicationTimeout, PeerError, ShardkitError
from ..operations import ReductionOperation
from .ballot import Ballot


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


def describe_error(error) -> str:
    """Return type and message in one line: "ValueError: 3 is not 4"."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}"
