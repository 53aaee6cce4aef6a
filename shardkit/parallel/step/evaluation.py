"""Predictions and losses of the global batch, without learning."""

import numpy

from ...array import fresh
from ...array.backend import to_host
from ...array.device import Device
from ...array.halves import widened
from ...comm.mesh import Mesh
from ...errors import ShapeError
from ...nn.autograd import no_grad
from ...nn.context import ForwardContext
from ...nn.trees import as_tensors
from ...tree import leaves, map_tree
from ..pipeline.form import Form
from ..tensor.vocabulary import whole_outputs
from .inputs import Inputs, MicroBatch
from .votes import StepLosses, mean


class Evaluation:
    """Runs forward programs of one model. Every method is collective over the mesh.

    runtime    runs programs (executor.py)
    program    forward of one micro-batch through all stages
    batches    the door that x and y come in by (batch.py)
    losses     sums them over the ranks
    weights    that must not await the values of a checkpoint
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

    def predict(self, x):
        """Return the output of the last block for this replica's x, a NumPy array or a tree of
        them, on all its pipeline ranks.
        """
        self._weights.check()
        x = self._batches.agree_on_input(x)
        with whole_outputs():
            prediction = self.forward(x)
        if prediction is not None:
            prediction = map_tree(lambda leaf: widened(to_host(leaf)), prediction)
        return self._from_last_stage(prediction)

    def _from_last_stage(self, prediction):
        """Return the prediction of the last stage on all pipeline ranks; None is given elsewhere.

        Errors, on all pipeline ranks: ShapeError if its structure cannot be sent.
        """
        if self._pipeline.world_size == 1:
            return prediction
        told = None if prediction is None else _description(Form.of(prediction))
        told = self._pipeline.broadcast_object(told, self._last_rank)
        if isinstance(told, Exception):
            raise told
        form = Form.unpacked(told)
        if prediction is None:
            arrays = [numpy.empty(*leaf) for leaf in form.layout]
        else:
            arrays = [fresh.contiguous(leaf) for leaf in leaves(prediction)]
        for array in arrays:
            self._pipeline.broadcast(array, self._last_rank)
        return form.filled(arrays)

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
                targets = map_tree(self._device.from_host, batch.y)
                total = float(criterion.total(as_tensors(prediction), targets).item())
        total, items = self._losses.summed(
            [total, criterion.count(batch.y)] if is_counted else [0.0, 0.0]
        )
        return total, items

    def forward(self, x, texts=None):
        """Return the output of this replica's x on the last stage, None elsewhere.

        texts   the pass over texts that are being continued (nn/texts.py)
        """
        x = self._numerics.entering(map_tree(self._device.from_host, x))
        part = MicroBatch(x, None, ForwardContext(seed=self._seed, texts=texts))
        return self._runtime.run(self._program, Inputs((part,))).predictions.get(0)


def _description(form: Form):
    """Return the packed form, or the error that says why there is none."""
    try:
        return form.packed()
    except ShapeError as error:
        return error
