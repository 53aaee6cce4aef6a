"""One clock for all ranks: how far each rank's clock is ahead of rank 0's.

    rank n    asks at a            hears at b         the answer was given at (a + b) / 2,
    rank 0            answers at t                    to (b - a) / 2 at most

Of several questions the quickest counts (Cristian's algorithm, as NTP has it). The processes of one
system share its monotonic clock, so one rank of each node asks for all of them.
"""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy

from ..environment import ranks_per_node
from .backend import CommunicationBackend

_QUESTIONS = 12
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4)


class ClockOffset(NamedTuple):
    """A clock against that of rank 0.

    at           when it was measured, on the clock itself
    seconds      that it is ahead of rank 0's
    uncertainty  half of the time of the quickest question and answer; 0 on the node of rank 0
    node         the host's name, and the boot of it
    """

    at: float
    seconds: float
    uncertainty: float
    node: str


def clock_offset(
    backend: CommunicationBackend, now: Callable[[], float] = time.perf_counter
) -> ClockOffset:
    """Return how this rank's clock stands against rank 0's. Collective over the backend.

    now   the clock, in seconds
    """
    nodes = backend.all_gather_object(_node(backend.rank))
    leader = nodes.index(nodes[backend.rank])
    mine = 0.0, 0.0
    for asking in sorted({nodes.index(node) for node in nodes} - {0}):
        if backend.rank == 0:
            _answer(backend, asking, now)
        elif backend.rank == asking:
            mine = _ask(backend, now)
    of_leaders = backend.all_gather_object(mine)
    seconds, uncertainty = of_leaders[leader]
    return ClockOffset(now(), seconds, uncertainty, nodes[backend.rank])


def _node(rank: int) -> str:
    """Return what is the same on ranks that share a clock, and different on others."""
    boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""
    part = ranks_per_node()
    return f"{platform.node()} {boot}" + (f" part {rank // part}" if part else "")


def _answer(backend, asking: int, now) -> None:
    clock = numpy.zeros(1)
    for _ in range(_QUESTIONS):
        backend.receive(clock, asking)
        clock[0] = now()
        backend.send(clock, asking)


def _ask(backend, now) -> tuple[float, float]:
    clock = numpy.zeros(1)
    answers = []
    for _ in range(_QUESTIONS):
        asked = now()
        backend.send(clock, 0)
        backend.receive(clock, 0)
        heard = now()
        answers.append(((heard - asked) / 2, (asked + heard) / 2 - float(clock[0])))
    uncertainty, seconds = min(answers)
    return seconds, uncertainty


def on_first_clock(at: float, before: ClockOffset, after: ClockOffset) -> float:
    """Return a time of a clock on rank 0's clock, between two measurements on a straight line."""
    between = after.at - before.at
    part = (at - before.at) / between if between > 0 else 0.0
    return at - before.seconds - part * (after.seconds - before.seconds)
