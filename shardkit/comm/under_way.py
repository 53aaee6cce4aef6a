"""Verbs that end later than they begin: what must be alive, and how waiting is noted."""

from functools import partial

from ..errors import CommunicationError
from ..forks import is_of_parent
from .operations import FinishedHandle, Handle
from .watch.progress import UnderWay


def check_alive(group, name: str) -> None:
    """Raise unless the group can communicate."""
    if group.channel is None:
        check_not_forked(group, name)
        raise CommunicationError(
            f"{name} on a backend that is not initialized; call initialize() first, on all ranks, "
            "and no verb after shutdown()"
        )


def check_not_forked(group, name: str) -> None:
    """Raise in a process that was forked while the group could communicate."""
    if is_of_parent(group):
        raise CommunicationError(
            f"{name} in a process that rank {group.rank} has forked, which is no rank; call it in "
            "the rank itself, or start the other program as a process of its own (spawn)"
        )


def waiting_for(group, call) -> UnderWay:
    """Return a context manager around waiting for a call that began earlier."""
    check_alive(group, f"wait for {call.verb}")
    group.progress.resume(call)
    return UnderWay(group.progress)


def handle_of(group, carrier: Handle, finish=None) -> Handle:
    """Return the public handle of the group's verb under way; finish() ends it."""
    return FinishedHandle(carrier, finish, partial(waiting_for, group, group.progress.current))
