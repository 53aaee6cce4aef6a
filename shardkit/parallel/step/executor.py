"""The executor: one table that says what each kind of action does, and one loop over the actions.

    program --> Runtime --> Executor --> flow.py      F, B, W, SEND, RECV, WAIT
                                     --> updates.py   GATHER, RELEASE, REDUCE, TIE, CLIP, STEP

Nothing here knows a policy or a schedule: the one is in the units, the other in the program. What a
step has to deal with beside its actions wraps an executor and has its execute(): memory that runs
out (shortage.py), messages that must move meanwhile (pump.py), a stopwatch (stopwatch.py), a trace
(trace.py). CUDA graphs wrap the runtime (cuda_graphs.py).
"""

from collections.abc import Callable, Iterable

from ...array.arena import Arena
from ...array.backend import is_device_array
from ...schedule.actions import Action, Kind
from .inputs import Inputs, Results
from .votes import fetch


class Executor:
    """Executes actions.

    table   {kind: function (action, inputs, results)}
    """

    def __init__(self, table: dict[Kind, Callable]):
        self.table = table

    def execute(self, actions: Iterable[Action], inputs: Inputs, results: Results) -> None:
        """Do what the actions say, in order. Collective over the mesh."""
        table = self.table
        for action in actions:
            table[action.kind](action, inputs, results)


class Runtime:
    """Runs whole programs on one pipeline rank: begins, executes, and ends or gives up.

    executor   what executes; public, so that a stopwatch can wrap it
    flow       activations on their way; it and its transfers begin anew with each program
    movement   of parameters and gradients over the data axis
    units      that forget a program which fails
    arena      where activations, their gradients and temporaries lie
    numerics   how all of it computes
    """

    def __init__(self, executor, flow, movement, units: list, arena: Arena, numerics):
        self.executor = executor
        self.flow = flow
        self.movement = movement
        self._units = units
        self._arena = arena
        self._numerics = numerics

    def run(self, actions: tuple[Action, ...], inputs: Inputs) -> Results:
        """Execute the actions in order and return what came out. Collective over the mesh.

        Errors, on this rank alone: what an action raises, unless it is told in results.failure.
        """
        results = Results()
        try:
            with self._arena.in_use(), self._numerics.in_use():
                self.flow.begin(actions, inputs)
                self.movement.begin_run()
                self.executor.execute(actions, inputs, results)
                self.flow.end()
                if not any(map(is_device_array, results.losses.values())):
                    fetch(results)  # of the arena, which lends its memory again
        except BaseException:
            for part in (self.flow, self.movement, *self._units):
                part.give_up()
            raise
        finally:
            self.flow.clear()
        return results
