"""Splitting a global batch over the data axis."""

import numpy

from ...annotations import Tree
from ...comm.mesh import Mesh
from ...errors import ShapeError
from ...layout.cuts import even_span
from ...tree import is_tree, leaves, map_tree


def split_batch(mesh: Mesh, *arrays: Tree) -> tuple[Tree, ...]:
    """Return this data rank's slice of each array of a global batch, along dim 0, in rank order.

    An array may be a tree of arrays, of which each leaf is cut. No communication. Uneven batches
    give the first ranks one sample more.

    Parameters
    ----------
    mesh
        Of the model.
    *arrays
        [samples, ...] each, or trees of such; global, the same on all ranks.

    Raises
    ------
    ShapeError
        The same on all ranks that pass the same arrays: if there are fewer samples than data ranks,
        or arrays of different lengths.
    """
    parts = [leaf for array in arrays for leaf in (leaves(array) if is_tree(array) else [array])]
    if any(numpy.ndim(part) == 0 for part in parts):
        raise ShapeError("split_batch of a single number; wanted arrays [samples, ...]")
    lengths = sorted({len(part) for part in parts})
    if len(lengths) > 1:
        raise ShapeError(
            f"split_batch of arrays of {' and '.join(map(str, lengths[::-1]))} samples; wanted the "
            "same number"
        )
    _, num_parts = mesh.sample_part
    if parts and lengths[0] < num_parts:
        raise ShapeError(
            f"a batch of {lengths[0]} samples cannot be split over {num_parts} data ranks; "
            "wanted one for each, or more"
        )
    return tuple(own_part(mesh, array) for array in arrays)


def own_part(mesh: Mesh, array):
    """Return this data rank's slice of one array or tree, empty if there are fewer samples than
    ranks.
    """
    number, num_parts = mesh.sample_part

    def own(leaf):
        whole = leaf if hasattr(leaf, "shape") else numpy.asarray(leaf)
        start, stop = even_span(len(whole), num_parts, number)
        return whole[start:stop]

    return map_tree(own, array) if is_tree(array) else own(array)
