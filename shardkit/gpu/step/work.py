"""What computes a step in the life of CUDA graphs: captures it, compares it, replays it.

Each class has the members of Work (parallel/step/work.py), and is made for one run of a program by
graphs.py.
"""

from dataclasses import dataclass, field

import numpy

from ...array.backend import is_array, to_host
from ...array.products import doing_meanwhile
from ...errors import ShardingError
from ..graphs import GraphCalls, GraphMemory, GraphRecorder


@dataclass
class Recording:
    """The steps of one form, each key being (action, unit, micro-batch).

    num_steps   that have begun
    places      of the buffers of units when it was captured
    calls       {key: what replays it}
    results     {key: the output of F, or the gradient of the input of B}
    arrivals    {message: the array that it arrives in}
    inputs      {("x" or "y", micro-batch): array}
    seeds       {micro-batch: the gradient of its loss}
    """

    num_steps: int = 0
    places: tuple = ()
    calls: dict[tuple, GraphCalls] = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    arrivals: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)
    seeds: dict = field(default_factory=dict)


class CapturingWork:
    """Computes on tapes, and captures the same on tapes of its own. Has the members of Work.

    refuse   is told why the step cannot be replayed
    """

    def __init__(self, work, memory: GraphMemory, recording: Recording, inputs, refuse):
        self._work = work
        self._under_capture = work.on_tapes_of_its_own()
        self._memory = memory
        self._recording = recording
        self._refuse = refuse
        self._made: dict[tuple, object] = {}  # under capture: keeps its memory until it is used
        self._has_failed = False
        places, stages = work.units.at, work.stages
        self._copied_names = [
            name for name, place in (("x", stages.first), ("y", stages.last)) if place in places
        ]
        self._inputs = inputs._replace(
            micro_batches=tuple(
                self._copied(m, micro_batch) for m, micro_batch in enumerate(inputs.micro_batches)
            ),
        )

    def _copied(self, m, micro_batch):
        """Return the micro-batch with arrays of the recording in it, where this rank reads them."""
        copies = {}
        for name in self._copied_names:
            array = getattr(micro_batch, name)
            copies[name] = self._memory.empty(array.shape, array.dtype)
            _refill(copies[name], array)
            self._recording.inputs[name, m] = copies[name]
        return micro_batch._replace(**copies, context=_ContextOfGraphs(micro_batch.context))

    def arrival(self, message, shape, dtype):
        array = self._memory.empty(shape, dtype)
        self._recording.arrivals[message] = self._memory.same_place(array)
        return array

    def forward(self, place, m, x, inputs):
        output, stages = self._work.forward(place, m, x, inputs), self._work.stages
        if place == stages.first:
            x = self._inputs.micro_batches[m].x
        else:
            x = self._made.pop(("F", stages.before(place), m), x)
        self._capture(
            ("F", place, m), {}, lambda: self._under_capture.forward(place, m, x, self._inputs)
        )
        return output

    def backward(self, place, m, gradient, inputs):
        for_input, stages = self._work.backward(place, m, gradient, inputs), self._work.stages
        if gradient is not None:
            gradient = self._made.pop(("B", stages.after(place), m), gradient)
        elif not self._has_failed:
            result = self._recording.results["F", place, m]
            gradient = self._memory.empty(result.shape, result.dtype)
            self._recording.seeds[m] = gradient
        self._capture(
            ("B", place, m),
            {},
            lambda: self._under_capture.backward(place, m, gradient, self._inputs),
        )
        return for_input

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, inputs):
        owners = self._work.owners(place)
        parameters = _parameters_of(owners)
        before = [parameter.grad_is_empty for parameter in parameters]
        self._work.weight(place, m, buffers, inputs)
        after = [parameter.grad_is_empty for parameter in parameters]

        def compute():
            self._under_capture.weight(place, m, buffers, self._inputs)
            _fill_unused(owners)

        _mark_empty(parameters, before)
        self._capture(("W", place, m), _gradients_of(owners, buffers), compute)
        _mark_empty(parameters, after)

    def _capture(self, key, buffers, compute):
        if self._has_failed:
            return
        owners, blocks = self._work.owners(key[1]), self._work.units.at[key[1]].plan.blocks
        attributes = _attributes_of(blocks)
        state = _state_of(blocks)
        recorder = GraphRecorder(self._memory, {**_whole_parameters(owners), **buffers})
        with doing_meanwhile(None):
            result = recorder.captured(compute)
        if result is not None and not is_array(result):
            recorder.refuse("its unit passes on a tree of arrays")
        for name, value in _state_of(blocks).items():
            if state.get(name) != value:
                recorder.refuse(f"it changes the attribute {name}, which a replay would not do")
        if recorder.reason is not None:
            self._refuse(f"{_text(key)} cannot be recorded: {recorder.reason}")
            self._give_up(attributes)
            return
        self._recording.calls[key], self._made[key] = recorder.calls, result
        self._recording.results[key] = None if result is None else self._memory.same_place(result)

    def _give_up(self, attributes):
        self._has_failed = True
        self._made.clear()
        self._under_capture.clear()
        for module, values in attributes:
            vars(module).update(values)


