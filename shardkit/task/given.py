"""A task from a model and data that a script has made itself.

task_of(model, (training, validation), loss=...) --> a Task class, as a file would declare it
"""

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import numpy

from ..array.backend import plain_array
from ..data.contents import content_of_array
from ..data.samples import TRAINING, VALIDATION, Samples
from ..data.split import Selected, split_rows
from ..errors import ConfigurationError
from ..layout.part import Rows, SamplePart
from ..nn.module import Module
from ..tree import is_tree, leaves, map_tree, named_leaves, structure
from .load import SCRIPT
from .task import Task

_HELD_OUT_PERCENT = 10.0  # of data that is not split yet


class ArraySamples(Samples):
    """Rows of two arrays, or of what is indexed like arrays: numpy.memmap, a
    dataset of h5py, Zarr or netCDF4.

    x, y   [n, ...], or trees of such (shardkit/tree.py)
    """

    def __init__(self, x, y):
        arrays = [*named_leaves(x, "x"), *named_leaves(y, "y")]
        lengths = {array.shape[0] for _, array in arrays}
        if len(lengths) != 1 or not all(lengths):
            found = ", ".join(f"{name} has {array.shape[0]:,} rows" for name, array in arrays)
            raise ConfigurationError(f"{found}; wanted the same number, at least 1")
        self.x, self.y = x, y

    def __len__(self):
        return leaves(self.x)[0].shape[0]

    def read(self, numbers, part=None):
        x_dim, y_dim = (None, None) if part is None else (part.x_dim, part.y_dim)
        return _read(self.x, numbers, part, x_dim), _read(self.y, numbers, part, y_dim)

    def fingerprint(self):
        digest = hashlib.sha256()
        for tree in (self.x, self.y):
            digest.update(str(structure(tree)).encode() if is_tree(tree) else b"")
        for array in leaves((self.x, self.y)):
            digest.update(content_of_array(array).encode())
        return digest.hexdigest()


def _read(tree, numbers, part: SamplePart | None, dim: int | None):
    """Return these samples of a tree, whole; of an array its part."""
    inside = None if part is None or is_tree(tree) else part.inside(tree.shape, dim)
    if inside is None or dim is None:
        return map_tree(lambda leaf: _rows(leaf, numbers), tree)
    rows = _rows(tree, numbers, *inside[1:])
    return Rows(rows, dim, inside[dim].start, tree.shape[dim])


def _rows(array, numbers, *within: slice) -> numpy.ndarray:
    """Return these rows, in this order; a dataset is read in ascending order, each row once.

    within   slices of the dims behind that of the rows
    """
    if isinstance(array, numpy.ndarray):
        return array[(slice(None), *within)][numbers]
    found, places = numpy.unique(numbers, return_inverse=True)
    values = array[(found, *within) if within else found]
    return plain_array(values, "an array of samples")[places]


def parts_of(data) -> dict[str, Samples]:
    """Return the training and the validation samples of what a script gives as data.

    data   (training, validation), or one of them, of which a tenth is held out; each is Samples or
           a pair of arrays x, y
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and _is_part(data[0]):
        return {TRAINING: as_samples(data[0]), VALIDATION: as_samples(data[1])}
    whole = as_samples(data)
    training, held_out = split_rows(len(whole), _HELD_OUT_PERCENT, whole.run_length)
    return {TRAINING: Selected(whole, training), VALIDATION: Selected(whole, held_out)}


def _is_part(data) -> bool:
    """Return True for samples and for a pair x, y."""
    return isinstance(data, Samples) or isinstance(data, (tuple, list)) and len(data) == 2


def as_samples(data) -> Samples:
    """Return Samples as they are, and a pair of arrays (x, y) as Samples.

    Errors: ConfigurationError on anything else.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return ArraySamples(*data)
    raise ConfigurationError(
        f"data of type {type(data).__name__}; wanted Samples, a pair of arrays (x, y), or a pair "
        "of either: (training, validation)"
    )


def task_of(
    model: Module | Callable[[], Module],
    data,
    *,
    loss=None,
    metrics: dict[str, Any] | None = None,
    sample: str = "samples",
    companions: dict[str, bytes] | None = None,
) -> type[Task]:
    """Return the class of a task with this model and data.

    model   a Module, which stays as it is, or a function () -> Module
    data    see parts_of
    Errors: ConfigurationError on anything else.
    """
    if not callable(model) or isinstance(model, type) and not issubclass(model, Module):
        raise ConfigurationError(
            f"a model of type {type(model).__name__}; wanted an nn.Module, or a function that "
            "returns one"
        )
    parts = parts_of(data)

    def make_model(self):
        return copy.deepcopy(model) if isinstance(model, Module) else model()

    members = {
        "make_model": make_model,
        "samples": lambda self, part: parts[part],
        "companions": lambda self: dict(companions or {}),
        "loss": staticmethod(loss) if callable(loss) and not hasattr(loss, "total") else loss,
        "metrics": dict(metrics or {}),
        "sample": sample,
        "defaults": {"run.task": SCRIPT},
    }
    return type("Script", (Task,), members)
