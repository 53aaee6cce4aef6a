"""The recorder: spans of what a rank did, and when. Whatever tells where the time of a step goes is
read from them.

    step 20 |-- agree -- 0F0 -- 0.0GATHER -- 0F1 -------------- CLIP -- 0.0STEP --|    actions
                 [gelu]   [all_reduce]         [wait for irecv]                        calls inside

    engine, actions, checkpoints, run --> Listening (executor.py)     > Recorder --> trace_file.py
    verbs --> Progress (comm/watch/progress.py)                       >  .spans  --> timeline.json
    kernels, products --> watching (stopwatch.py)                     >          --> profile.py

A span that begins inside another ends inside of it. While nobody records, a step asks once for each
program whether somebody does, and no verb, kernel or product asks anything. On a GPU the times are
those of the host, which launches kernels and does not wait for them, unless the recorder's clock
does; a step ends when its loss has been read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import numpy

from ...comm.watch.progress import Carried
from ...schedule.actions import COMPUTE, RECEIVES, SENDS, WAITS, Action, Kind

STEP = "step"
COMMUNICATION = "communication"
CHECKPOINT = "checkpoint"  # the time for which training stands still for one
CALL = "call"  # of a kernel or a product
_KINDS = {
    **dict.fromkeys(COMPUTE, "compute"),
    **dict.fromkeys((*SENDS, *RECEIVES, *WAITS), "message"),
    **dict.fromkeys((Kind.CLIP, Kind.STEP), "update"),
    Kind.TIE: "gradients",
    Kind.REDUCE: "gradients",
    Kind.BEGIN_REDUCE: "gradients",
}  # the others: "parameters"


class TimeSpan(NamedTuple):
    """What was done from `start` to `end`, in seconds on the rank's own clock.

    name     or the action of the program, or the matrix product, that it is
    kind     step, compute, message, parameters, gradients, update, communication, data, ...
    step     number of the step that it is in; None outside of steps
    depth    number of spans around it
    carried  by the verb that it is; None: it is none
    track    "" for what the rank does itself, another name for what goes on beside it
    """

    name: Any
    kind: str
    start: float
    end: float
    step: int | None
    depth: int
    carried: Carried | None = None
    track: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def action(self) -> Action | None:
        """The action that it is, if it is one."""
        return self.name if isinstance(self.name, Action) else None

    @property
    def num_bytes(self) -> int | None:
        """Bytes of what the verb carries; None if it carries nothing, or is no verb."""
        carried = self.carried
        if carried is None or carried.dtype is None or carried.count < 0:
            return None
        return int(carried.count) * numpy.dtype(carried.dtype).itemsize


class Recorder:
    """The spans of one rank, which begin and end like brackets.

    now          the clock, in seconds
    hears_calls  kernels, products and the pump of messages are spans too
    beside       PendingCheckpoints that began to be written meanwhile
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, *, hears_calls: bool = False):
        self.hears_calls = hears_calls
        self.spans: list[TimeSpan] = []
        self.step: int | None = None
        self.beside: list = []
        self._clock = now
        self._open: list[tuple] = []

    def now(self) -> float:
        """Return the time of its clock."""
        return self._clock()

    def begin(self, name, kind: str, carried: Carried | None = None) -> None:
        """Begin a span; end() must follow."""
        self._open.append((name, kind, carried, self.now()))

    def begin_action(self, action: Action) -> None:
        """Begin an action of the program; end() must follow."""
        self.begin(action, _KINDS.get(action.kind, "parameters"))

    def end(self) -> None:
        """End the span that began last; nothing if it began before anybody listened."""
        if self._open:
            end = self.now()
            name, kind, carried, start = self._open.pop()
            self.spans.append(TimeSpan(name, kind, start, end, self.step, len(self._open), carried))

    def add(self, name: str, kind: str, start: float, seconds: float, track: str) -> None:
        """Add a span of something that went on beside the rank's own work."""
        self.spans.append(TimeSpan(name, kind, start, start + seconds, None, 0, track=track))

    @contextmanager
    def span(self, name: str, kind: str) -> Iterator[None]:
        """Record what is done inside."""
        self.begin(name, kind)
        try:
            yield
        finally:
            self.end()

    def timed(self, function, name, kind: str = CALL):
        """Return the function, whose calls are spans; a callable `name` names them by their
        arguments.
        """

        @wraps(function)
        def run(*arguments, **named):
            self.begin(name(*arguments) if callable(name) else name, kind)
            try:
                return function(*arguments, **named)
            finally:
                self.end()

        return run

    def begin_step(self, number: int) -> None:
        """Begin a step, and end one that failed."""
        self.end_step()
        self.step = number
        self.begin(f"step {number}", STEP)

    def end_step(self) -> None:
        """End the step under way, if there is one."""
        if self.step is not None:
            while self._open and self._open[-1][1] != STEP:
                self.end()
            self.end()
            self.step = None

    # ---- verbs, as Progress tells them -----------------------------------------------------------

    def begin_verb(self, call, is_first: bool, dtype=None, count: int = -1) -> None:
        """Begin a verb, or the wait for one that was begun earlier (is_first False)."""
        name = call.verb if is_first else f"wait for {call.verb}"
        self.begin(name, COMMUNICATION, Carried(call, is_first, dtype, count))

    def describe_verb(self, dtype, count: int) -> None:
        """Note what the verb under way carries."""
        carried = self._open[-1][2] if self._open else None
        if carried is not None:
            carried.dtype, carried.count = dtype, count

    def end_verb(self) -> None:
        """End the verb under way, if it began while this recorder listened."""
        if self._open and self._open[-1][2] is not None:
            self.end()
