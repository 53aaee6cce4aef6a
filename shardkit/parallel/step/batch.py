"""The batch of a step: this data rank's part, checked on all ranks together, with its place in the
global batch.

    data rank 0  x [n0, ...] | data rank 1  x [n1, ...] | ...    pipeline and tensor peers pass the
                                                                 same part
"""

import zlib
from dataclasses import dataclass

import numpy

from ...array.backend import host_array
from ...array.dtypes import is_half
from ...comm.failure.agreement import collectively
from ...comm.failure.ballot import Ballot
from ...comm.mesh import Mesh
from ...errors import ShapeError, ShardingError, StopVoted
from ...nn.loss import Loss, as_loss
from ...nn.module import Module, check_input_of, output_shape_of

SAMPLE_BITS = (
    32  # of the number of a rank's samples; above it in the same message is the form of its part
)


@dataclass(frozen=True)
class AgreedBatch:
    """This data rank's part of a global batch, and where it lies in the whole."""

    x: object
    y: object
    first_sample: int  # number of x[0] in the global batch
    loss: Loss
    samples: int  # of the global batch
    items: float  # that the loss counts in the global batch (tokens, for a language model)
    form: bytes  # equal, on all ranks, for batches of the same shapes and dtypes on every data rank


class Batches:
    """The door that batches of one model come in by.

    loss             the usual one: a Loss, or a function (prediction, y) -> mean loss; None: the
                     model's own
    compares_peers   checked mode: pipeline and tensor peers must have passed the same part
    """

    def __init__(self, mesh: Mesh, model: Module, loss, *, compares_peers: bool):
        self._mesh = mesh
        self._data = mesh.group("data")
        self._model = model
        self._loss = loss
        self.compares_peers = compares_peers

    def agree(
        self, x, y, micro_batches: int, loss=None, ballot: Ballot | None = None
    ) -> AgreedBatch:
        """Return the batch of this step. Collective over the mesh.

        loss     instead of the usual one
        ballot   whether to stop, decided in the message that the ranks need anyway to agree that
                 the batch is good
        Errors, on all ranks: ShapeError if the part of any rank is empty, does not divide into the
        micro-batches, or is nothing that the model takes or the loss has targets in; StopVoted,
        ShardingError naming the ranks that passed another part than their peers.
        """
        with collectively(self._mesh.world, ballot):
            criterion = as_loss(loss or self._usual_loss())
            x, y = _checked_samples(self._model, criterion, x, y)
            _check_division(len(x), micro_batches)
            size_and_form = len(x) | _form(x, y) << SAMPLE_BITS
            mine = numpy.array([size_and_form, 0], numpy.int64)
            mine[1:].view(numpy.float64)[:] = criterion.count(y)
        if ballot is not None and ballot.outcome:
            raise StopVoted(*ballot.outcome)
        if self.compares_peers:
            check_peers(self._mesh, x, y)
        data = self._data
        everyones = numpy.zeros((data.world_size, 2), numpy.int64)
        data.all_gather(mine, everyones.reshape(-1))
        samples = everyones[:, 0] & (1 << SAMPLE_BITS) - 1
        items = everyones[:, 1].copy().view(numpy.float64)
        return AgreedBatch(
            x,
            y,
            int(samples[: data.rank].sum()),
            criterion,
            int(samples.sum()),
            float(items.sum()),
            everyones[:, 0].tobytes(),
        )

    def _usual_loss(self):
        return self._loss or self._model.loss

    def check(self, x, y) -> None:
        """Errors: ShapeError unless model and usual loss take them. No communication."""
        _checked_samples(self._model, as_loss(self._usual_loss()), x, y)

    def checked_input(self, x):
        """Return x as an array of the host, if the model takes it; it may have no samples.

        Errors: ShapeError, DeviceError.
        """
        x = _numbers("x", x)
        if x.ndim == 0:
            raise ShapeError("x is a single number; wanted an array [samples, ...]")
        check_input_of(self._model, x)
        return x


def check_peers(mesh: Mesh, *arrays) -> None:
    """Raise ShardingError on all ranks if one passed other arrays than its replica's first rank.

    Collective over the mesh; by checksums.
    """
    mine = [
        (array.shape, str(array.dtype), zlib.crc32(numpy.ascontiguousarray(array)))
        for array in map(numpy.asarray, arrays)
    ]
    everyones = mesh.world.all_gather_object((mesh.coordinates.data, mine))
    first: dict[int, int] = {}  # data coordinate -> its first rank
    for rank, (replica, _) in enumerate(everyones):
        first.setdefault(replica, rank)
    wrong = [
        rank
        for rank, (replica, theirs) in enumerate(everyones)
        if theirs != everyones[first[replica]][1]
    ]
    if wrong:
        replica = everyones[wrong[0]][0]
        raise ShardingError(
            f"rank {', '.join(map(str, wrong))} passed another batch than rank {first[replica]}, "
            f"its peer in data replica {replica}; wanted the same part on all pipeline and tensor "
            "ranks of a replica: take it with split_batch(model.mesh, x, y)"
        )


def _form(*arrays) -> int:
    """Return 31 bits for shapes, dtypes and memory order."""
    return (
        zlib.crc32(
            repr(
                [(array.shape, str(array.dtype), array.flags.c_contiguous) for array in arrays]
            ).encode()
        )
        >> 1
    )


def _checked_samples(model: Module, criterion: Loss, x, y):
    """Return x and y as arrays of the host, if model and loss take them. No communication.

    Errors: ShapeError, DeviceError.
    """
    x, y = _numbers("x", x), _numbers("y", y)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ShapeError(
            f"x has shape {x.shape} and y {y.shape}; wanted the same number of samples along dim 0"
        )
    if 0 in x.shape or 0 in y.shape:
        raise ShapeError(
            f"x has shape {x.shape} and y {y.shape}: there is nothing in it; wanted a sample or "
            "more on every rank"
        )
    check_input_of(model, x)
    criterion.check_targets(y, output_shape_of(model, x.shape))
    return x, y


def _numbers(what, array):
    """Return what a caller passed, as an array of the host.

    Errors: ShapeError if it holds no real numbers.
    """
    array = host_array(what, array)
    if array.dtype.kind not in "biuf" and not is_half(array.dtype):
        raise ShapeError(f"{what} is of dtype {array.dtype}; wanted real numbers, integers or bool")
    return array


def _check_division(num_samples, micro_batches):
    if num_samples % micro_batches:
        raise ShapeError(
            f"{num_samples} samples on this rank do not divide into {micro_batches} micro-batches; "
            f"pass a multiple of {micro_batches}, at least {micro_batches}"
        )