class _ContextOfGraphs:
    """A ForwardContext under capture: what changes from step to step cannot be read."""

    def __init__(self, context):
        self.training = context.training
        self.seed = context.seed
        self.first_sample = context.first_sample
        self.num_samples = context.num_samples
        self.texts = context.texts
        self.is_unmarked = context.is_unmarked
        self.parts = context.parts
        self.is_cut = context.is_cut

    @property
    def step(self):
        raise ShardingError(
            "dropout has another key in each step, and a graph has the arguments of its kernels "
            "in it"
        )

    def observed_by(self, observer):
        """Return this context: no model with buffers is captured."""
        return self


class ReplayingWork:
    """Launches the graphs of a recording. Has the members of Work."""

    def __init__(self, work, recording: Recording, inputs):
        self._work, self._recording = work, recording
        for (name, m), array in recording.inputs.items():
            _refill(array, getattr(inputs.micro_batches[m], name))

    def arrival(self, message, shape, dtype):
        return self._recording.arrivals[message]

    def forward(self, place, m, x, inputs):
        return self._replayed(("F", place, m), {})

    def backward(self, place, m, gradient, inputs):
        if place == self._work.stages.last:
            self._recording.seeds[m].fill(inputs.loss_scale)
        return self._replayed(("B", place, m), {})

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, inputs):
        owners = self._work.owners(place)
        self._replayed(("W", place, m), _gradients_of(owners, buffers))
        for parameter in _parameters_of(owners):
            parameter.grad_is_empty = False

    def _replayed(self, key, buffers):
        self._recording.calls[key].run({**_whole_parameters(self._work.owners(key[1])), **buffers})
        return self._recording.results[key]


class ComparingWork:
    """Computes both ways, and compares the bits. Its results are those of the tapes."""

    def __init__(self, work, replaying: ReplayingWork, refuse):
        self._work = work
        self._replaying = replaying
        self._refuse = refuse

    def arrival(self, message, shape, dtype):
        return self._replaying.arrival(message, shape, dtype)

    def owners(self, place):
        return self._work.owners(place)

    def forward(self, place, m, x, inputs):
        output = self._work.forward(place, m, x, inputs)
        self._compare(("F", place, m), output, self._replaying.forward(place, m, x, inputs))
        return output

    def backward(self, place, m, gradient, inputs):
        for_input = self._work.backward(place, m, gradient, inputs)
        replayed = self._replaying.backward(place, m, gradient, inputs)
        self._compare(("B", place, m), for_input, replayed)
        return for_input

    def weight(self, place, m, buffers, inputs):
        owners, before = self._work.owners(place), [buffer.copy() for buffer in buffers]
        self._work.weight(place, m, buffers, inputs)
        _fill_unused(owners)
        results = [buffer.copy() for buffer in buffers]
        for buffer, contents in zip(buffers, before):
            buffer[...] = contents
        self._replaying.weight(place, m, buffers, inputs)
        for owner, buffer, result in zip(owners, buffers, results):
            length = owner.layout.length
            self._compare(("W", place, m), result[:length], buffer[:length])
            buffer[...] = result

    def _compare(self, key, array, other):
        if array is None:
            return
        if array.shape != other.shape or to_host(array).tobytes() != to_host(other).tobytes():
            self._refuse(
                f"{_text(key)} has other bits when it is replayed; it depends on something that "
                "is no argument, or it changes something"
            )


# ---- what they share -----------------------------------------------------------------------------


def _refill(array, values) -> None:
    """Copy an input to where graphs read it."""
    array[...] = values


def _parameters_of(units):
    return [parameter for unit in units for parameter in unit.plan.parameters.values()]


def _whole_parameters(units) -> dict:
    """Return {name in a recording: what the unit is computed with}."""
    return {f"parameters {number}": unit.whole for number, unit in enumerate(units)}


def _gradients_of(units, buffers) -> dict:
    """Return {name in a recording: where the gradients of the unit go}."""
    return {f"gradients {number}": buffer for number, (_, buffer) in enumerate(zip(units, buffers))}


def _fill_unused(units) -> None:
    """Set gradients of parameters that no operation used to zero."""
    for parameter in _parameters_of(units):
        if parameter.grad_is_empty:
            parameter.grad.fill(0)
            parameter.grad_is_empty = False


def _mark_empty(parameters, marks):
    for parameter, is_empty in zip(parameters, marks):
        parameter.grad_is_empty = is_empty


def _modules_of(blocks):
    return [module for block in blocks for module in block.named_modules().values()]


def _attributes_of(blocks) -> list[tuple]:
    """Return [(module, its attributes)] of these blocks."""
    return [(module, dict(vars(module))) for module in _modules_of(blocks)]


def _state_of(blocks) -> dict:
    """Return {class and attribute: what tells whether it was changed} of these blocks."""
    return {
        f"{name} of {type(module).__name__} {number}": _mark(value)
        for number, module in enumerate(_modules_of(blocks))
        for name, value in vars(module).items()
    }


def _mark(value):
    if isinstance(value, numpy.ndarray):
        return id(value), value.tobytes()
    is_plain = type(value) in (bool, dict, float, int, list, set, str, tuple)
    return repr(value) if is_plain else id(value)


def _text(key) -> str:
    action, place, micro_batch = key
    return f"{action} of unit {place.unit} of stage {place.stage}, micro-batch {micro_batch}"
