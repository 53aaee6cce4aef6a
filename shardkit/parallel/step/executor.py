"""The executor: one table that says what each kind of action does, and one loop over the actions.

    program --> Runtime --> Executor --> flow.py        F, B, W, SEND, RECV, WAIT
                                     --> gathering.py   GATHER, RELEASE, REDUCE
                                     --> updates.py     TIE, CLIP, STEP

Nothing here knows a policy or a schedule: the one is in the units, the other in the program. What a
step has to deal with beside its actions wraps an executor and has its execute(): memory that runs
out (shortage.py), messages that must move meanwhile (Pumped). CUDA graphs wrap the runtime
(gpu/step/graphs.py). Recorders are told each action, if there are any (recorder.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ...array import products
from ...array.arena import Arena
from ...array.backend import is_device_array
from ...comm.mesh import Mesh
from ...comm.watch.progress import NANOSECONDS
from ...nn.context import OBJECTIVE
from ...nn.freezing import set_trained
from ...schedule.actions import Action, Kind
from ...scoped import Scoped
from ..data.unit import Units
from ..pipeline.programs import StepProgram
from .inputs import Inputs, Results
from .recorder import COMMUNICATION, Recorder
from .votes import fetch

_NOTHING = nullcontext()


class Listening:
    """Who listens to the steps of one engine: recorders, or nobody, for which nothing is paid.

    recorders   in the order in which they came
    exposed     {axis: seconds} of the last step in verbs of the axis, not computing. Where a verb
                ends, its seconds are added to those of its group, whoever listens
    """

    def __init__(self, mesh: Mesh):
        self.recorders: tuple[Recorder, ...] = ()
        self._progress = mesh.world.progress
        self._tallies = {
            axis: [group.progress.tallies[group.group_key] for group in mesh.carriers(axis)]
            for axis in mesh.shape.order
        }
        self._before = self._so_far()
        self.exposed = dict.fromkeys(self._tallies, 0.0)

    def _so_far(self) -> dict[str, float]:
        return {
            axis: sum([tally[NANOSECONDS] for tally in tallies]) * 1e-9
            for axis, tallies in self._tallies.items()
        }

    @contextmanager
    def telling(self, recorder: Recorder, *, verbs: bool = True) -> Iterator[None]:
        """Inside, the recorder hears what is done. Any number may, and they leave in any order. No
        communication.

        verbs   False: leave those out
        """
        with self._progress.telling(recorder) if verbs else _NOTHING:
            self.recorders = *self.recorders, recorder
            try:
                yield
            finally:
                self.recorders = tuple(each for each in self.recorders if each is not recorder)

    def begin_step(self, number: int) -> None:
        """Begin a step."""
        for recorder in self.recorders:
            recorder.begin_step(number)
        self._before = self._so_far()

    def end_step(self) -> None:
        """End the step."""
        before = self._before
        self.exposed = {axis: now - before[axis] for axis, now in self._so_far().items()}
        for recorder in self.recorders:
            recorder.end_step()

    def begin(self, action: Action) -> None:
        """Begin an action; end() must follow."""
        for recorder in self.recorders:
            recorder.begin_action(action)

    def end(self) -> None:
        """End the action."""
        for recorder in self.recorders:
            recorder.end()

    def span(self, kind: str) -> Any:
        """Inside, something of this kind is done."""
        if not self.recorders:
            return _NOTHING
        inside = ExitStack()
        for recorder in self.recorders:
            inside.enter_context(recorder.span(kind, kind))
        return inside

    def timed(self, function, name: str, kind: str):
        """Return the function, whose calls are spans for those who hear calls."""
        for recorder in self.recorders:
            if recorder.hears_calls:
                function = recorder.timed(function, name, kind)
        return function

    def goes_on(self, pending) -> None:
        """Note a checkpoint that is written in the background from now on."""
        for recorder in self.recorders:
            recorder.beside.append(pending)


@dataclass(frozen=True, eq=False)
class Objective:
    """What a step trains: all of a model (its name is ""), or the part of one of its objectives.

    units         that take a gradient; others: parameters that other objectives train
    ahead         runs the program with messages ahead, where overlap is on; else compilation does
    """

    name: str
    units: Units
    ahead: Any
    overlap: Any
    compilation: Any
    loss: Any = None
    others: tuple = ()

    @property
    def runtime(self):
        """What runs the next step."""
        return self.ahead if self.overlap.is_on else self.compilation.runtime

    def run(self, part: str, inputs: Inputs) -> Results:
        """Run a part of the program, named as in StepProgram; what others train rests."""
        runtime = self.runtime
        actions = getattr(runtime.program, part)
        if not self.name:
            return runtime.run(actions, inputs)
        with Scoped(OBJECTIVE, self.name):
            set_trained(self.others, False)
            try:
                results = runtime.run(actions, inputs._replace(loss=inputs.loss and self.loss))
            finally:
                set_trained(self.others, True)
        for m, loss in results.losses.items():
            named = {f"{self.name}.{name}": p for name, p in results.parts.get(m, {}).items()}
            results.parts[m] = {self.name: loss, **named}
        return results


def groups_due(objectives: Sequence[Objective], only: str | None, together: bool) -> list:
    """Return the objectives that take a step, in groups whose gradients come first."""
    due = [each for each in objectives if only in (None, each.name)]
    return [due] if together else [[each] for each in due]


class Executor:
    """Executes actions.

    table       {kind: function (action, inputs, results)}
    listening   who is told of the actions
    """

    def __init__(self, table: dict[Kind, Callable], listening: Listening):
        self.table = table
        self.listening = listening

    def execute(self, actions: Iterable[Action], inputs: Inputs, results: Results) -> None:
        """Do what the actions say, in order. Collective over the mesh."""
        table = self.table
        if self.listening.recorders:
            table = dict.fromkeys(table, self._recorded)
        for action in actions:
            table[action.kind](action, inputs, results)

    def _recorded(self, action, inputs, results):
        self.listening.begin(action)
        try:
            self.table[action.kind](action, inputs, results)
        finally:
            self.listening.end()


class Runtime:
    """Runs whole programs on one pipeline rank: begins, executes, and ends or gives up.

    executor   what executes
    flow       activations on their way; it and its transfers begin anew with each program
    movement   of parameters and gradients over the data axis
    gathering  is told where a program begins and ends
    units      that forget a program which fails
    arena      where activations, their gradients and temporaries lie
    numerics   how all of it computes
    program    of a step, which it can run whole or in parts
    """

    def __init__(
        self,
        executor,
        flow,
        movement,
        gathering,
        units: Units,
        arena: Arena,
        numerics,
        program: StepProgram,
    ):
        self.program = program
        self.executor = executor
        self.flow = flow
        self.movement = movement
        self._gathering = gathering
        self._units = units.all
        self._arena = arena
        self._numerics = numerics

    def run(self, actions: tuple[Action, ...], inputs: Inputs) -> Results:
        """Execute the actions in order and return what came out. Collective over the mesh.

        Errors, on this rank alone: what an action raises, unless it is told in results.failure.
        """
        results = Results()
        self._gathering.enter(actions)
        try:
            with self._arena.in_use(), self._numerics.in_use():
                self.flow.begin(actions, inputs)
                self.movement.begin_run()
                self.executor.execute(actions, inputs, results)
                self.flow.end()
                if results.losses and not any(map(is_device_array, results.losses.values())):
                    fetch(results)  # of the arena, which lends its memory again
        except BaseException:
            for part in (self.flow, self.movement, *self._units):
                part.give_up()
            raise
        finally:
            self.flow.clear()
            self._gathering.leave()
        return results


class Pumped:
    """Wraps an executor: messages that were begun ahead move while a rank computes.

    They do before each action and product.

    pump        lets messages move, and never blocks
    listening   the Listening of the executor
    """

    def __init__(self, executor, pump: Callable[[], None], listening):
        self._executor = executor
        self._pump = pump
        self.listening = listening

    def execute(self, actions: Iterable[Action], inputs: Inputs, results: Results) -> None:
        """Execute the actions, and pump in between."""
        pump = self.listening.timed(self._pump, "pump", COMMUNICATION)
        with products.doing_meanwhile(pump):
            self._executor.execute(_pumped(actions, pump), inputs, results)


def _pumped(actions, pump):
    for action in actions:
        pump()
        yield action
