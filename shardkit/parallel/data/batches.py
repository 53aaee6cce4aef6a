"""Splitting a global batch over the data axis."""

import numpy

from ...comm.mesh import Mesh
from ...errors import ShapeError


def split_batch(mesh: Mesh, *arrays):
    """Return this data rank's slice of each array of a global batch, along dim 0, in rank order.

    No communication. Uneven batches give the first ranks one sample more.
    Errors, the same on all ranks that pass the same arrays: ShapeError if there are fewer samples
    than data ranks, or arrays of different lengths.
    """
    if any(numpy.ndim(array) == 0 for array in arrays):
        raise ShapeError("split_batch of a single number; wanted arrays [samples, ...]")
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) > 1:
        raise ShapeError(
            f"split_batch of arrays of {' and '.join(map(str, lengths[::-1]))} samples; wanted the "
            "same number"
        )
    if arrays and lengths[0] < mesh.size("data"):
        raise ShapeError(
            f"a batch of {lengths[0]} samples cannot be split over {mesh.size('data')} data ranks; "
            "wanted one for each, or more"
        )
    return tuple(own_part(mesh, array) for array in arrays)


def own_part(mesh: Mesh, array):
    """Return this data rank's slice of one array, empty if there are fewer samples than ranks."""
    return numpy.array_split(array, mesh.size("data"))[mesh.coordinates.data]
