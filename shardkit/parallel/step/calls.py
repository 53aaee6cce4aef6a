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

from ...array.device import OwnBuffers
from ...comm.mesh import Mesh
from ...errors import CommunicationError, PeerError
from ...layout.axes import COPIES
from ...nn.autograd import WeightGradients, first_gradient, origin_of
from ...nn.context import surrounded_by
from ...nn.module import Parameter, members_of
from ...nn.tape import parameter_uses, walk
from ...schedule.actions import Action, Kind
from ..data.turns import Turns
from ..data.unit import Unit, Units
from ..data.visits import Visits
from ..pipeline.programs import Programs
from ..pipeline.stages import Place, Stages
from .gathering import refuse_strangers
from .inputs import Inputs
from .shortage import Company, described

_BETWEEN = 0.25  # of a stop and the next operation, whose orders are whole numbers


class AtCalls:
    """Units of a single block are gathered by calls of its modules, and reduced by the backward.

    A Gathering (gathering.py), and Surroundings, which modules are called in. Forward and backward
    are collective over the data axis.
    parts     the units, in order: the block's own, and its parts
    trained   numbers of those that take a gradient
    user      the number of the block, as their gradients know it
    """

    buffers = OwnBuffers
    lends = True
    obstacle = (
        "its modules gather their parameters when they are called, and a graph has no messages in "
        "it: give it a method blocks(), or train it with DDP or ZeRO"
    )

    def __init__(self, units: Units, stages: Stages, mesh: Mesh):
        ((place, parts),) = stages.parts.items()
        self._places = place, *parts
        self.parts = [units.at[at] for at in self._places]
        self.trained = [n for n, at in enumerate(self._places) if at not in stages.frozen]
        self.user = stages.places.index(place)
        self._company = Company(mesh, self.parts[0].device)
        self._numbers = {
            parameter: number
            for number, unit in enumerate(self.parts)
            for parameter in unit.plan.parameters.values()
        }
        self._rank = mesh.rank
        self.turns = Turns(mesh.group(COPIES), self._describe)
        self.visits = Visits(self.parts, self.turns)
        self._visited_by = dict(self._own_visits())
        self._last_backward: int | None = None  # micro-batch after which gradients are complete
        self._reduced: set[int] = set()  # numbers of units, in this program

    def _own_visits(self):
        """Yield (path, (module, numbers)) of the modules that have parameters of their own."""
        (block,) = self.parts[0].plan.blocks
        for module in block.named_modules().values():
            members = members_of(module).values()
            numbers = self.visited(each for each in members if isinstance(each, Parameter))
            if numbers:
                yield module.path_in_model, (module, numbers)

    @staticmethod
    def programs(*args, begins_reductions: bool, **settings) -> Programs:
        """Return programs without gathers; each reduction is one call, in the backward."""
        return Programs.of(*args, begins_reductions=False, gathers_parts=False, **settings)

    def _describe(self, number: int) -> str:
        """Return what this rank does at a turn: gathers, or reductions in the upper half."""
        what = "gather" if number < len(self.parts) else "reduce the gradient of"
        first, *others = self.parts[number % len(self.parts)].plan.parameters
        return f"{what} {first}" + (f" and {len(others)} more" if others else "")

    # ---- of Surroundings -------------------------------------------------------------------------

    def call(self, module, args, kwargs):
        """Return module.forward(*args, **kwargs), with the module's own parameters gathered."""
        known, numbers = self._visited_by.get(module.path_in_model, (None, ()))
        if known is not module:
            return module.forward(*args, **kwargs)
        self.visits.enter(numbers)
        try:
            return module.forward(*args, **kwargs)
        finally:
            self.visits.leave(numbers)

    def lend(self, parameter) -> None:
        """Gather the unit of a parameter that is read outside of its module's calls."""
        number = self._numbers.get(parameter)
        if number is not None:
            self.visits.lend(number)

    def visited(self, parameters) -> tuple[int, ...]:
        """Return the numbers of the units of these parameters, ascending."""
        return tuple(sorted({self._numbers[p] for p in parameters if p in self._numbers}))

    # ---- of Gathering ----------------------------------------------------------------------------

    def enter(self, actions: tuple[Action, ...]) -> None:
        """Begin a program: see after which micro-batch gradients are complete."""
        reduces = any(action.kind is Kind.REDUCE for action in actions)
        backwards = [a.micro_batch for a in actions if a.kind is Kind.BACKWARD]
        self._last_backward = backwards[-1] if reduces and backwards else None
        self._reduced.clear()
        self.turns.begin()

    def leave(self) -> None:
        """End a program: nothing stays gathered. No communication."""
        self.visits.release()

    def owners(self, place: Place) -> list[Unit]:
        """Return no unit: the backward writes all gradients."""
        return []

    @contextmanager
    def around(self, what: str, at: Place, m: int, inputs: Inputs):
        """Gather what modules ask for inside the block; its end, or an error, is common to all.

        Errors: what a module raises on one rank is raised on all, unless ranks that compute with it
        wait for it in a layer; ShardingError if they call modules in different orders.
        """
        place = f"{what} of micro-batch {m}"
        tells = what == "forward" and self._company.shares_samples
        self.visits.begin()
        try:
            with self._company.at(place, inputs, tells=tells), surrounded_by(self):
                yield
        except Exception as error:
            if not self._company.agrees_on(error) or self.turns.have_ended:
                raise
            if isinstance(error, CommunicationError) and not isinstance(error, PeerError):
                raise
            place = f"{place} of step {inputs.update.number}"
            self.turns.fail(described(error, self._rank, place, self.parts[0].device))
        self.turns.end()

    def agrees_on(self, error: Exception) -> bool:
        """Return False: an error is one of all ranks, and ends the program on all."""
        return False

    def walk(self, at: Place, output, gradient, m: int, inputs: Inputs) -> WeightGradients:
        """Go back from the output, and write all gradients on the way."""
        is_last = m == self._last_backward
        reduce_now = partial(self._reduce_now, inputs.gradient_scale) if is_last else None
        gradients = _GradientsOfWalk(self, inputs.first_gradient + m, reduce_now)
        try:
            uses = parameter_uses(output)
            refuse_strangers(uses, self._numbers)
            stops = gradients.stops(uses)
            walk((origin_of(output),), (first_gradient(output, gradient),), stops=stops)
            gradients.end()
        finally:
            gradients.give_up()
        return WeightGradients([])

    def _reduce_now(self, scale: float, number: int):
        self.turns.take(len(self.parts) + number)
        self.parts[number].reduce(scale)
        self._reduced.add(number)

    @property
    def table(self) -> dict:
        """The program has no gathers."""
        return {Kind.REDUCE: self._reduce}

    def _reduce(self, action, inputs, results):
        """Sum the gradients of a unit, unless the backward has done so in this program."""
        number = self._places.index((action.stage, action.unit))
        if number not in self._reduced:
            self.parts[number].reduce(inputs.gradient_scale)


