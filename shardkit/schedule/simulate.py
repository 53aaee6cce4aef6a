"""Simulate: run a program with clocks instead of arrays, to see whether it ends, how long it takes,
and how many activations it keeps.

The rules are the strictest that MPI allows, so a program that ends here ends on any MPI:

    SEND    posts its message and goes on
    RECV    blocks until the SEND has been posted and transfer_seconds have passed since
    WAIT    blocks until the RECV has completed: nothing is buffered on the way (rendezvous)
    CLIP    blocks until every rank of the program has reached it
    others  take their duration. GATHER, RELEASE and REDUCE talk only to data peers, which run the
            same program in step; after a BEGIN they wait for less
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import ScheduleError
from .actions import (
    COMPUTE,
    RECEIVES,
    SENDS,
    WAITS,
    Action,
    Kind,
    Program,
    peak_live,
    receive_of,
    wait_of,
)
from .check import validate

ONE_SECOND_EACH = {kind: 1.0 for kind in COMPUTE}


class Event(NamedTuple):
    """When a rank reached an action and when it finished it, in seconds from the step's start."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened when: {rank: events in the order of the rank's program}.

    unit   of its times: "s", or "units" where every F, B and W of a stage takes one
    """

    events: dict[int, tuple[Event, ...]]
    unit: str = "s"

    @property
    def seconds(self) -> float:
        """When the last rank finishes."""
        return max((event.end for events in self.events.values() for event in events), default=0.0)

    @property
    def compute_seconds(self) -> float:
        """Seconds in F, B and W, summed over the ranks."""
        return sum(
            e.end - e.start
            for events in self.events.values()
            for e in events
            if e.action.kind in COMPUTE
        )

    @property
    def bubble_fraction(self) -> float:
        """The part of all ranks' time that is not spent in F, B or W; 0 if no action takes time."""
        available = self.seconds * len(self.events)
        return 1.0 - self.compute_seconds / available if available else 0.0

    def peak_live_micro_batches(self, rank: int) -> int:
        """Return the most activations that the rank keeps at a time, as `peak_live` counts them."""
        return peak_live(event.action for event in self.events[rank])


Durations = Mapping[Kind, float] | Callable[[Action], float]


def simulate(
    program: Program, durations: Durations = ONE_SECOND_EACH, *, transfer_seconds: float = 0.0
) -> Timeline:
    """Return the timeline of a program, or prove that it never ends.

    durations         seconds by kind (0 for a kind that is missing), or a function of the action
    transfer_seconds  from the posting of a message to its arrival
    Errors: ScheduleError if the program is malformed, or cannot end; then it names the action that
    each rank is stuck at.
    """
    validate(program)
    seconds_of = (
        durations if callable(durations) else lambda action: durations.get(action.kind, 0.0)
    )
    run = _Run(program, seconds_of, transfer_seconds)
    while any([run.advance(rank) for rank in program]):  # a list, so every rank gets its turn
        pass
    stuck = [
        f"rank {rank} at {action}"
        for rank in program
        if (action := run.next_action(rank)) is not None
    ]
    if stuck:
        raise ScheduleError(f"the program never ends: {', '.join(stuck)}; each waits for another")
    return Timeline({rank: tuple(events) for rank, events in run.events.items()})


class _Run:
    """A program that runs: how far each rank is, which messages were posted and received."""

    def __init__(
        self, program: Program, seconds_of: Callable[[Action], float], transfer_seconds: float
    ):
        self.program = program
        self.seconds_of = seconds_of
        self.transfer_seconds = transfer_seconds
        self.events: dict[int, list[Event]] = {rank: [] for rank in program}
        self.arrives: dict[Action, float] = {}  # RECV: when its message arrives
        self.received: dict[Action, float] = {}  # WAIT: when the RECV of its message completed
        self.at_clip: dict[int, float] = {}  # rank: when it reached CLIP
        self.wait_for = {
            receive_of(a): wait_of(a)
            for actions in program.values()
            for a in actions
            if a.kind in SENDS
        }

    def clock(self, rank: int) -> float:
        """Return when the rank finished its last action."""
        return self.events[rank][-1].end if self.events[rank] else 0.0

    def next_action(self, rank: int) -> Action | None:
        done = len(self.events[rank])
        return self.program[rank][done] if done < len(self.program[rank]) else None

    def advance(self, rank: int) -> bool:
        """Run the rank until it blocks; return whether it did anything."""
        done_before = len(self.events[rank])
        while (action := self.next_action(rank)) is not None:
            free_at = self._free_at(rank, action)
            if free_at is None:
                break
            start = self.clock(rank)
            end = max(start, free_at) + self.seconds_of(action)
            self.events[rank].append(Event(action, start, end))
            if action.kind in SENDS:
                self.arrives[receive_of(action)] = end + self.transfer_seconds
            elif action.kind in RECEIVES:
                self.received[self.wait_for[action]] = end
        return len(self.events[rank]) > done_before

    def _free_at(self, rank: int, action: Action) -> float | None:
        """Return when nothing blocks the action anymore; None if that is not known yet."""
        if action.kind in RECEIVES:
            return self.arrives.get(action)
        if action.kind in WAITS:
            return self.received.get(action)
        if action.kind is Kind.CLIP:
            self.at_clip[rank] = self.clock(rank)
            return max(self.at_clip.values()) if len(self.at_clip) == len(self.program) else None
        return 0.0
