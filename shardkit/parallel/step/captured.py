"""The work of a step on a GPU, computed as ever, and captured beside it as CUDA graphs
(array/graphs.py).

    F of unit 3    computed on a tape    -->  its output goes on
                   captured on a tape of its own: nothing is computed, so that tape has addresses,
                   and no numbers

So a capture that fails leaves the step as it was. Whether the graphs compute the same is found out
in the next step (ComparingWork in recorded.py).
"""

from dataclasses import replace

from ...array.graphs import GraphMemory, GraphRecorder
from ...array.known import refill
from .recorded import (
    Recording,
    fill_unused,
    key_text,
    named,
    parameters_of,
    state_of,
    whole_parameters,
)
from .work import Work


class CapturingWork:
    """Has the members of Work.

    refuse   is told why the step cannot be replayed
    """

    def __init__(self, work: Work, memory: GraphMemory, recording: Recording, step, refuse):
        self._work, self._twin, self._memory, self._recording, self._refuse = (
            work,
            work.twin(),
            memory,
            recording,
            refuse,
        )
        self._made: dict[
            tuple, object
        ] = {}  # what the twin has made: it keeps its memory until it is used, or to the end
        self._has_failed = False
        places, stages = work.units, work.stages
        self._step = replace(
            step,
            x=self._copied("x", step.x) if stages.first in places else step.x,
            y=self._copied("y", step.y) if stages.last in places else step.y,
        )

    def _copied(self, name, arrays):
        copies = [self._memory.empty(array.shape, array.dtype) for array in arrays]
        for m, (copy, array) in enumerate(zip(copies, arrays)):
            refill(copy, array)
            self._recording.inputs[name, m] = copy
        return copies

    def arrival(self, message, shape, dtype):
        array = self._memory.empty(shape, dtype)
        self._recording.arrivals[message] = self._memory.same_place(array)
        return array

    def forward(self, place, m, x, step):
        output, stages = self._work.forward(place, m, x, step), self._work.stages
        x = (
            self._step.x[m]
            if place == stages.first
            else self._made.pop(("F", stages.before(place), m), x)
        )
        self._capture(("F", place, m), {}, lambda: self._twin.forward(place, m, x, self._step))
        return output

    def backward(self, place, m, gradient, step):
        for_input, stages = self._work.backward(place, m, gradient, step), self._work.stages
        if gradient is not None:
            gradient = self._made.pop(("B", stages.after(place), m), gradient)
        elif not self._has_failed:
            result = self._recording.results["F", place, m]
            gradient = self._recording.seeds[m] = self._memory.empty(result.shape, result.dtype)
        self._capture(
            ("B", place, m), {}, lambda: self._twin.backward(place, m, gradient, self._step)
        )
        return for_input

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, step):
        owners = self._work.owners(place)
        parameters = parameters_of(owners)
        before = [parameter.grad_is_empty for parameter in parameters]
        self._work.weight(place, m, buffers, step)
        after = [parameter.grad_is_empty for parameter in parameters]

        def compute():
            self._twin.weight(place, m, buffers, self._step)
            fill_unused(owners)

        _mark_empty(parameters, before)
        self._capture(("W", place, m), named(owners, buffers), compute)
        _mark_empty(parameters, after)

    def _capture(self, key, buffers, compute):
        if self._has_failed:
            return
        blocks = self._work.units[key[1]].plan.blocks
        state, attributes = state_of(blocks), _attributes_of(blocks)
        recorder = GraphRecorder(
            self._memory, {**whole_parameters(self._work.owners(key[1])), **buffers}
        )
        result = recorder.captured(compute)
        for name, value in state_of(blocks).items():
            if state.get(name) != value:
                recorder.refuse(f"it changes the attribute {name}, which a replay would not do")
        if recorder.reason is not None:
            self._refuse(f"{key_text(key)} cannot be recorded: {recorder.reason}")
            self._give_up(attributes)
            return
        self._recording.calls[key], self._made[key] = recorder.calls, result
        self._recording.results[key] = None if result is None else self._memory.same_place(result)

    def _give_up(self, attributes):
        self._has_failed = True
        self._made.clear()
        self._twin.clear()
        for module, values in attributes:
            vars(module).update(values)


def _attributes_of(blocks) -> list[tuple]:
    """[(module, its attributes)] of these blocks."""
    return [
        (module, dict(vars(module)))
        for block in blocks
        for module in block.named_modules().values()
    ]


def _mark_empty(parameters, marks):
    for parameter, is_empty in zip(parameters, marks):
        parameter.grad_is_empty = is_empty
