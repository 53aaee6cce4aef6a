"""Write the predictions of a run into one HDF5 file, by all ranks at once.

    rank 0 lays the file out --offsets--> each data replica writes its windows, at their rows
                                          --all have written--> rank 0 gives the file its name

The datasets are contiguous, so a rank writes bytes at their place and no lock is held: those of
whole samples, or of its rows where ranks share them. The layout of the file is the same for any
number of ranks.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from operator import mul
from pathlib import Path

import numpy

from ..checkpoint.format.files import sync
from ..comm.failure.agreement import by_first, collectively
from ..data import hdf5
from ..data.samples import Samples
from ..errors import ConfigurationError, FileError
from ..files.paths import suffix_of
from ..files.reading import size_of
from ..files.removing import remove_file
from ..files.writing import fresh_file, give_name
from ..layout.axes import Held, alike
from ..layout.part import Rows
from ..nn.on_parts import takes_parts
from ..parallel.model.sharded_model import parts_of
from ..task.task import Task
from ..tree import num_samples
from .evaluation import SampleWindow, TrainedRun

_OTHER_KINDS = ".csv .tsv .txt .json .parquet .arrow .feather .npy .npz .xlsx .gz .zip".split()
_SAID = "task", "step"  # attributes of a file of predictions; of one of trials:
TRIALS = "trials"


def check_output(path: Path) -> None:
    """Raise ConfigurationError if predictions cannot be written to this file, or would replace what
    is no file of predictions, such as the data.
    """
    if path.is_dir():
        raise ConfigurationError(f"--output {path} is a folder; wanted the name of an HDF5 file")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--output {path}: there is no folder {path.parent}; make it")
    if suffix_of(path) in _OTHER_KINDS:
        raise ConfigurationError(
            f"--output {path}: predictions are written as HDF5; give a name such as "
            f"{path.with_suffix('.h5').name}"
        )
    if path.is_file() and not path.is_symlink() and not _is_of_predictions(path):
        raise ConfigurationError(
            f"--output {path} is there and holds no predictions, which alone are replaced; choose "
            "another name, or move it away"
        )


def _is_of_predictions(path: Path) -> bool:
    """Return True for an empty file, and for one that predictions were written to."""
    try:
        if not size_of(path):
            return True
        with hdf5.open_to_read(path) as file:
            return TRIALS in file.attrs or all(name in file.attrs for name in _SAID)
    except (OSError, FileError):
        return False


def predict(run: TrainedRun, samples: Samples, output: Path) -> dict[str, tuple[int, ...]]:
    """Write the outputs of all samples, in their order; return {dataset: shape}. Collective.

    The file replaces another of this name when it is complete, and not before.
    Errors, on all ranks: OSError; no half-written file stays.
    """
    with named_when_whole(run.backend, output) as temporary:
        return _write(run, samples, temporary)


@contextmanager
def named_when_whole(backend, output: Path) -> Iterator[Path]:
    """Give the file that all ranks write inside its name, or remove it after an error. Collective.

    Errors, on all ranks: OSError.
    """
    temporary = by_first(backend, lambda: fresh_file(output))
    try:
        yield temporary
        with collectively(backend):
            if backend.rank == 0:
                give_name(temporary, output)
                sync(output.parent)
    except BaseException:
        if backend.rank == 0:
            remove_file(temporary)
        raise


def _write(run: TrainedRun, samples: Samples, path: Path) -> dict[str, tuple[int, ...]]:
    """Write all windows into the file at this path. Collective."""
    writer = None
    for window in run.windows(samples):
        prediction = run.model.predict(window.x)
        is_whole = not isinstance(prediction, Rows) or not takes_parts(type(run.task).outputs)
        if is_whole:
            prediction = parts_of(run.model).engine.evaluation.whole_of(prediction)
        with collectively(run.backend):
            outputs = _outputs(run.task, prediction)
        if writer is None:
            writer = _Writer(run, path, outputs, len(samples))
        with collectively(run.backend):
            writer.write(window, outputs)
    with collectively(run.backend):
        writer.close()
    return writer.shapes


def _outputs(task: Task, prediction) -> dict:
    """Return what is written of a prediction: of a slab slabs. Errors: ConfigurationError."""
    is_slab = isinstance(prediction, Rows)
    outputs = task.outputs(prediction.array if is_slab else prediction)
    if any(len(values) != num_samples(prediction) for values in outputs.values()):
        raise ConfigurationError(
            f"{type(task).__name__}.outputs returns another number of rows than it was given; "
            "wanted one for each sample"
        )
    return (
        {name: _in_place(task, v, prediction) for name, v in outputs.items()}
        if is_slab
        else outputs
    )


def _in_place(task: Task, values, prediction: Rows) -> Rows:
    for cut in prediction.cuts:
        rows = cut.stop - cut.start
        if values.ndim <= cut.dim or values.shape[cut.dim] != rows:
            raise ConfigurationError(
                f"{type(task).__name__}.outputs returns {values.shape} of "
                f"{prediction.array.shape}, rows of predictions along dim {cut.dim}; wanted as "
                "many along it: without nn.partwise it gets whole predictions"
            )
    return prediction.map(lambda array: values)


class _Writer:
    """This rank's hand on the file. The constructor is collective.

    Of the ranks that have the same predictions, the first writes.
    """

    def __init__(self, run: TrainedRun, path: Path, outputs: dict, rows: int):
        where = run.model.mesh.coordinates
        have_parts = any(isinstance(values, Rows) for values in outputs.values())
        same = set(alike(Held.SAMPLES))
        if have_parts:
            same &= set(alike(Held.PARTS))
        self._is_writer = where.is_first(tuple(same))
        self.shapes = {name: (rows, *values.shape[1:]) for name, values in outputs.items()}
        layout = {name: (self.shapes[name], values.dtype) for name, values in outputs.items()}
        about = dict(zip(_SAID, (type(run.task).__name__, run.step)))
        self._offsets = by_first(run.backend, lambda: hdf5.lay_out(path, layout, about))
        with collectively(run.backend):
            self._file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW) if self._is_writer else None

    def write(self, window: SampleWindow, outputs: dict) -> None:
        """Write the outputs of a window at their rows. Errors: OSError."""
        if not self._is_writer or not window.is_counted:
            return
        for name, values in outputs.items():
            for place, content in _places(values, window.first):
                write_all(self._file, content, self._offsets[name] + place)

    def close(self) -> None:
        """Bring what was written to disk. Errors: OSError."""
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None


def _places(values, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield (byte in the dataset, bytes) of samples from the first on, or of their slab."""
    if not isinstance(values, Rows):
        yield first * values[:1].nbytes, numpy.ascontiguousarray(values).tobytes()
        return
    array, whole = values.array, values.shape
    dim, start, _, _ = values.cuts[-1]
    strides = [prod(whole[each + 1 : dim + 1]) for each in range(dim)]
    for each in values.cuts[:-1]:
        start += each.start * strides[each.dim]
    row_bytes = array.itemsize * prod(array.shape[dim + 1 :])
    outer = array.shape[:dim]
    runs = numpy.ascontiguousarray(array).reshape(prod(outer), -1)
    for run, index in zip(runs, numpy.ndindex(outer)):
        row = first * strides[0] + start + sum(map(mul, index, strides))
        yield row * row_bytes, run.tobytes()


def write_all(file: int, content: bytes, place: int) -> None:
    """Write these bytes at this byte of an open file. Errors: OSError."""
    while content:
        written = os.pwrite(file, content, place)
        content, place = content[written:], place + written
