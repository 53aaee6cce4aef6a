"""Predictions and losses of the global batch, without learning."""

from contextlib import nullcontext

import numpy

from ...array import fresh
from ...array.backend import to_host
from ...array.device import Device
from ...array.halves import widened
from ...comm.failure.agreement import collectively
from ...comm.mesh import Mesh
from ...errors import ShapeError
from ...layout.part import Rows, SamplePart
from ...nn.autograd import no_grad
from ...nn.context import ForwardContext
from ...nn.trees import as_float64, as_tensors
from ...tree import leaves, map_tree
from ..pipeline.form import Form
from ..tensor.vocabulary import whole_outputs
from .inputs import Inputs, MicroBatch
from .votes import StepLosses, raise_failure

# Of a prediction whose loss is computed in float64; logits of texts are more.
_FEW_ELEMENTS = 1 << 20


class Evaluation:
    """Runs forward programs of one model. Every method is collective over the mesh.

    runtime    runs programs (executor.py)
    program    forward of one micro-batch through all stages
    batches    the door that x and y come in by (batch.py)
    losses     sums them over the ranks
    weights    that must not await the values of a checkpoint
    samples    how ranks share each sample; None: they do not
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
        samples,
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
        self._samples = samples
        self._seed = seed

    def predict(self, x):
        """Return the output of the last block for this replica's x, a NumPy array or a tree of
        them, on all its pipeline ranks; for a slab of x slabs.
        """
        prediction = self._own_prediction(x)
        if self._samples is None:
            return prediction
        is_part = isinstance(x, Rows)
        return (self._samples.in_place if is_part else self._samples.joined)(prediction)

    def predicted(self, x, y, loss, *, in_parts: bool) -> tuple:
        """Return a prediction and its targets, of this rank's rows or of whole samples."""
        prediction = self._own_prediction(x)
        if self._samples is None:
            return prediction, y
        return self._samples.pair(prediction, y, loss, in_parts=in_parts)

    def whole_of(self, prediction):
        """Return a prediction with whole arrays in place of slabs."""
        return prediction if self._samples is None else self._samples.whole_of(prediction)

    def adds_parts(self, loss, metrics) -> bool:
        """Return True if ranks share samples, and these figures are sums over their parts."""
        return self._samples is not None and self._samples.adds_parts(loss, metrics)

    def domain_part(self, loss) -> SamplePart | None:
        """Return which part of each sample this rank needs; None: whole ones."""
        return None if self._samples is None else self._samples.part(loss)

    def _own_prediction(self, x):
        """Return the output for this rank's part of x."""
        self._weights.check()
        x = self._batches.agree_on_input(x)
        if self._samples is not None:
            with collectively(self._mesh.world):
                x = self._samples.own(x)
        with whole_outputs():
            prediction = self.forward(x)
        if prediction is not None:
            prediction = map_tree(lambda leaf: widened(to_host(leaf)), prediction)
        return self._from_last_stage(prediction)

    @property
    def counts_whole(self) -> bool:
        """True on one of the ranks that share samples: it counts what all of them have alike."""
        return self._samples is None or self._samples.counts_whole

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

    def own_samples(self, x, y) -> tuple:
        """Return x, y on the host, and how many samples they have; None is none.

        No communication. Errors: ShapeError unless model and loss take them.
        """
        return self._batches.own_samples(x, y)

    def own_loss(self, x, y) -> tuple[float, float]:
        """Return the sum of the loss over this rank's part, and the items that it counts.

        0 items where no predictions are made, in the stages before the last.
        Errors, on all ranks: ShapeError; what the loss raises on any.
        """
        self._weights.check()
        batch = self._batches.agree(x, y, micro_batches=1, call="evaluate")
        criterion = batch.loss
        prediction = self.forward(batch.x)
        total = items = 0.0
        with collectively(self._mesh.world), no_grad(), self.around_loss(criterion):
            if prediction is not None:
                targets = map_tree(self._device.from_host, batch.y)
                if sum(leaf.size for leaf in leaves(prediction)) <= _FEW_ELEMENTS:
                    prediction, targets = as_float64(prediction), as_float64(targets)
                total = float(criterion.total(as_tensors(prediction), targets).item())
                items = float(criterion.count(batch.y))
        return total, items

    def around_loss(self, loss):
        """Inside, a loss may read parameters of the last unit. Collective, as its forward is."""
        if self._samples is not None or not loss.takes_trees:
            return nullcontext()
        flow = self._runtime.flow
        return flow.plain_work.gathering.around("loss", flow.stages.last, 0, Inputs())

    def summed(self, numbers: list[float]) -> list[float]:
        """Return the sums over data ranks of what the last stage of each has."""
        return self._losses.summed(numbers)

    def loss_parts(self) -> dict[str, float]:
        """Return the mean of each part that the loss of the last step has. Collective."""
        return self._losses.parts()

    def forward(self, x, texts=None):
        """Return the output of this replica's x on the last stage, None elsewhere.

        Errors, on all ranks: what a block of one raised.
        texts   the pass over texts that are being continued (nn/texts.py)
        """
        is_cut = self._samples is not None
        if texts is not None and is_cut:
            self._samples.refuse_texts()
        context = ForwardContext(seed=self._seed, texts=texts, parts=self._samples)
        context = self._batches.context_for(x, context)
        part = MicroBatch(self._placed(x), None, context)
        results = self._runtime.run(self._program, Inputs((part,)))
        raise_failure(self._mesh.world, results.failure)
        return results.predictions.get(0)

    def _placed(self, x):
        """Return x on the device, as the first block reads it. Collective on GPUs, where a rank
        may have no room.

        Errors, on all ranks: OutOfMemoryError.
        """
        device = self._device
        together = collectively(self._mesh.world) if device.kind == "cuda" else nullcontext()
        with together:
            x, _ = self._numerics.placed(device, x, (), self._mesh, "a batch to predict")
        return x


def _description(form: Form):
    """Return the packed form, or the error that says why there is none."""
    try:
        return form.packed()
    except ShapeError as error:
        return error
