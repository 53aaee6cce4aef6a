"""Integers that name rows or classes: what they must be."""

import numpy

from ...array import fresh
from ...array.backend import is_device_array
from ...errors import ShapeError
from ..autograd import array_of


def index_array(ids):
    """Return the array of a Tensor, an array as it is, anything else as an array of the host."""
    ids = array_of(ids)
    return ids if is_device_array(ids) else fresh.placed(ids, numpy)


def check_ids(name, ids, stop, ignored=None):
    """Raise ShapeError unless ids are integers and, on the host, in [0, stop) or `ignored`.

    Ids in GPU memory came from the host, where a model's check_input has seen the whole batch; to
    look at them here would mean to wait for the GPU.
    """
    if ids.dtype.kind not in "iu":
        raise ShapeError(f"{name} with ids of dtype {ids.dtype}; wanted integers")
    if is_device_array(ids):
        return
    if ignored is not None:
        ids = ids[ids != ignored]
    if ids.size and (ids.min() < 0 or ids.max() >= stop):
        raise ShapeError(
            f"{name} with ids from {ids.min()} to {ids.max()}; wanted 0 <= id < {stop}: is the "
            "vocabulary as large as the one the ids were made with?"
        )
