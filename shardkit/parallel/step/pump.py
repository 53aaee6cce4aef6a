"""Messages that were begun ahead move while a rank computes: before each action and product."""

from collections.abc import Callable, Iterable

from ...array import products
from ...schedule.actions import Action
from .inputs import Inputs, Results
from .recorder import COMMUNICATION


class Pumped:
    """Wraps an executor.

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
