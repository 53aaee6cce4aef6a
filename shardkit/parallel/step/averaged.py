"""The averages of weights that sk.EMA keeps, put in the place of the weights for a while.

owned weights   w  <--swapped-->  a   owned averages        on each rank, nothing is sent;
                                                            replicas follow by the next gather
"""

from contextlib import contextmanager
from itertools import compress

from ...errors import ShardingError
from ...optim.average import AVERAGE


class Averages:
    """The averages of one model, if its rule keeps them.

    is_in_use   the averages stand in the place of the weights
    """

    def __init__(self, weights, owners: dict[str, str]):
        self._weights, self._owners = weights, owners
        self.is_in_use = False

    def begin(self) -> None:
        """Let the averages be the weights of now; settle() of the weights comes next."""
        for weights, averages in self._pairs(self._weights.units):
            averages[...] = weights

    @contextmanager
    def in_use(self, state):
        """Compute with the averages of a state (state.py) inside of the block. Collective, also its
        end. Before the first update on a unit its averages are the weights.
        Errors, on all ranks: ShardingError if the rule keeps none, or they are in use already.
        """
        if AVERAGE not in state.rule.state_names:
            raise ShardingError(
                f"{type(state.rule).__name__} keeps no averages of the weights; train with "
                "optimizer=sk.EMA(rule)"
            )
        self.check_not_in_use("use them twice")
        self._weights.check()
        owners = [self._owners.get(min(u.plan.parameters), "") for u in self._weights.units]
        begun = [state.updates.get(owner, 0) > state.state_since for owner in owners]
        units = list(compress(self._weights.units, begun))
        self.is_in_use = True
        try:
            self._swap(units)
            yield
        finally:
            self._swap(units)
            self.is_in_use = False

    def check_not_in_use(self, what: str) -> None:
        """Errors: ShardingError while the averages stand in the place of the weights."""
        if self.is_in_use:
            raise ShardingError(
                f"the averaged weights are in use; {what} outside of with_averaged_parameters()"
            )

    def _swap(self, units: list):
        if not units:
            return
        self._weights.wait_for_readers()
        for weights, averages in self._pairs(units):
            kept = weights.copy()
            weights[...] = averages
            averages[...] = kept
        self._weights.settle()

    def _pairs(self, units):
        """Yield 1-D views of the owned weights and of their averages, of each unit that has some: a
        frozen one has none.
        """
        for unit in units:
            owned = unit.owned_arrays()
            if f"optimizer/{AVERAGE}" in owned:
                yield owned["model"], owned[f"optimizer/{AVERAGE}"]
