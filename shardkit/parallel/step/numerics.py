"""What a model is computed in: the dtype of activations, the precision of products, and the scale
of float16's loss.

    compute_dtype    master weights,  blocks          activations  gradients      messages
                     moments          read
    float32          float32          master weights  float32      float32        float32
    bfloat16         float32          rounded copies  bfloat16     float32        half floats, but
    float16          float32          rounded copies  float16      float32        float32 gradients

Each rank rounds what it owns and gathers half floats, so a gather moves half the bytes; the rule
updates the master weights, which are what checkpoints hold. A product of half floats is added up in
float32, and a weight's gradient is written as that float32, straight into the buffer that
micro-batches and ranks are summed in: so the order of sums, and with it the claim that bits do not
depend on the mesh, is that of float32. Norms, softmax, cross-entropy and all sums over elements
compute in float32 and store half floats (array/half_kernels.py); other losses see the prediction as
float32.

float16 ends at 65504 and has nothing between 0 and 6e-8, so small gradients would vanish: the loss
is multiplied by a power of two before the backward, and gradients are divided by it when they are
reduced, before anyone looks at them. If one is infinite or NaN on any rank, the vote on the step
says so to all (votes.py): the step is skipped and the scale halved. After enough good steps in a
row it is doubled. It depends on votes alone, so it is the same on all ranks and meshes.

Source: Mixed precision training (arXiv 1710.03740); the constants of dynamic scaling are those of
PyTorch's GradScaler, but that the loss here is a sum over tokens and not yet their mean, which is
why it starts lower.
"""

from dataclasses import dataclass

import numpy

from ...array import products
from ...array.blas import Library, library_named
from ...array.device import Device
from ...array.dtypes import dtype_named, is_floating
from ...array.halves import copy, rounded
from ...comm.mesh import Mesh
from ...errors import ConfigurationError
from ...nn.context import residual_streams_in
from ...nn.module import Module
from ...scoped import Together
from ..settings import ShardingConfiguration
from .batch import each
from .shortage import described

INITIAL_SCALE, GROWTH_INTERVAL = 1024.0, 2000
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-24, 2.0**24


@dataclass(frozen=True)
class Numerics:
    """What one model is computed in.

    dtype           of master weights, gradients, moments: that of the model
    compute_dtype   of what blocks read, and of activations
    stream_dtype    of residual streams (nn/ops/shape.py); None: they have none of their own
    precision       of products of float32: one of array.products.PRECISIONS
    blas            library of products on the CPU; None: NumPy's
    convolutions    one of array.products.CONVOLUTIONS
    """

    dtype: numpy.dtype
    compute_dtype: numpy.dtype
    stream_dtype: numpy.dtype | None = None
    precision: str = "highest"
    blas: Library | None = None
    convolutions: str = "fast"

    @classmethod
    def of(cls, config: ShardingConfiguration, model: Module, xp) -> "Numerics":
        """Read the configuration for a model on arrays of xp.

        Errors: ConfigurationError.
        """
        dtype = model.parameters()[0].dtype
        compute = dtype if config.compute_dtype is None else dtype_named(config.compute_dtype, xp)
        if compute != dtype and dtype != numpy.float32:
            raise ConfigurationError(
                f'compute_dtype = "{compute}" for a model of {dtype}; wanted a model of float32, '
                f"which is what master weights are kept in, or None, to compute in {dtype}"
            )
        if config.matmul_precision != "highest" and compute != numpy.float32:
            raise ConfigurationError(
                f'matmul_precision = "{config.matmul_precision}" is for products of float32, but '
                f'this model computes in {compute}; wanted "highest"'
            )
        stream = _stream_dtype(config, model, is_mixed=compute != dtype)
        library = library_named(config.blas)
        return cls(dtype, compute, stream, config.matmul_precision, library, config.convolutions)

    @property
    def usual_dtype(self) -> numpy.dtype:
        """The dtype in which activations go from stage to stage, as a rule."""
        return self.compute_dtype if self.stream_dtype is None else self.stream_dtype

    @property
    def is_mixed(self) -> bool:
        """True if blocks read rounded copies of the master weights."""
        return self.compute_dtype != self.dtype

    def product_dtype(self, is_on_gpu: bool) -> numpy.dtype:
        """Return what matrices are multiplied in: a CPU multiplies half floats as float32, unless
        it has bfloat16 and a library that uses it.
        """
        has_halves = self.blas is not None and self.blas.multiplies_halves
        is_widened = self.is_mixed and not is_on_gpu
        if is_widened and not (has_halves and self.compute_dtype.name == "bfloat16"):
            return numpy.dtype("float32")
        return self.compute_dtype

    @property
    def is_scaled(self) -> bool:
        """True if the loss is scaled."""
        return self.compute_dtype == numpy.float16

    def placed(self, device: Device, x, y, mesh: Mesh, place: str) -> tuple:
        """Return x of a batch on the device, as the first block reads it, and y.

        Errors: OutOfMemoryError, which names the rank of the mesh and the place.
        """
        try:
            return self.entering(each(device.from_host, x)), each(device.from_host, y)
        except MemoryError as error:
            raise described(error, mesh.rank, place, device) from error

    def entering(self, x):
        """Return a batch's x, an array or a tree of arrays, as the first block reads it.

        This is the one place where floating numbers are cast to the dtype that blocks compute in:
        float64 to float32 and the other way round, both to half floats where blocks are mixed.
        Integers and bool stay what they are.
        """
        return each(self._entering, x)

    def _entering(self, array):
        if array.dtype == self.compute_dtype or not is_floating(array.dtype):
            return array
        return (rounded if self.is_mixed else copy)(array, self.compute_dtype)

    def in_use(self) -> Together:
        """Inside, products are computed as chosen; overflow that is voted on gives no warning."""
        return Together(
            products.precision(self.precision),
            products.multiplied_by(self.blas),
            products.convolutions(self.convolutions),
            residual_streams_in(self.stream_dtype),
            *([numpy.errstate(over="ignore", invalid="ignore")] if self.is_scaled else []),
        )


