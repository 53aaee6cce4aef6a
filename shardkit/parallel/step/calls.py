"""Gathering a single block part by part, as its modules are called.

    F   call of a module ---> enter its units    forward    leave them     (data/visits.py)
    B   walk on the tape ---> enter what the next operation reads or gives a gradient to
                              after the last that gives one to a unit: close its gradient, and
                              reduce it in the last micro-batch

A unit that nothing has announced, because a module reads parameters of another one, is gathered
when they are read. The forward finds its way by the calls of modules, and the backward by the tape,
which knows all that was done. Input and weight gradients are computed together, for both read
parameters: W does nothing. Since it is the model that decides what comes next, data ranks agree on
it before each collective (data/turns.py).
"""

from collections import defaultdict
from contextlib import contextmanager
from functools import partial

from ...array.device import Device
from ...comm.backend import CommunicationBackend
from ...errors import CommunicationError, OutOfMemoryError
from ...nn.autograd import WeightGradients, first_gradient, origin_of
from ...nn.context import surrounded_by
from ...nn.module import Parameter, members_of
from ...nn.tape import parameter_uses, walk
from ...schedule.actions import Action, Kind
from ..data.turns import Turns
from ..data.visits import Visits
from ..pipeline.stages import Place
from .inputs import Inputs, Results
from .shortage import describe_shortage
from .work import Work

_BETWEEN = 0.25  # of a stop and the next operation, whose orders are whole numbers


class CalledWork:
    """Computes with a single block whose units are gathered by calls of its modules.

    Has the members of Work, and those of Surroundings, which modules are called in.
    work     what computes
    group    the data axis: forward and backward are collective over it
    device   of this rank
    shares_errors   what a rank raises is raised on all data ranks; False where others than these
                    may wait for it
    """

    gathers_by_calls = True

    def __init__(
        self, work: Work, group: CommunicationBackend, device: Device, *, shares_errors: bool
    ):
        self._work = work
        self._rank, self._device, self._shares_errors = group.rank, device, shares_errors
        self.units, self.stages = work.units, work.stages
        self.arrival, self.weight, self.clear = work.arrival, work.weight, work.clear
        ((place, parts),) = work.stages.parts.items()
        self.parts = [work.units[at] for at in (place, *parts)]
        self.trained = [number for number, unit in enumerate(self.parts) if unit.is_trained]
        self.user = work.stages.places.index(place)
        self._numbers = {
            id(parameter): number
            for number, unit in enumerate(self.parts)
            for parameter in unit.plan.parameters.values()
        }
        self.turns = Turns(group, self._describe)
        self._common = [unit for unit in self.parts if unit.is_common]
        self.visits = Visits(
            {number: unit for number, unit in enumerate(self.parts) if not unit.is_common},
            self.turns,
        )
        (block,) = self.parts[0].plan.blocks
        self._visited_by = {
            id(module): self.visited(p for p in members_of(module).values() if _is_parameter(p))
            for module in block.named_modules().values()
        }
        self._last_backward: int | None = None  # micro-batch after which gradients are complete
        self._reduced: set[int] = set()  # numbers of units, in this program

    def begin(self, actions: tuple[Action, ...]) -> None:
        """Begin a program."""
        reduces = any(action.kind is Kind.REDUCE for action in actions)
        backwards = [a.micro_batch for a in actions if a.kind is Kind.BACKWARD]
        self._last_backward = backwards[-1] if reduces and backwards else None
        self._reduced.clear()
        self.turns.begin()

    def release(self) -> None:
        """End a program: release all units. No communication."""
        self.visits.release()
        for unit in self._common:
            unit.release()

    def _describe(self, number: int) -> str:
        """Return what this rank does at a turn: gathers, or reductions in the upper half."""
        what = "gather" if number < len(self.parts) else "reduce the gradient of"
        first, *others = self.parts[number % len(self.parts)].plan.parameters
        return f"{what} {first}" + (f" and {len(others)} more" if others else "")

    # ---- of Surroundings -------------------------------------------------------------------------

    def call(self, module, args, kwargs):
        """Return module.forward(*args, **kwargs), with the module's own parameters gathered."""
        numbers = self._visited_by.get(id(module))
        if not numbers:
            return module.forward(*args, **kwargs)
        self.visits.enter(numbers)
        try:
            return module.forward(*args, **kwargs)
        finally:
            self.visits.leave(numbers)

    def lend(self, parameter) -> None:
        """Gather the unit of a parameter that is read outside of its module's calls."""
        number = self._numbers.get(id(parameter))
        if number is not None:
            self.visits.lend(number)

    def visited(self, parameters) -> tuple[int, ...]:
        """Return the numbers of the units of these parameters, ascending."""
        return tuple(sorted({self._numbers[i] for i in map(id, parameters) if i in self._numbers}))

    # ---- of Work ---------------------------------------------------------------------------------

    def owners(self, place: Place) -> list:
        """Return no unit: the backward writes all gradients."""
        return []

    def forward(self, place: Place, m: int, x, inputs: Inputs):
        """Return the output for micro-batch m, or its loss. Collective over the data axis."""
        with self._in_turns(f"forward of micro-batch {m}, step {inputs.update.number}"):
            return self._work.forward(place, m, x, inputs)

    def backward(self, place: Place, m: int, gradient, inputs: Inputs):
        """Return the gradient of the input, and write those of the parameters.

        Collective over the data axis.
        """
        with self._in_turns(f"backward of micro-batch {m}, step {inputs.update.number}"):
            walk_of_units = partial(self._walk, m, inputs)
            return self._work.backward(place, m, gradient, inputs, walk_of_units)

    @contextmanager
    def _in_turns(self, place: str):
        """Gather what modules ask for inside the block; its end, or an error, is common to all."""
        for unit in self._common:
            unit.gather()
        try:
            with surrounded_by(self):
                yield
        except CommunicationError:
            raise
        except Exception as error:
            if not self._shares_errors or self.turns.have_ended:
                raise
            self.turns.fail(self._described(error, place))
        self.turns.end()

    def _described(self, error, place):
        if isinstance(error, MemoryError) and not isinstance(error, OutOfMemoryError):
            return OutOfMemoryError(describe_shortage(self._rank, place, error, self._device))
        return error

    def _walk(self, m: int, inputs: Inputs, output, gradient) -> WeightGradients:
        gradients = _GradientsOfWalk(self, inputs.first_gradient + m)
        if m == self._last_backward:
            gradients.when_closed = partial(self._reduce_now, inputs.gradient_scale)
        try:
            stops = gradients.stops(parameter_uses(output))
            walk((origin_of(output),), (first_gradient(output, gradient),), stops=stops)
            gradients.end()
        finally:
            gradients.give_up()
        return WeightGradients([])

    # ---- reductions ------------------------------------------------------------------------------

    def _reduce_now(self, scale: float, number: int):
        self.turns.take(len(self.parts) + number)
        self.parts[number].reduce(scale)
        self._reduced.add(number)

    def reduce(self, action: Action, inputs: Inputs, results: Results) -> None:
        """Do what REDUCE says, unless the backward has done so in this program."""
        unit = self.units[action.stage, action.unit]
        if self.parts.index(unit) not in self._reduced:
            unit.reduce(inputs.gradient_scale)


