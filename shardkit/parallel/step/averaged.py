"""The averages of weights that sk.EMA keeps, put in the place of the weights for a while.

owned weights   w  <--swapped-->  a   owned averages        on each rank, nothing is sent;
                                                            replicas follow by the next gather
"""

from contextlib import contextmanager

from ...errors import ShardingError
from ...optim.average import AVERAGE


class Averages:
    """The averages of one model, if its rule keeps them.

    is_in_use   the averages stand in the place of the weights
    """

    def __init__(self, weights):
        self._weights = weights
        self.is_in_use = False

    def begin(self) -> None:
        """Let the averages be the weights of now; settle() of the weights comes next."""
        for weights, averages in self._pairs():
            averages[...] = weights

    @contextmanager
    def in_use(self, rule, *, have_begun: bool):
        """Compute with the averages inside of the block. Collective, also its end.

        have_begun   False before the first update: the averages are the weights then
        Errors, on all ranks: ShardingError if the rule keeps none, or they are in use already.
        """
        if AVERAGE not in rule.state_names:
            raise ShardingError(
                f"{type(rule).__name__} keeps no averages of the weights; train with "
                "optimizer=sk.EMA(rule)"
            )
        self.check_not_in_use("use them twice")
        self._weights.check()
        self.is_in_use = True
        try:
            if have_begun:
                self._swap()
            yield
        finally:
            if have_begun:
                self._swap()
            self.is_in_use = False

    def check_not_in_use(self, what: str) -> None:
        """Errors: ShardingError while the averages stand in the place of the weights."""
        if self.is_in_use:
            raise ShardingError(
                f"the averaged weights are in use; {what} outside of with_averaged_parameters()"
            )

    def _swap(self):
        self._weights.wait_for_readers()
        for weights, averages in self._pairs():
            kept = weights.copy()
            weights[...] = averages
            averages[...] = kept
        self._weights.settle()

    def _pairs(self):
        """Yield 1-D views of the owned weights and of their averages, of each unit that has some: a
        frozen one has none.
        """
        for unit in self._weights.units:
            owned = unit.owned_arrays()
            if f"optimizer/{AVERAGE}" in owned:
                yield owned["model"], owned[f"optimizer/{AVERAGE}"]
