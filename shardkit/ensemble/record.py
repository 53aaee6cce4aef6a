"""The file of an ensemble, sweep.h5: settings, results and curves of all trials.

    loss, step         [trials]   float64 and int64; NaN without a validation
    settings/NAME      [trials]   float64, of settings that are numbers
    trials/0003/NAME   [n, 2]     a curve: step, value
    state              uint8      all but the curves, as JSON: what an ensemble goes on from
    crc32              uint32     of state

It is written whole, under another name first, on each report; who reads it meanwhile, or after a
kill, finds the one before or the one after.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy

from ..arguments import is_number
from ..checkpoint.format.files import crc32, sync
from ..checkpoint.format.hdf5 import write_image
from ..data.hdf5 import describe
from ..errors import InputError
from ..files.reading import loaded, parsed_json, understood, wanted
from ..files.writing import write_whole
from .trials import Curves, Trial

SWEEP_FILE = "sweep.h5"
_FORMAT = {"format": "shardkit-sweep", "version": 1}
_CURVES = "trials"


def trial_folder(folder: Path, number: int) -> Path:
    """Return the run folder of a trial."""
    return folder / _CURVES / f"{number:04d}"


@dataclass(frozen=True)
class SweepRecord:
    """All that is known of an ensemble.

    about    how it was made, which an ensemble that goes on must share
    curves   {trial: its curves}
    """

    about: dict[str, Any]
    trials: list[Trial]
    curves: dict[int, Curves]

    def write(self, folder: Path) -> None:
        """Write the file. It is on disk when this returns. Errors: OSError."""
        state = {**_FORMAT, "about": self.about, "trials": [asdict(each) for each in self.trials]}
        content = numpy.frombuffer(json.dumps(state).encode(), numpy.uint8)
        seal = numpy.array([crc32(content)], numpy.uint32)
        tables = {"state": content, "crc32": seal, **self._columns(), **self._curves()}
        image, _ = write_image(tables, _FORMAT, 0)
        write_whole(folder / SWEEP_FILE, bytes(image), durable=True)
        sync(folder)

    def _columns(self) -> dict[str, numpy.ndarray]:
        names = dict.fromkeys(name for trial in self.trials for name in trial.settings)
        rows = {
            f"settings/{name}": [each.settings.get(name) for each in self.trials] for name in names
        }
        rows["loss"] = [trial.loss for trial in self.trials]
        columns = {"step": numpy.array([trial.step for trial in self.trials], numpy.int64)}
        for name, values in rows.items():
            if any(map(is_number, values)):
                numbers = [value if is_number(value) else numpy.nan for value in values]
                columns[name] = numpy.array(numbers, numpy.float64)
        return columns

    def _curves(self) -> dict[str, numpy.ndarray]:
        return {
            f"{_CURVES}/{number:04d}/{name}": points
            for number, curves in sorted(self.curves.items())
            for name, points in curves.items()
            if len(points)
        }


def read_record(folder: Path) -> SweepRecord | None:
    """Return what the file in a folder holds, also while an ensemble replaces it; None if there is
    none. Errors: InputError.
    """
    path = folder / SWEEP_FILE
    while path.exists():
        before = _version(path)
        try:
            record = _read(path)
        except (InputError, FileNotFoundError):
            if _version(path) == before:
                raise
            continue
        if _version(path) == before:
            return record
    return None


def _version(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_ino, about.st_mtime_ns


def _read(path: Path) -> SweepRecord:
    found = arrays_of(path)
    missing = [name for name in ("state", "crc32") if name not in found]
    if missing:
        raise InputError(f"{path} is no file of an ensemble: it has no {missing[0]!r}", path)
    content = found["state"]
    if found["crc32"].tolist() != [crc32(content)]:
        raise InputError(f"{path} is damaged: 'state' has another checksum; restore it", path)
    state = parsed_json(content.tobytes(), path)
    if {name: state.get(name) for name in _FORMAT} != _FORMAT:
        raise InputError(
            f"{path} says {state.get('format')!r:.40} version {state.get('version')!r:.40}; "
            f"wanted {_FORMAT}",
            path,
        )
    with understood(path, "state"):
        trials = [_trial(each, number, path) for number, each in enumerate(state["trials"])]
        curves: dict[int, Curves] = {}
        for name, points in found.items():
            if name.startswith(f"{_CURVES}/"):
                _, number, curve = name.split("/", 2)
                curves.setdefault(int(number), {})[curve] = points
        return SweepRecord(wanted(state["about"], dict, path, "about"), trials, curves)


def arrays_of(path: Path) -> dict[str, numpy.ndarray]:
    """Return the datasets of a file of an ensemble. Errors: InputError."""
    arrays = {}
    for name, (shape, dtype, at) in describe(path, ())[1].items():
        if at is None:
            text = f"{path} is damaged: {name!r} does not lie in it as it was written"
            raise InputError(text, path)
        arrays[name] = loaded(path, dtype, at, shape, field=name)
    return arrays


def _trial(stored: dict, number: int, path: Path) -> Trial:
    """Return a trial of the file. Errors: those of understood()."""
    kinds = {"settings": dict, "status": str, "losses": list, "sources": list}
    for name, kind in {**kinds, "number": int, "step": int, "loss": (float, type(None))}.items():
        wanted(stored[name], kind, path, f"trials[{number}].{name}")
    if stored["number"] != number:
        raise ValueError(f"trial {stored['number']} is in place {number}")
    return Trial(**{each.name: stored[each.name] for each in fields(Trial)})
