"""Write the predictions of a run into one HDF5 file, by all ranks at once.

    rank 0 lays the file out --offsets--> each data replica writes its windows, at their rows
                                          --all have written--> rank 0 gives the file its name

The datasets are contiguous, so a rank writes bytes at their place and no lock is held. The bytes
of the file are the same for any number of ranks.
"""

import os
from pathlib import Path

import numpy

from ..checkpoint.format.files import sync
from ..comm.failure.agreement import by_first, collectively
from ..data import hdf5
from ..data.samples import Samples
from ..errors import ConfigurationError
from ..files.removing import remove_file
from ..files.writing import fresh_file, give_name
from ..layout.axes import Held, alike
from ..tree import num_samples
from .evaluation import SampleWindow, TrainedRun


def check_output(path: Path) -> None:
    """Raise ConfigurationError if predictions cannot be written to this file."""
    if path.is_dir():
        raise ConfigurationError(f"--output {path} is a folder; wanted the name of an HDF5 file")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--output {path}: there is no folder {path.parent}; make it")


def predict(run: TrainedRun, samples: Samples, output: Path) -> dict[str, tuple[int, ...]]:
    """Write the outputs of all samples, in their order; return {dataset: shape}. Collective.

    The file replaces another of this name when it is complete, and not before.
    Errors, on all ranks: OSError; no half-written file stays.
    """
    temporary = by_first(run.backend, lambda: fresh_file(output))
    try:
        shapes = _write(run, samples, temporary)
        with collectively(run.backend):
            if run.backend.rank == 0:
                give_name(temporary, output)
                sync(output.parent)
    except BaseException:
        if run.backend.rank == 0:
            remove_file(temporary)
        raise
    return shapes


def _write(run: TrainedRun, samples: Samples, path: Path) -> dict[str, tuple[int, ...]]:
    """Write all windows into the file at this path. Collective."""
    writer = None
    for window in run.windows(samples):
        prediction = run.model.predict(window.x)
        with collectively(run.backend):
            outputs = run.task.outputs(prediction)
            if any(len(values) != num_samples(prediction) for values in outputs.values()):
                raise ConfigurationError(
                    f"{type(run.task).__name__}.outputs returns another number of rows than it "
                    "was given; wanted one for each sample"
                )
        if writer is None:
            writer = _Writer(run, path, outputs, len(samples))
        with collectively(run.backend):
            writer.write(window, outputs)
    with collectively(run.backend):
        writer.close()
    return writer.shapes


class _Writer:
    """This rank's hand on the file. The constructor is collective.

    Of the ranks that have the same predictions, the first writes.
    """

    def __init__(self, run: TrainedRun, path: Path, outputs: dict, rows: int):
        self._is_writer = run.model.mesh.coordinates.is_first(alike(Held.SAMPLES))
        self.shapes = {name: (rows, *values.shape[1:]) for name, values in outputs.items()}
        layout = {name: (self.shapes[name], values.dtype) for name, values in outputs.items()}
        about = {"task": type(run.task).__name__, "step": run.step}
        self._offsets = by_first(run.backend, lambda: hdf5.lay_out(path, layout, about))
        with collectively(run.backend):
            self._file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW) if self._is_writer else None

    def write(self, window: SampleWindow, outputs: dict) -> None:
        """Write the outputs of a window at their rows. Errors: OSError."""
        if not self._is_writer or not window.is_counted:
            return
        for name, values in outputs.items():
            row_bytes = values[:1].nbytes
            place = self._offsets[name] + window.first * row_bytes
            _write_all(self._file, numpy.ascontiguousarray(values).tobytes(), place)

    def close(self) -> None:
        """Bring what was written to disk. Errors: OSError."""
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None


def _write_all(file: int, content: bytes, place: int) -> None:
    while content:
        written = os.pwrite(file, content, place)
        content, place = content[written:], place + written
