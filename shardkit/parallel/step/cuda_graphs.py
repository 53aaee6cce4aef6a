"""CUDA graphs of a step, which model.compile() asks for: on a GPU only, and known to nothing but
the engine.

    steps of one form    1st: plain    2nd: captured    3rd: plain and replayed, compared    4th ...: replayed

Only F, B and W are captured, each unit and micro-batch by itself; gathers, messages, reductions and
the update stay what they are. In the 2nd step each action is computed twice: on a tape, whose
result goes on, and on a tape of its own under capture, which computes nothing: it leaves addresses
behind, and no numbers. So a capture that fails leaves the step as it was. The 3rd step compares the
bits of both.

Graphs hold addresses: inputs are copied to fixed arrays or received there, and a step that begins
with the buffers of units in other places than the 2nd one is plain. All ranks are in the same step
of the same form, so they know without messages when to agree: after the 2nd and the 3rd.
"""

import warnings
from dataclasses import dataclass, field, replace

import numpy

from ...array.backend import to_host
from ...array.graphs import GraphCalls, GraphMemory, GraphRecorder
from ...array.products import doing_meanwhile
from ...comm import CommunicationBackend
from ...errors import ShardingError
from ...nn.context import ForwardContext
from ...schedule import Kind
from ..data.site import Pools
from .work import Work

MOST_RECORDINGS = 4  # of as many forms; the oldest is dropped for another
CAPTURED, COMPARED = 2, 3  # numbers of the steps of a form


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


class CudaGraphs:
    """Chooses what computes a step, and keeps the recordings.

    work     computes on tapes
    pools    of its units
    world    all ranks of the mesh
    reason   why nothing is replayed any more; None while all is well
    """

    def __init__(self, work: Work, pools: Pools, world: CommunicationBackend):
        self._work = work
        self._pools = pools
        self._world = world
        self._memory = GraphMemory(pools.device, purpose="activations")
        self._recordings: dict = {}
        self._current: Recording | None = None  # of the step in progress
        self._doubt: str | None = None  # what this rank found wrong in it
        self.reason: str | None = None

    def forget(self) -> None:
        """Drop all recordings, and give their memory back."""
        self._recordings.clear()
        self._memory.clear()

    def begin(self, actions, step):
        """Return what computes these actions: it has the members of Work."""
        computes = any(action.kind is Kind.FORWARD for action in actions)
        if not computes or step.form is None or self.reason is not None:
            self._current = None
            return self._work
        form = step.form, step.first_gradient, actions  # all that buffers are taken for, in order
        recording = self._current = self._recordings.pop(form, None) or Recording()
        self._recordings[form] = recording  # the last one
        while len(self._recordings) > MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        recording.num_steps += 1
        try:
            return self._worker(recording, step)
        except MemoryError:
            self._refuse("there is no memory for a recording")
            return self._work

    def _worker(self, recording, step):
        places = self._pools.places(self._work.units.values())
        if recording.num_steps < CAPTURED:
            return self._work
        if recording.num_steps == CAPTURED:
            recording.places = places
            return _CapturingWork(self._work, self._memory, recording, step, self._refuse)
        if recording.places != places:
            if recording.num_steps == COMPARED:
                self._refuse("parameters or gradients have moved since the step was captured")
            return self._work
        replaying = _ReplayingWork(self._work, recording, step)
        if recording.num_steps > COMPARED:
            return replaying
        return _ComparingWork(self._work, replaying, self._refuse)

    def _refuse(self, reason: str):
        self._doubt = self._doubt or reason

    def give_up(self) -> None:
        """Drop the recording of a step that has failed: it is not whole."""
        self._recordings = {
            form: other for form, other in self._recordings.items() if other is not self._current
        }
        self._current = self._doubt = None

    def end(self, step) -> None:
        """End the step; ranks agree after the two steps where something can turn out wrong.

        Collective over the mesh then.
        """
        recording, self._current = self._current, None
        if recording is None or recording.num_steps not in (CAPTURED, COMPARED):
            return
        if step.failure is not None:
            self._refuse("memory ran out")
        doubts, self._doubt = self._world.all_gather_object(self._doubt), None
        if any(doubts):
            rank, doubt = next((rank, doubt) for rank, doubt in enumerate(doubts) if doubt)
            self.reason = f"{doubt} (rank {rank})"
            self.forget()
            if self._world.rank == 0:
                warnings.warn(f"the model goes on uncompiled: {self.reason}", stacklevel=2)
        if recording.num_steps == COMPARED:
            self._pools.arena.clear()  # of the tapes of this step


# ---- what computes a step ------------------------------------------------------------------------


