"""Gathering: who makes parameters whole before they are read, and reduces their gradients.

                whole                        gradients written   reduced
    ByProgram   from GATHER to RELEASE       by W                by REDUCE
    AtCalls     while a module is called     by B                in the last B, after the last use;
    (calls.py)                                                   else by REDUCE

The blocks of a model say which unit comes next, so its program can say when to gather it. A single
block does not: there it is the modules inside of it that say so, when they are called.
"""

from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Protocol

from ...array.device import BufferPool, OwnBuffers
from ...comm.mesh import Mesh
from ...errors import ShardingError
from ...nn.autograd import Tensor, WeightGradients, backward_inputs
from ...nn.parameter import NOT_OF_MODEL, called
from ...nn.tape import parameter_uses
from ...nn.trees import backward_through
from ...schedule.actions import Action, Kind
from ...tree import leaves
from ..data.unit import Unit, Units
from ..pipeline.programs import Programs
from ..pipeline.stages import Place, Stages
from .inputs import Inputs
from .shortage import Company


class Gathering(Protocol):
    """What runs a step asks of who gathers.

    buffers     makes the buffers that units are gathered in
    obstacle    why what it lends cannot be captured as CUDA graphs; None if it can
    """

    buffers: ClassVar[type[BufferPool] | type[OwnBuffers]]
    obstacle: ClassVar[str | None]

    @staticmethod
    def programs(*args, begins_reductions: bool, **settings) -> Programs:
        """Return the programs of a pipeline rank, as Programs.of() does."""

    def agrees_on(self, error: Exception) -> bool:
        """Return whether all ranks that compute this together raised the error, or know of it."""

    def enter(self, actions: tuple[Action, ...]) -> None:
        """Begin a program."""

    def leave(self) -> None:
        """End a program, also one that failed. No communication."""

    def around(self, what: str, at: Place, m: int, inputs: Inputs) -> AbstractContextManager:
        """Inside, the parameters of what is computed are whole when they are read; an error is one
        of all ranks that compute it together.

        what   "forward" or "backward", of a unit and micro-batch m; or "loss", without learning
        """

    def walk(self, at: Place, output, gradient, m: int, inputs: Inputs) -> WeightGradients:
        """Go back from the output of a unit and micro-batch; return what is still to be computed
        for parameters.
        """

    def owners(self, place: Place) -> list[Unit]:
        """Return the units to whose parameters W of this one gives gradients."""

    @property
    def table(self) -> dict:
        """What those kinds of actions do that are about parameters and gradients of one unit."""


def refuse_strangers(uses, known) -> None:
    """Raise ShardingError if operations give a gradient to a parameter that no model keeps.

    known   the parameters of the model
    """
    strangers = [p for use in uses for p in use.trained if p not in known]
    if strangers:
        raise ShardingError(
            f"{called(strangers[0])} takes a gradient and is none of the model's, so it would not "
            f"be trained: {NOT_OF_MODEL}; a constant has requires_grad=False"
        )


class ByProgram:
    """Units are gathered, released and reduced by actions of the program. A Gathering.

    units    of this rank
    """

    buffers = BufferPool
    obstacle = None
    programs = staticmethod(Programs.of)

    def __init__(self, units: Units, stages: Stages, mesh: Mesh):
        self._units, self._uses, self._plans = units.at, stages.uses, stages.plans
        self._unseen = set(units.at)  # whose first backward is still to come
        self._known = {p for plan in self._plans.values() for p in plan.parameters.values()}
        self._company = company = Company(mesh, units.all[0].device)
        self._told = (stages.first, stages.last) if company.shares_samples else ()
        self._owners = {
            place: [units.at[at] for at in stages.uses.trained(place)]
            if place in stages.lenders
            else []
            for place in units.at
        }

    @property
    def table(self) -> dict:
        """Each action is a call of its unit, collective over the data axis."""
        return {
            Kind.BEGIN_GATHER: self._on_unit(Unit.begin_gather),
            Kind.GATHER: self._on_unit(Unit.gather),
            Kind.RELEASE: self._on_unit(Unit.release),
            Kind.BEGIN_REDUCE: self._on_unit(Unit.begin_reduce),
            Kind.REDUCE: self._reduce,
        }

    def _on_unit(self, method):
        """Return what calls this method of the unit that an action names."""

        def act(action, inputs, results):
            method(self._units[action.stage, action.unit])

        return act

    def _reduce(self, action, inputs, results):
        self._units[action.stage, action.unit].reduce(inputs.gradient_scale)

    def enter(self, actions: tuple[Action, ...]) -> None:
        """Do nothing: the actions gather."""

    def leave(self) -> None:
        """Do nothing: the actions have released."""

    def around(self, what: str, at: Place, m: int, inputs: Inputs) -> AbstractContextManager:
        """Return where ranks that compute together agree on errors: GATHER has been there."""
        tells = what == "forward" and at in self._told
        if what == "loss":
            return self._gathered(at)
        return self._company.at(f"{what} of micro-batch {m}", inputs, tells=tells)

    @contextmanager
    def _gathered(self, at: Place):
        places = filter(self._units.__contains__, self._uses.gathered(at))
        units = [self._units[each] for each in places]
        for unit in units:
            unit.gather()
        try:
            yield
        finally:
            for unit in units:
                unit.release()

    def agrees_on(self, error: Exception) -> bool:
        """Return whether all ranks that compute together know of the error."""
        return self._company.agrees_on(error)

    def walk(self, at: Place, output, gradient, m: int, inputs: Inputs) -> WeightGradients:
        """Go back from the output; weight gradients are left to W."""
        if at in self._unseen:
            self._unseen.remove(at)
            self._check_reads(at, leaves(output))
        backward = backward_inputs if isinstance(output, Tensor) else backward_through
        return backward(output, gradient)

    def _check_reads(self, at, outputs):
        own = [self._plans[each].parameters.values() for each in self._uses.of(at)]
        uses = [use for each in outputs if isinstance(each, Tensor) for use in parameter_uses(each)]
        lost = {p for use in uses for p in use.trained}.difference(*own)
        names = [
            n for each in self._plans.values() for n, p in each.parameters.items() if p in lost
        ]
        if names:
            raise ShardingError(
                f"parameter {names[0]} is read outside of its block, where it gets no gradient; "
                "let the block that reads it, for a loss the last, have it, too"
            )
        refuse_strangers(uses, self._known)

    def owners(self, place: Place) -> list[Unit]:
        """Return the unit itself, those that it borrows from, and the parts of both, as far as they
        are trained. A copy gives none.
        """
        return self._owners[place]
