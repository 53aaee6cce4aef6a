"""Predictions and losses of the global batch, without learning."""

import numpy

from ...array.backend import to_host
from ...array.device import Device
from ...array.halves import widened
from ...comm.failure.agreement import collectively
from ...comm.mesh import Mesh
from ...nn.autograd import Tensor, no_grad
from ...nn.context import ForwardContext
from ..tensor.vocabulary import whole_outputs
from .batch import check_peers
from .inputs import Inputs, MicroBatch
from .votes import StepLosses, mean


class Evaluation:
    """Runs forward programs of one model. Every method is collective over the mesh.

    runtime    runs programs (executor.py)
    program    forward of one micro-batch through all stages
    batches    the door that x and y come in by (batch.py)
    losses     sums them over the ranks
    weights    that must not await the values of a checkpoint
    dtype      of predictions
    """

    def __init__(
        self,
        runtime,
        program: tuple,
        batches,
        losses: StepLosses,
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
        self._losses = losses
        self._mesh = mesh
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
            prediction = self.forward(x)
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
        return mean(*self.total_loss(x, y))

    def total_loss(self, x, y, *, is_counted: bool = True) -> tuple[float, float]:
        """Return the sum of the loss over the parts of all data ranks, and the items it counts.

        is_counted   False if this data rank has no part, and passes samples only because the others
                     gather with it
        """
        self._weights.check()
        batch = self._batches.agree(x, y, micro_batches=1)
        criterion = batch.loss
        prediction, total = self.forward(batch.x), 0.0
        if prediction is not None:
            with no_grad():
                targets = self._device.from_host(batch.y)
                total = float(criterion.total(Tensor(prediction), targets).item())
        total, items = self._losses.summed(
            [total, criterion.count(batch.y)] if is_counted else [0.0, 0.0]
        )
        return total, items

    def forward(self, x, texts=None):
        """Return the output of this replica's x on the last stage, None elsewhere.

        texts   the pass over texts that are being continued (nn/texts.py)
        """
        x = self._numerics.entering(self._device.from_host(x))
        part = MicroBatch(x, None, ForwardContext(seed=self._seed, texts=texts))
        return self._runtime.run(self._program, Inputs((part,))).predictions.get(0)
