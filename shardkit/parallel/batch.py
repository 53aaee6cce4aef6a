"""The batch of a step: this data rank's part, checked on all ranks at once, with its place in the global batch.

    data rank 0    x [n0, ...] | data rank 1    x [n1, ...] | ...          pipeline and tensor peers pass the same part
"""
import zlib
from dataclasses import dataclass

import numpy

from ..array.backend import host_array
from ..comm import Ballot, Mesh, collectively
from ..errors import ShapeError, ShardingError, StopVoted
from ..nn.loss import Loss

SAMPLE_BITS = 32        # of the number of a rank's samples; above it in the same message is the form of its part


@dataclass(frozen=True)
class Batch:
    """This data rank's part of a global batch, and where it lies in the whole."""

    x: object
    y: object
    first_sample: int       # number of x[0] in the global batch
    samples: int            # of the global batch
    items: float            # that the loss counts in the global batch (tokens, for a language model)
    form: bytes             # equal, on all ranks, for batches of the same shapes and dtypes on every data rank


def agree_on_batch(mesh: Mesh, x, y, criterion: Loss, micro_batches: int, *, compare_peers: bool,
                   ballot: Ballot | None = None) -> Batch:
    """The batch of this step. Collective over the mesh.

    compare_peers   checked mode: pipeline and tensor peers must have passed the same part
    ballot          whether to stop, decided in the message that the ranks need anyway to agree that the batch is good
    Errors, on all ranks: ShapeError if it is empty or does not divide into the micro-batches, StopVoted, ShardingError naming
    the ranks that passed another part than their peers.
    """
    with collectively(mesh.world, ballot):
        x, y = _checked(x, y, micro_batches)
        mine = numpy.array([len(x) | _form(x, y) << SAMPLE_BITS, criterion.count(y)], numpy.int64)
    if ballot is not None and ballot.outcome:
        raise StopVoted(*ballot.outcome)
    if compare_peers:
        check_peers(mesh, x, y)
    data = mesh.group("data")
    everyones = numpy.zeros((data.world_size, 2), numpy.int64)
    data.all_gather(mine, everyones.reshape(-1))
    samples, items = everyones[:, 0] & (1 << SAMPLE_BITS) - 1, everyones[:, 1]
    return Batch(x, y, int(samples[:data.rank].sum()), int(samples.sum()), float(items.sum()), everyones[:, 0].tobytes())


def check_peers(mesh: Mesh, *arrays) -> None:
    """Errors, on all ranks: ShardingError naming ranks that passed other arrays than the first rank of their replica.

    Collective over the mesh; by checksums.
    """
    mine = [(array.shape, str(array.dtype), zlib.crc32(numpy.ascontiguousarray(array))) for array in map(numpy.asarray, arrays)]
    everyones = mesh.world.all_gather_object((mesh.coordinates.data, mine))
    first: dict[int, int] = {}                  # data coordinate -> its first rank
    for rank, (replica, _) in enumerate(everyones):
        first.setdefault(replica, rank)
    wrong = [rank for rank, (replica, theirs) in enumerate(everyones) if theirs != everyones[first[replica]][1]]
    if wrong:
        replica = everyones[wrong[0]][0]
        raise ShardingError(f"rank {', '.join(map(str, wrong))} passed another batch than rank {first[replica]}, its peer in "
                            f"data replica {replica}; wanted the same part on all pipeline and tensor ranks of a replica: "
                            "take it with split_batch(model.mesh, x, y)")


def _form(*arrays) -> int:
    """31 bits for what these arrays are beside their numbers."""
    return zlib.crc32(repr([(array.shape, str(array.dtype), array.flags.c_contiguous) for array in arrays]).encode()) >> 1


def _checked(x, y, micro_batches: int):
    x, y = host_array("x", x), host_array("y", y)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ShapeError(f"x has shape {x.shape} and y {y.shape}; wanted the same number of samples along dim 0")
    if len(x) == 0 or len(x) % micro_batches:
        raise ShapeError(f"{len(x)} samples on this rank do not divide into {micro_batches} micro-batches; "
                         f"pass a multiple of {micro_batches}, at least {micro_batches}")
    return x, y
