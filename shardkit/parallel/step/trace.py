"""Spans: what a rank did from when to when. Wrappers that stand in the parts of a model for some
steps take them, so that the steps before and after pay nothing.

    step 20 |-- agree -- 0F0 -- 0.0GATHER -- 0F1 -------------- CLIP -- 0.0STEP --|    actions
                          [all_reduce]         [wait for irecv]                        verbs inside

A span that begins inside another ends inside of it. On a GPU the times are those of the host, which
launches kernels and does not wait for them; a step ends when its loss has been read.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ...schedule.actions import COMPUTE, RECEIVES, SENDS, WAITS, Action, Kind
from .inputs import Inputs, Results
from .pump import Pumped

STEP = "step"
_KINDS = {
    **dict.fromkeys(COMPUTE, "compute"),
    **dict.fromkeys((*SENDS, *RECEIVES, *WAITS), "message"),
    **dict.fromkeys((Kind.CLIP, Kind.STEP), "update"),
    Kind.TIE: "gradients",
    Kind.REDUCE: "gradients",
    Kind.BEGIN_REDUCE: "gradients",
}  # the others: "parameters"
_NO_FACTS: dict = {}


class TraceSpan(NamedTuple):
    """What was done from `start` to `end`, in seconds on the rank's own clock.

    kind    step, compute, message, parameters, gradients, update, communication, data, ...
    step    number of the step that it is in; None outside of steps
    name    or the action of the program that it is
    facts   more about it; of a verb also dtype and count, in elements, or count -1
    track   "" for what the rank does itself, another name for what goes on beside it
    """

    name: str | Action
    kind: str
    start: float
    end: float
    step: int | None
    facts: dict
    track: str = ""

    @property
    def action(self) -> Action | None:
        """The action that it is, if it is one."""
        return None if isinstance(self.name, str) else self.name


class Recorder:
    """The spans of one rank, which begin and end like brackets.

    now   the clock, in seconds
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self.now = now
        self.spans: list[TraceSpan] = []
        self.step: int | None = None
        self._open: list[tuple] = []

    def begin(self, name: str | Action, kind: str, facts: dict = _NO_FACTS) -> None:
        """Begin a span; end() must follow."""
        self._open.append((name, kind, facts, self.now()))

    def end(self) -> None:
        """End the span that began last."""
        name, kind, facts, start = self._open.pop()
        self.spans.append(TraceSpan(name, kind, start, self.now(), self.step, facts))

    def add(self, name: str, kind: str, start: float, seconds: float, track: str) -> None:
        """Add a span of something that went on beside the rank's own work."""
        self.spans.append(TraceSpan(name, kind, start, start + seconds, None, _NO_FACTS, track))

    @contextmanager
    def span(self, name: str, kind: str) -> Iterator[None]:
        """Record what is done inside."""
        self.begin(name, kind)
        try:
            yield
        finally:
            self.end()

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
            if self._open:
                self.end()
            self.step = None


class TracedExecutor:
    """Wraps an executor: each action is a span."""

    def __init__(self, executor, recorder: Recorder):
        self._executor = executor
        self._recorder = recorder

    def execute(self, actions: Iterable[Action], inputs: Inputs, results: Results) -> None:
        """Execute the actions, and record them."""
        self._executor.execute(self._recorded(actions), inputs, results)

    def _recorded(self, actions):
        recorder = self._recorder
        for action in actions:
            recorder.begin(action, _KINDS.get(action.kind, "parameters"))
            try:
                yield action
            finally:
                recorder.end()


class TracedExposure:
    """Stands in the place of an Exposure, which hears where steps begin and end."""

    def __init__(self, exposure, recorder: Recorder, next_step: Callable[[], int]):
        self._exposure = exposure
        self._recorder = recorder
        self._next_step = next_step

    @property
    def of_step(self) -> dict[str, float]:
        """Seconds of the last step in collectives, by axis."""
        return self._exposure.of_step

    def begin_step(self) -> None:
        """Begin a step."""
        self._recorder.begin_step(self._next_step())
        self._exposure.begin_step()

    def end_step(self) -> None:
        """End the step."""
        self._exposure.end_step()
        self._recorder.end_step()


class TracedLedger:
    """Stands in the place of a ledger of calls, and goes on writing it: each verb is a span.

    ledger   that was there, or None
    names    {key of a group: what to call it}
    """

    is_written_by_loops = False  # every verb begins and ends here

    def __init__(self, ledger, recorder: Recorder, names: dict[str, str]):
        self._ledger = ledger
        self._recorder = recorder
        self._names = names
        self._facts: list[dict] = []  # of verbs under way, innermost last

    def begin(self, verb, group, ranks, number, dtype=None, count=-1) -> None:
        """Begin a verb, or the wait for one that was begun earlier."""
        if self._ledger is not None:
            self._ledger.begin(verb, group, ranks, number, dtype, count)
        name = self._names.get(group, group)
        facts = {"group": name, "ranks": ranks, "dtype": dtype, "count": count}
        self._facts.append(facts)
        self._recorder.begin(verb, "communication", facts)

    def describe(self, dtype, count) -> None:
        """Note what the verb under way carries."""
        if self._ledger is not None:
            self._ledger.describe(dtype, count)
        if self._facts:
            self._facts[-1].update(dtype=dtype, count=count)

    def end(self) -> None:
        """End the verb."""
        if self._facts:
            self._facts.pop()
            self._recorder.end()
        if self._ledger is not None:
            self._ledger.end()

    def fail(self) -> None:
        """Pass on that an exception ended it."""
        if self._ledger is not None:
            self._ledger.fail()


@contextmanager
def recording(engine, recorder: Recorder, *, verbs: bool = True) -> Iterator[None]:
    """Inside, the steps, actions and verbs of this engine are recorded. No communication.

    verbs   False: leave those out
    """
    with ExitStack() as stack:
        for guard in engine.guards:
            stack.enter_context(_put(guard, "executor", _traced(guard.executor, recorder)))
        exposure = TracedExposure(engine.exposure, recorder, lambda: engine.state.step_number + 1)
        stack.enter_context(_put(engine, "exposure", exposure))
        if verbs:
            progress = engine.mesh.world.progress
            ledger = TracedLedger(progress.ledger, recorder, engine.mesh.names)
            stack.enter_context(_put(progress, "ledger", ledger))
        yield


def _traced(executor, recorder):
    """Return the executor, traced; what it pumps belongs to the action before."""
    if isinstance(executor, Pumped):
        return Pumped(TracedExecutor(executor.executor, recorder), executor.pump)
    return TracedExecutor(executor, recorder)


@contextmanager
def _put(owner, name: str, part) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, part)
    try:
        yield
    finally:
        setattr(owner, name, before)
