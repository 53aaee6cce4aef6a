"""The work of a step, recorded and replayed: three classes with the members of Work (work.py).

    RecordingWork     computes as ever, on Traced arrays, and leaves calls behind
    ReplayingWork     makes these calls, on the numbers of another step
    ComparingWork     does both, and says where they differ

What comes in: x and y are copied into arrays of the recording, messages arrive in such arrays, the
gradient of the loss is written. Whole parameters and gradient buffers are given to each call anew,
since they may have moved.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy

from ...array.backend import to_host
from ...array.known import refill
from ...array.recording import Recorder
from ...array.replaying import Calls, RecordingMemory
from ...array.traced import Traced, plain
from .work import Work


@dataclass
class Recording:
    """The steps of one form: {(action, unit, micro-batch): what it does}, and the fixed arrays
    around it.
    """

    num_steps: int = 0  # begun
    places: tuple = ()  # of the buffers of units when it was made, on a GPU
    calls: dict[tuple, Calls] = field(default_factory=dict)
    results: dict = field(
        default_factory=dict
    )  # the same keys -> the output of F, the gradient of the input of B
    arrivals: dict = field(default_factory=dict)  # message -> what it brings
    inputs: dict = field(default_factory=dict)  # ("x" or "y", micro-batch) -> array
    seeds: dict = field(default_factory=dict)  # micro-batch -> the gradient of its loss


class RecordingWork:
    """Computes as ever, on Traced arrays, and notes how."""

    def __init__(self, work: Work, memory: RecordingMemory, recording: Recording, step, refuse):
        self._work, self._memory, self._recording, self._refuse = work, memory, recording, refuse
        places = work.units
        self._step = replace(
            step,
            x=self._copied("x", step.x) if work.stages.first in places else step.x,
            y=self._copied("y", step.y) if work.stages.last in places else step.y,
        )

    def _copied(self, name, arrays):
        copies = [self._memory.empty(array.shape, array.dtype) for array in arrays]
        for m, (copy, array) in enumerate(zip(copies, arrays)):
            plain(copy)[...] = array
            self._recording.inputs[name, m] = self._memory.same_place(copy)
        return copies

    def arrival(self, message, shape, dtype):
        array = plain(self._memory.empty(shape, dtype))
        self._recording.arrivals[message] = self._memory.same_place(array)
        return array

    def forward(self, place, m, x, step):
        x = self._step.x[m] if place == self._work.stages.first else x.view(Traced)
        return self._noted(("F", place, m), {}, lambda: self._work.forward(place, m, x, self._step))

    def backward(self, place, m, gradient, step):
        if gradient is None:
            result = self._recording.results["F", place, m]
            gradient = self._memory.empty(result.shape, result.dtype)
            plain(gradient)[...] = step.loss_scale
            self._recording.seeds[m] = self._memory.same_place(gradient)
        gradient = gradient.view(Traced)
        return self._noted(
            ("B", place, m), {}, lambda: self._work.backward(place, m, gradient, self._step)
        )

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, step):
        owners = self._work.owners(place)
        for parameter in parameters_of(owners):
            parameter.grad = parameter.grad.view(Traced)

        def compute():
            self._work.weight(place, m, buffers, self._step)
            fill_unused(owners)

        self._noted(("W", place, m), named(owners, buffers), compute)

    def _noted(self, key, buffers, compute):
        place = key[1]
        recorder = Recorder(self._memory, {**whole_parameters(self._work.owners(place)), **buffers})
        state = state_of(self._work.units[place].plan.blocks)
        with self._traced_parameters(place), recorder.active():
            result = compute()
        for name, value in state_of(self._work.units[place].plan.blocks).items():
            if state.get(name) != value:
                recorder.refuse(f"it changes the attribute {name}, which a replay would not do")
        fixed = None if result is None else self._memory.same_place(result)
        if result is not None and fixed is None:
            recorder.refuse("its result is not of its own making")
        if recorder.reason is not None:
            self._refuse(f"{key_text(key)} cannot be recorded: {recorder.reason}")
        self._recording.calls[key], self._recording.results[key] = recorder.calls, fixed
        return plain(result)

    @contextmanager
    def _traced_parameters(self, place):
        parameters = list(parameters_of(self._work.owners(place)))
        for parameter in parameters:
            parameter.seen_as(Traced)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.seen_as(numpy.ndarray)


class ReplayingWork:
    """Makes the calls of a recording."""

    def __init__(self, work: Work, recording: Recording, step):
        self._work, self._recording = work, recording
        for (name, m), array in recording.inputs.items():
            refill(array, getattr(step, name)[m])

    def arrival(self, message, shape, dtype):
        return self._recording.arrivals[message]

    def forward(self, place, m, x, step):
        return self._replayed(("F", place, m), {}, step)

    def backward(self, place, m, gradient, step):
        if place == self._work.stages.last:
            self._recording.seeds[m].fill(step.loss_scale)
        return self._replayed(("B", place, m), {}, step)

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, step):
        owners = self._work.owners(place)
        self._replayed(("W", place, m), named(owners, buffers), step)
        for parameter in parameters_of(owners):
            parameter.grad_is_empty = False

    def _replayed(self, key, buffers, step):
        _, place, m = key
        self._recording.calls[key].run(
            {**whole_parameters(self._work.owners(place)), **buffers}, step.contexts[m]
        )
        return self._recording.results[key]


class ComparingWork:
    """Computes both ways, and compares the bits. Its results are those of the tapes."""

    def __init__(self, work: Work, replaying: ReplayingWork, refuse):
        self._work, self._replaying, self._refuse = work, replaying, refuse
        self.arrival, self.owners = replaying.arrival, work.owners

    def forward(self, place, m, x, step):
        output = self._work.forward(place, m, x, step)
        self._compare(("F", place, m), output, self._replaying.forward(place, m, x, step))
        return output

    def backward(self, place, m, gradient, step):
        for_input = self._work.backward(place, m, gradient, step)
        self._compare(
            ("B", place, m), for_input, self._replaying.backward(place, m, gradient, step)
        )
        return for_input

    def weight(self, place, m, buffers, step):
        owners, before = self._work.owners(place), [buffer.copy() for buffer in buffers]
        self._work.weight(place, m, buffers, step)
        fill_unused(owners)
        results = [buffer.copy() for buffer in buffers]
        for buffer, contents in zip(buffers, before):
            buffer[...] = contents
        self._replaying.weight(place, m, buffers, step)
        for owner, buffer, result in zip(owners, buffers, results):
            self._compare(
                ("W", place, m), result[: owner.layout.length], buffer[: owner.layout.length]
            )
            buffer[...] = result

    def _compare(self, key, array, other):
        if array is not None and (
            array.shape != other.shape or to_host(array).tobytes() != to_host(other).tobytes()
        ):
            self._refuse(
                f"{key_text(key)} has other bits when it is replayed; it depends on something that is no argument, or "
                "it changes something"
            )


def parameters_of(units):
    """All of them, unit by unit."""
    return [parameter for unit in units for parameter in unit.plan.parameters.values()]


def whole_parameters(units) -> dict:
    """{name for a recording: what the unit is computed with}."""
    return {f"parameters {number}": unit.whole for number, unit in enumerate(units)}


def named(units, buffers) -> dict:
    """{name for a recording: where the gradients of the unit go}."""
    return {
        f"gradients {number}": buffer for number, (unit, buffer) in enumerate(zip(units, buffers))
    }


def fill_unused(units) -> None:
    """Gradients of parameters that no operation used are zero."""
    for parameter in parameters_of(units):
        if parameter.grad_is_empty:
            parameter.grad.fill(0)
            parameter.grad_is_empty = False


def state_of(blocks) -> dict:
    """{class and attribute: what tells whether it was changed} of all modules of these blocks."""
    modules = [module for block in blocks for module in block.named_modules().values()]
    return {
        f"{name} of {type(module).__name__} {number}": _mark(value)
        for number, module in enumerate(modules)
        for name, value in vars(module).items()
    }


def _mark(value):
    if isinstance(value, numpy.ndarray):
        return id(value), value.tobytes()
    return (
        repr(value) if type(value) in (bool, dict, float, int, list, set, str, tuple) else id(value)
    )


def key_text(key) -> str:
    action, place, micro_batch = key
    return f"{action} of unit {place.unit} of stage {place.stage}, micro-batch {micro_batch}"