class _GradientsOfWalk:
    """The gradients of all units in one backward, but for frozen ones, which it only gathers.

    micro_batch   its number in the sum
    when_closed   called with the number of each unit whose gradient is complete; None: nobody is
    """

    def __init__(self, units: AtCalls, micro_batch: int, when_closed):
        self._units = units
        self._visits = units.visits
        self._micro_batch = micro_batch
        self._when_closed = when_closed
        self._open: dict[int, object] = {}  # number of a unit -> its buffer
        self._closed: set[int] = set()
        self._entered: tuple[int, ...] = ()

    def stops(self, uses) -> list[tuple]:
        """Return where the walk opens and closes gradients, and visits other units."""
        stops = []
        last_use = {}
        before = ()
        for order, parameters, _ in uses:
            numbers = self._units.visited(parameters)
            last_use.update({n: order for n in numbers if n in self._units.trained})
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
            if number in self._units.trained:
                self._open_unit(number)
        self._visits.enter(numbers)
        self._entered = numbers

    def _leave(self):
        self._visits.leave(self._entered)
        self._entered = ()

    def _open_unit(self, number):
        if number not in self._open:
            self._open[number] = self._units.parts[number].gradients.open(self._units.user)

    def _close(self, numbers):
        for number in numbers:
            self._open_unit(number)
            buffer = self._open.pop(number)
            gradients = self._units.parts[number].gradients
            gradients.close(self._units.user, self._micro_batch, buffer)
            self._closed.add(number)
            if self._when_closed is not None:
                self._when_closed(number)

    def end(self) -> None:
        """Close what no operation has used: its gradient is zero."""
        self._leave()
        self._close([number for number in self._units.trained if number not in self._closed])

    def give_up(self) -> None:
        """Close what a failed walk has left open."""
        self._when_closed = None
        self._close(list(self._open))