def _stream_dtype(config, model, *, is_mixed: bool) -> numpy.dtype | None:
    """Return the dtype of residual streams. Errors: ConfigurationError where nothing reads it."""
    if config.residual_dtype is None:
        return None
    chosen = f'residual_dtype = "{config.residual_dtype}"'
    if not is_mixed:
        raise ConfigurationError(
            f"{chosen} is for models that compute in half floats, but this one computes in "
            f'{model.parameters()[0].dtype}; wanted None, or compute_dtype = "bfloat16"'
        )
    modules = model.named_modules().values()
    if not any(getattr(type(each), "has_residual_stream", False) for each in modules):
        raise ConfigurationError(
            f"{chosen} is for blocks of transformers, and {type(model).__name__} has none; wanted "
            "None"
        )
    return numpy.dtype(config.residual_dtype)


class LossScale:
    """What the loss is multiplied by before its backward: 1 unless it is dynamic.

    initial    the first scale, a power of two; None: it is 1 for ever
    interval   good steps in a row after which it is doubled
    """

    def __init__(self, initial: float | None = None, interval: int = GROWTH_INTERVAL):
        self._initial, self._interval = initial, interval
        self.reset()

    @classmethod
    def of(cls, config: ShardingConfiguration, numerics: Numerics) -> "LossScale":
        """Read the configuration. Errors: ConfigurationError if it sets what nothing would read."""
        chosen = {
            "initial_loss_scale": config.initial_loss_scale,
            "loss_scale_interval": config.loss_scale_interval,
        }
        if numerics.is_scaled:
            return cls(
                chosen["initial_loss_scale"] or INITIAL_SCALE,
                chosen["loss_scale_interval"] or GROWTH_INTERVAL,
            )
        for name, value in chosen.items():
            if value is not None:
                raise ConfigurationError(
                    f'{name} = {value}, but only compute_dtype = "float16" scales its loss; this '
                    f"model computes in {numerics.compute_dtype}: wanted None"
                )
        return cls()

    @property
    def is_dynamic(self) -> bool:
        return self._initial is not None

    def reset(self):
        """Set the scale back to its initial value."""
        self.value, self.good_steps = self._initial or 1.0, 0

    def count(self, is_taken: bool) -> None:
        """Count one step: taken, or skipped because something was infinite or NaN."""
        if not self.is_dynamic:
            return
        self.good_steps = self.good_steps + 1 if is_taken else 0
        if not is_taken:
            self.value = max(self.value / 2, SMALLEST_SCALE)
        elif self.good_steps == self._interval:
            self.value, self.good_steps = min(self.value * 2, LARGEST_SCALE), 0

    def state(self) -> dict | None:
        """Return what a checkpoint keeps; None if there is nothing to keep."""
        return {"value": self.value, "good_steps": self.good_steps} if self.is_dynamic else None

    def restore(self, state: dict | None) -> None:
        """Go on from there; from the beginning if the checkpoint is of a run without a scale."""
        self.reset()
        if self.is_dynamic and state is not None:
            self.value, self.good_steps = state["value"], state["good_steps"]