class _CapturingWork:
    """Computes on tapes, and captures the same on tapes of its own. Has the members of Work.

    refuse   is told why the step cannot be replayed
    """

    def __init__(self, work: Work, memory: GraphMemory, recording: Recording, step, refuse):
        self._work = work
        self._under_capture = work.on_tapes_of_its_own()
        self._memory = memory
        self._recording = recording
        self._refuse = refuse
        self._made: dict[tuple, object] = {}  # under capture: keeps its memory until it is used
        self._has_failed = False
        places, stages = work.units, work.stages
        self._step = replace(
            step,
            x=self._copied("x", step.x) if stages.first in places else step.x,
            y=self._copied("y", step.y) if stages.last in places else step.y,
            contexts=[_ContextOfGraphs(context) for context in step.contexts],
        )

    def _copied(self, name, arrays):
        copies = [self._memory.empty(array.shape, array.dtype) for array in arrays]
        for m, (copy, array) in enumerate(zip(copies, arrays)):
            copy[...] = array
            self._recording.inputs[name, m] = copy
        return copies

    def arrival(self, message, shape, dtype):
        array = self._memory.empty(shape, dtype)
        self._recording.arrivals[message] = self._memory.same_place(array)
        return array

    def forward(self, place, m, x, step):
        output, stages = self._work.forward(place, m, x, step), self._work.stages
        if place == stages.first:
            x = self._step.x[m]
        else:
            x = self._made.pop(("F", stages.before(place), m), x)
        self._capture(
            ("F", place, m), {}, lambda: self._under_capture.forward(place, m, x, self._step)
        )
        return output

    def backward(self, place, m, gradient, step):
        for_input, stages = self._work.backward(place, m, gradient, step), self._work.stages
        if gradient is not None:
            gradient = self._made.pop(("B", stages.after(place), m), gradient)
        elif not self._has_failed:
            result = self._recording.results["F", place, m]
            gradient = self._memory.empty(result.shape, result.dtype)
            self._recording.seeds[m] = gradient
        self._capture(
            ("B", place, m),
            {},
            lambda: self._under_capture.backward(place, m, gradient, self._step),
        )
        return for_input

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, step):
        owners = self._work.owners(place)
        parameters = _parameters_of(owners)
        before = [parameter.grad_is_empty for parameter in parameters]
        self._work.weight(place, m, buffers, step)
        after = [parameter.grad_is_empty for parameter in parameters]

        def compute():
            self._under_capture.weight(place, m, buffers, self._step)
            _fill_unused(owners)

        _mark_empty(parameters, before)
        self._capture(("W", place, m), _gradients_of(owners, buffers), compute)
        _mark_empty(parameters, after)

    def _capture(self, key, buffers, compute):
        if self._has_failed:
            return
        owners, blocks = self._work.owners(key[1]), self._work.units[key[1]].plan.blocks
        attributes = _attributes_of(blocks)
        state = _state_of(blocks)
        recorder = GraphRecorder(self._memory, {**_whole_parameters(owners), **buffers})
        with doing_meanwhile(None):
            result = recorder.captured(compute)
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

    def __init__(self, context: ForwardContext):
        self.training = context.training
        self.seed = context.seed
        self.first_sample = context.first_sample

    @property
    def step(self):
        raise ShardingError(
            "dropout has another key in each step, and a graph has the arguments of its kernels in it"
        )


class _ReplayingWork:
    """Launches the graphs of a recording. Has the members of Work."""

    def __init__(self, work: Work, recording: Recording, step):
        self._work, self._recording = work, recording
        for (name, m), array in recording.inputs.items():
            array[...] = getattr(step, name)[m]

    def arrival(self, message, shape, dtype):
        return self._recording.arrivals[message]

    def forward(self, place, m, x, step):
        return self._replayed(("F", place, m), {})

    def backward(self, place, m, gradient, step):
        if place == self._work.stages.last:
            self._recording.seeds[m].fill(step.loss_scale)
        return self._replayed(("B", place, m), {})

    def owners(self, place):
        return self._work.owners(place)

    def weight(self, place, m, buffers, step):
        owners = self._work.owners(place)
        self._replayed(("W", place, m), _gradients_of(owners, buffers))
        for parameter in _parameters_of(owners):
            parameter.grad_is_empty = False

    def _replayed(self, key, buffers):
        self._recording.calls[key].run({**_whole_parameters(self._work.owners(key[1])), **buffers})
        return self._recording.results[key]


class _ComparingWork:
    """Computes both ways, and compares the bits. Its results are those of the tapes."""

    def __init__(self, work: Work, replaying: _ReplayingWork, refuse):
        self._work, self._replaying, self._refuse = work, replaying, refuse
        self.arrival, self.owners = replaying.arrival, work.owners

    def forward(self, place, m, x, step):
        output = self._work.forward(place, m, x, step)
        self._compare(("F", place, m), output, self._replaying.forward(place, m, x, step))
        return output

    def backward(self, place, m, gradient, step):
        for_input = self._work.backward(place, m, gradient, step)
        replayed = self._replaying.backward(place, m, gradient, step)
        self._compare(("B", place, m), for_input, replayed)
        return for_input

    def weight(self, place, m, buffers, step):
        owners, before = self._work.owners(place), [buffer.copy() for buffer in buffers]
        self._work.weight(place, m, buffers, step)
        _fill_unused(owners)
        results = [buffer.copy() for buffer in buffers]
        for buffer, contents in zip(buffers, before):
            buffer[...] = contents
        self._replaying.weight(place, m, buffers, step)
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
