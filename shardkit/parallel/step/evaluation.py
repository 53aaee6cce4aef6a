"""Predictions and losses of the global batch, without learning."""

import numpy

from ...array.backend import to_host
from ...array.device import Device
from ...array.halves import widened
from ...comm.collectives.ordered import ordered_sum
from ...comm.failure.agreement import collectively
from ...comm.mesh import Mesh
from ...nn.autograd import Tensor, no_grad
from ...nn.context import ForwardContext
from ..tensor.vocabulary import whole_outputs
from .batch import check_peers
from .inputs import Inputs, MicroBatch, Results


class Evaluation:
    """Runs forward programs of one model. Every method is collective over the mesh.

    runtime    runs programs (executor.py)
    program    forward of one micro-batch through all stages
    batches    the door that x and y come in by (batch.py)
    weights    that must not await the values of a checkpoint
    dtype      of predictions
    """

    def __init__(
        self,
        runtime,
        program: tuple,
        batches,
        mesh: Mesh,
        device: Device,
        numerics,
        weights,
        *,
        seed: int,
        dtype: str,
    ):
        self._runtime = runtime
        self._program = program
        self._batches = batches
        self._mesh = mesh
        self._data = mesh.group("data")
        self._pipeline = mesh.group("pipeline")
        self._last_rank = runtime.flow.stages.last_rank
        self._device = device
        self._numerics = numerics
        self._weights = weights
        self._seed = seed
        self._dtype = dtype

    def predict(self, x):
        """Return the output of the last block for this replica's x, a NumPy array, on all its
        pipeline ranks.
        """
        self._weights.check()
        with collectively(self._mesh.world):
            x = self._batches.checked_input(x)
        if self._batches.compares_peers:
            check_peers(self._mesh, x)
        with whole_outputs():
            prediction = self._predict(x)
        shape = self._pipeline.broadcast_object(
            None if prediction is None else prediction.shape, self._last_rank
        )
        if prediction is None:
            prediction = numpy.empty(shape, self._dtype)
        prediction = widened(to_host(prediction))
        self._pipeline.broadcast(prediction, self._last_rank)
        return prediction

    def mean_loss(self, x, y) -> float:
        """Return the mean loss over the parts of all data ranks; NaN if nothing in them counts."""
        return _mean(*self.total_loss(x, y))

    def total_loss(self, x, y, *, is_counted: bool = True) -> tuple[float, float]:
        """Return the sum of the loss over the parts of all data ranks, and the items it counts.

        is_counted   False if this data rank has no part, and passes samples only because the others
                     gather with it
        """
        self._weights.check()
        batch = self._batches.agree(x, y, micro_batches=1)
        criterion = batch.loss
        prediction, total = self._predict(batch.x), 0.0
        if prediction is not None:
            with no_grad():
                targets = self._device.from_host(batch.y)
                total = float(criterion.total(Tensor(prediction), targets).item())
        total, items = self._sum_of_last_stages(
            [total, criterion.count(batch.y)] if is_counted else [0.0, 0.0]
        )
        return total, items

    def _predict(self, x):
        """Return the output on the last stage, None elsewhere."""
        x = self._numerics.entering(self._device.from_host(x))
        part = MicroBatch(x, None, ForwardContext(seed=self._seed))
        return self._runtime.run(self._program, Inputs((part,))).predictions.get(0)

    def mean_of(self, results: Results, items: float) -> float:
        """Return the mean loss of a step: NaN if there are no items.

        Losses of micro-batches, then of ranks, are summed in the tree order of their gradients.
        """
        losses = results.losses  # of the last stage; others have none
        level = [losses[m] for m in sorted(losses)] or [0.0]
        while len(level) > 1:
            level = [sum(level[i : i + 2]) for i in range(0, len(level), 2)]
        return _mean(self._sum_of_last_stages([level[0]])[0], items)

    def _sum_of_last_stages(self, numbers: list[float]) -> list[float]:
        """Return the sums over data ranks of what the last stage of each has, on all ranks.

        Down each pipeline first: then every rank needs its sum, and none adds numbers that nobody
        reads.
        """
        box = numpy.array(numbers, numpy.float64)
        self._pipeline.broadcast(box, self._last_rank)
        return ordered_sum(self._data, box).tolist()


def _mean(total: float, items: float) -> float:
    """Return the mean over so many items; NaN of none."""
    return total / items if items else float("nan")
