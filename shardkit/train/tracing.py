"""Which steps of a run are recorded: one for the report, and those of run.trace_steps for a trace.

    without run.trace_steps   the 16th step: its actions      timeline.json
    run.trace_steps=20..22    these steps, all that is done   timeline.json, traces/steps-20-22.json

timeline.json has the actions of one data and tensor rank of each stage, in seconds from the step's
start, and traces/ what docs/traces.md describes. Other steps pay nothing.
"""

import json
from contextlib import ExitStack
from typing import NamedTuple

from ..comm.clocks import clock_offset, on_first_clock
from ..errors import ConfigurationError
from ..layout.axes import Held, alike
from ..parallel.model.callback import Callback
from ..parallel.model.sharded_model import parts_of
from ..parallel.model.tracing import Trace
from ..parallel.step.recorder import STEP, Recorder
from .settings import Run

TIMELINE = "timeline.json"
TIMELINE_AFTER = 16  # steps: overlap has been chosen, and all kernels are there


class Steps(NamedTuple):
    """The steps of a run that are recorded, both included; is_whole: with all that is done."""

    first: int
    last: int
    is_whole: bool

    @classmethod
    def of_timeline(cls, begun: int, last: int) -> "Steps":
        """Return the one of a timeline, in a run that goes on after step `begun` to `last`."""
        step = min(begun + TIMELINE_AFTER, last)
        return cls(step, step, False)

    @classmethod
    def of_trace(cls, run: Run) -> "Steps | None":
        """Return those of run.trace_steps, if it is set.

        Errors: ConfigurationError on steps that are never taken.
        """
        if run.trace_steps is None:
            return None
        first, _, last = run.trace_steps.partition("..")
        steps = cls(int(first), int(last or first), True)
        if steps.last > run.steps:
            raise ConfigurationError(
                f"run.trace_steps = {run.trace_steps!r}, but the run ends with step {run.steps}; "
                "trace earlier steps, or raise run.steps"
            )
        return steps


class Tracing(Callback):
    """Records steps of one run in progress. Errors: as Steps.of_trace."""

    on_all_ranks = True

    def __init__(self, settings: Run):
        self._steps = Steps.of_trace(settings)
        self._last = settings.steps
        self._run = self._recorder = self._trace = None
        self._recording = ExitStack()

    def at_start(self, run):
        """Record the first step, if it is one of those. Collective, as the others are."""
        begun = run.model.step_number
        self._run = run
        if self._steps is None or self._steps.last <= begun:
            self._steps = Steps.of_timeline(begun, self._last)
        self.after_step(begun, 0.0)

    def after_step(self, step, loss):
        """Begin to record, or end it, where the next step is the first, or this one was the last.

        Collective.
        """
        if self._recorder is not None and step >= self._steps.last:
            self._end()
        if self._recorder is None and self._steps.first <= step + 1 <= self._steps.last:
            self._begin()

    def at_end(self, result):
        """Write what was recorded of steps that the run did not come to the end of."""
        if self._recorder is not None:
            self._end()

    def _begin(self):
        run, model = self._run, self._run.model
        if self._steps.is_whole:
            name = f"traces/steps-{self._steps.first}-{self._steps.last}.json"
            self._trace = Trace(
                parts_of(model),
                run.folder / name,
                write=lambda text: run.reporter.write(name, text),
            )
            self._recorder = self._trace.recorder
        else:
            self._recorder = Recorder()
            listening = parts_of(model).engine.listening
            self._recording.enter_context(listening.telling(self._recorder, verbs=False))
        self._before = clock_offset(run.backend)

    def _end(self):
        run = self._run
        self._recording.close()
        spans = self._recorder.spans
        if self._trace is not None:
            self._trace.close()
            run.say(f"trace of steps {self._steps.first} to {self._steps.last}: {self._trace.path}")
        self._write_timeline(spans)
        self._recorder = self._trace = None

    def _write_timeline(self, spans):
        """Write the first recorded step, of the first data and tensor rank of each stage."""
        run, mesh = self._run, self._run.model.mesh
        after, at = clock_offset(run.backend), mesh.coordinates
        step = next((span for span in spans if span.kind == STEP), None)
        mine = None
        if at.is_first(alike(Held.BLOCKS)) and step is not None:
            actions = [
                [str(span.action), *self._on_clock(span, after)]
                for span in spans
                if span.action is not None and span.step == step.step
            ]
            mine = at.pipeline, step.step, self._on_clock(step, after), actions
        everyones = [each for each in run.backend.all_gather_object(mine) if each is not None]
        if everyones:
            text = json.dumps(_timeline(everyones, run.model), separators=(",", ":"))
            run.reporter.write(TIMELINE, text)

    def _on_clock(self, span, after) -> list[float]:
        return [on_first_clock(at, self._before, after) for at in (span.start, span.end)]


def _timeline(everyones: list[tuple], model) -> dict:
    """Return what the file holds, of (stage's rank, step, its start and end, actions) of each."""
    origin = min(start for _, _, (start, _), _ in everyones)
    return {
        "step": everyones[0][1],
        "seconds": max(end for _, _, (_, end), _ in everyones) - origin,
        "schedule": model.sharding_configuration.schedule,
        "micro_batches": model.sharding_configuration.micro_batches,
        "device": parts_of(model).engine.device.kind,
        "ranks": {
            str(rank): [
                [text, round(start - origin, 7), round(end - origin, 7)]
                for text, start, end in actions
            ]
            for rank, _, _, actions in sorted(everyones)
        },
    }