def _is_parameter(member) -> bool:
    return isinstance(member, Parameter)


class _GradientsOfWalk:
    """The gradients of all units in one backward, but for frozen ones, which it only gathers.

    micro_batch   its number in the sum
    when_closed   called with the number of each unit whose gradient is complete
    """

    def __init__(self, work: CalledWork, micro_batch: int):
        self._work = work
        self._visits = work.visits
        self._micro_batch = micro_batch
        self.when_closed = None
        self._open: dict[int, object] = {}  # number of a unit -> its buffer
        self._closed: set[int] = set()
        self._entered: tuple[int, ...] = ()

    def stops(self, uses) -> list[tuple]:
        """Return where the walk opens and closes gradients, and visits other units."""
        stops = []
        last_use = {}
        before = ()
        for order, parameters in uses:
            numbers = self._work.visited(parameters)
            last_use.update({n: order for n in numbers if n in self._work.trained})
            if numbers != before:
                stops.append((order - _BETWEEN, partial(self._turn_to, numbers)))
                before = numbers
        ending = defaultdict(list)
        for number, order in last_use.items():
            ending[order].append(number)
        for order, numbers in ending.items():
            stops.append((order + _BETWEEN, partial(self._close, sorted(numbers))))
        return stops

    def _turn_to(self, numbers):
        self._leave()
        for number in numbers:
            if number in self._work.trained:
                self._open_unit(number)
        self._visits.enter(numbers)
        self._entered = numbers

    def _leave(self):
        self._visits.leave(self._entered)
        self._entered = ()

    def _open_unit(self, number):
        if number not in self._open:
            self._open[number] = self._work.parts[number].gradients.open(self._work.user)

    def _close(self, numbers):
        for number in numbers:
            self._open_unit(number)
            buffer = self._open.pop(number)
            gradients = self._work.parts[number].gradients
            gradients.close(self._work.user, self._micro_batch, buffer)
            self._closed.add(number)
            if self.when_closed is not None:
                self.when_closed(number)

    def end(self) -> None:
        """Close what no operation has used: its gradient is zero."""
        self._leave()
        self._close([number for number in self._work.trained if number not in self._closed])

    def give_up(self) -> None:
        """Close what a failed walk has left open."""
        self.when_closed = None
        self._close(list(self._open))


class CalledRuntime:
    """Wraps a runtime: after each program nothing stays gathered."""

    def __init__(self, runtime, work: CalledWork):
        self.flow, self.executor = runtime.flow, runtime.executor
        self._runtime = runtime
        self._work = work

    def run(self, actions: tuple[Action, ...], inputs: Inputs) -> Results:
        """Run the program. Collective over the mesh. Errors: those of the program; what a module
        raises on one rank is raised on all data ranks, as is a ShardingError if they called modules
        in different orders.
        """
        self._work.begin(actions)
        try:
            return self._runtime.run(actions, inputs)
        finally:
            self._work.release()
