"""Messages that were begun ahead move while a rank computes: before each action and product."""

from collections.abc import Callable, Iterable

from ...array import products
from ...schedule.actions import Action
from .inputs import Inputs, Results


class Pumped:
    """Wraps an executor.

    pump   lets messages move, and never blocks
    """

    def __init__(self, executor, pump: Callable[[], None]):
        self.executor = executor
        self.pump = pump

    def execute(self, actions: Iterable[Action], inputs: Inputs, results: Results) -> None:
        """Execute the actions, and pump in between."""
        with products.doing_meanwhile(self.pump):
            self.executor.execute(self._pumped(actions), inputs, results)

    def _pumped(self, actions):
        for action in actions:
            self.pump()
            yield action
