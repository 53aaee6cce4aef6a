"""Mean and spread of what the trials of an ensemble predict, in one HDF5 file.

    group of a trial   model --> predictions of all samples, a file beside its run
    all ranks          the same rows of each of these files, in the order of trials --> mean, spread

Sums are float64 and in the order of trials, so the file is the same for any number of ranks.
"""

import os
from pathlib import Path

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import by_first, collectively
from ..data.hdf5 import lay_out
from ..errors import ShardingError
from ..files.removing import remove_file
from ..train.prediction import TRIALS, check_output, named_when_whole, write_all
from ..train.prediction import predict as predict_of_run
from .record import arrays_of, trial_folder

_OUTPUTS = "predictions.h5"
_PIECE_ROWS = 4096


def predict(
    backend: CommunicationBackend, groups: int, make, folder: Path, runs: dict, data, output: Path
) -> dict[str, numpy.ndarray]:
    """Write NAME_mean and NAME_spread of each output; return what the file holds. Collective.

    make     as of group.TrialGroup
    runs     {trial: its settings}
    Errors, on all ranks: those of predicting with a run; ShardingError if the trials have outputs
    of different shapes.
    """
    with collectively(backend):
        check_output(output)
    paths = [trial_folder(folder, number) / _OUTPUTS for number in runs]
    try:
        _predict_each(backend, groups, make, folder, runs, data)
        _combine(backend, paths, output)
    finally:
        if backend.rank == 0:
            for path in paths:
                remove_file(path)
    with collectively(backend):
        return arrays_of(output)


def _predict_each(backend, groups: int, make, folder: Path, runs: dict, data) -> None:
    """Write the predictions of each trial beside its run, each by a group. Collective."""
    number = backend.rank * groups // backend.world_size
    group = backend.split(number)
    with collectively(backend):
        for trial in list(runs)[number::groups]:
            where = trial_folder(folder, trial)
            with collectively(group):
                training = make(dict(runs[trial]), folder=where, backend=group, callbacks=[])
            run = training.restored()
            predict_of_run(run, run.samples(data, has_targets=False), where / _OUTPUTS)
            run.close()
    group.close()


def _combine(backend, paths: list[Path], output: Path) -> None:
    """Write mean and spread of what these files hold, each rank its rows. Collective."""
    with collectively(backend):
        of_trials = [arrays_of(path) for path in paths]
        layout = _layout(of_trials)
    about = {TRIALS: len(paths)}
    with named_when_whole(backend, output) as temporary:
        places = by_first(backend, lambda: lay_out(temporary, layout, about))
        with collectively(backend):
            file = os.open(temporary, os.O_WRONLY | os.O_NOFOLLOW)
            for name in of_trials[0]:
                _write_rows(file, [each[name] for each in of_trials], name, places, backend)
            os.fsync(file)
            os.close(file)


def _write_rows(file: int, of_trials: list, name: str, places: dict[str, int], backend) -> None:
    """Write mean and spread of an output, of the rows that are this rank's."""
    starts = range(0, len(of_trials[0]), _PIECE_ROWS)
    for first in starts[backend.rank :: backend.world_size]:
        pieces = [values[first : first + _PIECE_ROWS] for values in of_trials]
        for kind, rows in _statistics(pieces).items():
            place = places[f"{name}_{kind}"] + first * rows[:1].nbytes
            write_all(file, numpy.ascontiguousarray(rows).tobytes(), place)


def _layout(of_trials: list[dict[str, numpy.ndarray]]) -> dict:
    """Return {dataset: (shape, dtype)} of the file. Errors: ShardingError."""
    shapes = [{name: each.shape for name, each in trial.items()} for trial in of_trials]
    if any(shape != shapes[0] for shape in shapes):
        other = next(shape for shape in shapes if shape != shapes[0])
        raise ShardingError(
            f"trials have outputs {shapes[0]} and {other}; a mean wants the same of all"
        )
    return {
        f"{name}_{kind}": (values.shape, _statistics_dtype(values.dtype))
        for name, values in of_trials[0].items()
        for kind in ("mean", "spread")
    }


def _statistics_dtype(dtype: numpy.dtype) -> numpy.dtype:
    return dtype if dtype.kind == "f" else numpy.dtype(numpy.float64)


def _statistics(values: list[numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """Return mean and spread of the same rows of trials, two passes in their order."""
    mean, squares = numpy.zeros((2, *values[0].shape))
    for each in values:
        mean += each
    mean /= len(values)
    for each in values:
        squares += (each - mean) ** 2
    dtype = _statistics_dtype(values[0].dtype)
    spread = numpy.sqrt(squares / (len(values) - 1))
    return {"mean": mean.astype(dtype), "spread": spread.astype(dtype)}
