"""A task from a model and data that a script has made itself.

task_of(model, (training, validation), loss=...) --> a Task class, as a file would declare it
"""

import copy
import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy

from ..annotations import Tree
from ..arguments import require
from ..array.backend import host_array, plain_array
from ..data.contents import content_of_array
from ..data.draw import Draw
from ..data.raw.groups import is_frame
from ..data.samples import TRAINING, VALIDATION, Samples
from ..data.split import split_rows
from ..errors import ConfigurationError
from ..habits import named_here
from ..layout.part import Rows, SamplePart
from ..nn.module import Module
from ..tree import is_tree, leaves, map_tree, named_leaves, structure
from .load import SCRIPT
from .task import Task

_HELD_OUT_PERCENT = 10.0  # of data that is not split yet
_LOOKED_AT = 256  # samples whose content tells a data set from another
_SEEDS = threading.RLock()  # generators of the process are seeded for one sample at a time


class ArraySamples(Samples):
    """Rows of two arrays, or of what is indexed like them: of numpy.memmap, h5py, Zarr, netCDF4.

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
    return Rows.at(rows, dim, inside, tree.shape)


def _rows(array, numbers, *within: slice) -> numpy.ndarray:
    """Return these rows, in this order; a dataset is read in ascending order, each row once.

    within   slices of the dims behind that of the rows
    """
    if isinstance(array, numpy.ndarray):
        return array[(slice(None), *within)][numbers]
    found, places = numpy.unique(numbers, return_inverse=True)
    values = array[(found, *within) if within else found]
    return plain_array(values, "an array of samples")[places]


class IndexedSamples(Samples):
    """Samples of a data set that gives one for a number: a Dataset of PyTorch or Hugging Face.

    Parameters
    ----------
    dataset
        Anything with a length and dataset[number].
    x, y
        Keys of a sample, such as "image"; a pair (x, y) has none.

    Notes
    -----
    The generators of `random`, NumPy and PyTorch are seeded for each sample: what it draws is new
    in each epoch of training, the same on every mesh and after a restart. The fingerprint is of 256
    samples, spread evenly: a change of others is not noticed.
    """

    def __init__(self, dataset: Any, x: Any = 0, y: Any = 1) -> None:
        if not is_indexed(dataset):
            raise ConfigurationError(
                f"data of type {type(dataset).__name__}{named_here(dataset)}; wanted Samples, a "
                "pair of arrays (x, y), a data set with a length and dataset[number], or "
                "(training, validation) of these"
            )
        self._dataset, self._keys = dataset, (x, y)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, numbers: numpy.ndarray, draw: Draw | None = None) -> tuple[Tree, Tree]:
        seeds = (draw or Draw(0, numbers)).integers(1 << 32)
        samples = list(map(self._sample, numpy.asarray(numbers).tolist(), seeds.tolist()))
        x, y = (_stacked(*(each[key] for each in samples)) for key in self._keys)
        return x, y

    def _sample(self, number: int, seed: int) -> Any:
        with _seeded(seed):
            sample = self._dataset[number]
        is_pair = isinstance(sample, (tuple, list)) and len(sample) == 2
        if is_pair or isinstance(sample, dict) and {*self._keys} <= {*sample}:
            return sample
        got = f"{type(sample).__name__} {list(sample) if isinstance(sample, dict) else ''}"
        wanted = "a pair (x, y), or keys: sk.IndexedSamples(dataset, x='image', y='label')"
        raise ConfigurationError(f"sample {number} is a {got}; wanted {wanted}")

    def fingerprint(self) -> str:
        last, count = len(self) - 1, min(_LOOKED_AT, len(self))
        numbers = numpy.linspace(0, last, count, dtype=numpy.int64)
        found, again = self.read(numbers), self.read(numbers[:8])
        is_same = all(a[:8].tobytes() == b.tobytes() for a, b in zip(leaves(found), leaves(again)))
        wanted = "the same: let it draw by random, numpy.random or torch, not by its own generator"
        require(is_same, "samples", "others when a data set is read again", wanted)
        return f"{len(self):x}" + ArraySamples(*found).fingerprint()


def _stacked(*values) -> Tree:
    """Return arrays [n, ...] of n of them. Errors: ConfigurationError if they are not alike."""
    if is_tree(values[0]):
        return map_tree(_stacked, *values)
    arrays = [host_array("a sample", value) for value in values]
    kinds = sorted({f"{array.dtype} {array.shape}" for array in arrays})
    is_one = len(kinds) == 1 and arrays[0].dtype.kind not in "OSUM"
    wanted = "numbers of one shape and dtype: what a collate_fn does belongs into the data set"
    require(is_one, "samples", kinds, wanted)
    return numpy.stack(arrays)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of the process; afterwards they have their states again."""
    torch = sys.modules.get("torch")
    with _SEEDS, torch.random.fork_rng([]) if torch else nullcontext():
        kept = random.getstate(), numpy.random.get_state()
        random.seed(seed)
        numpy.random.seed(seed)
        if torch:
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(kept[0])
            numpy.random.set_state(kept[1])


def parts_of(data) -> dict[str, Samples]:
    """Return the training and the validation samples of what a script gives as data.

    data   (training, validation), or one of them, of which a tenth is held out; each is what
           as_samples takes
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and _is_part(data[0]):
        return {TRAINING: as_samples(data[0]), VALIDATION: as_samples(data[1])}
    whole = as_samples(data)
    training, held_out = split_rows(len(whole), _HELD_OUT_PERCENT, whole.run_length)
    return {TRAINING: whole.selected(training), VALIDATION: whole.selected(held_out)}


def _is_part(data) -> bool:
    """Return True for samples, a data set, a pair x, y, and what as_samples() answers by name."""
    is_pair = isinstance(data, (tuple, list)) and len(data) == 2
    return isinstance(data, Samples) or is_pair or is_indexed(data) or named_here(data) != ""


def is_indexed(data) -> bool:
    """Return True for a data set: it gives samples by number, and is no array, table or text."""
    gives = hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")
    others = isinstance(data, (str, bytes, Mapping)) or hasattr(data, "dtype") or is_frame(data)
    return gives and not others and not is_tree(data) and not named_here(data)


def as_samples(data) -> Samples:
    """Return Samples as they are; a pair of arrays (x, y), or a data set by number, as Samples.

    Errors: ConfigurationError on anything else.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return ArraySamples(*data)
    return IndexedSamples(data)


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
    is_other = isinstance(model, type) and not issubclass(model, Module)
    if not callable(model) or is_other or named_here(model):
        raise ConfigurationError(
            f"a model of type {type(model).__name__}{named_here(model)}; wanted an nn.Module, or a "
            "function that returns one"
        )
    if named_here(loss):
        raise ConfigurationError(f"loss = {loss!r}{named_here(loss)}")
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
