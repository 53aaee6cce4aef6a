"""An ensemble as text and as a page: its trials, from the lowest loss on, and their curves.

sweep.h5 of its folder (ensemble/record.py) --> rows of trials, curves of validations
"""

from dataclasses import dataclass
from pathlib import Path

from ..ensemble.record import SWEEP_FILE, read_record
from ..ensemble.trials import FINISHED, Trial

_LOSS = "validation_loss"
_MOST_TEXT = 100  # of an error in a line


@dataclass(frozen=True)
class SweepPage:
    """An ensemble as its file shows it; JSON can hold all fields.

    tried    names of the settings in which trials differ, in their order
    trials   [{"number", "status", "step", "loss", "values", "sources", "error", "curve"}], from the
             lowest loss on; values: of the settings that are tried; curve: [[step, loss], ...]
    """

    name: str
    tried: list
    trials: list


def is_sweep(folder) -> bool:
    """Return True if the folder is that of an ensemble."""
    return (Path(folder) / SWEEP_FILE).exists()


def read_sweep(folder) -> SweepPage:
    """Return the ensemble in this folder. Errors: FileNotFoundError, InputError."""
    record = read_record(Path(folder))
    if record is None:
        raise FileNotFoundError(f"{folder} holds no {SWEEP_FILE}; give the folder of a sweep")
    trials = sorted(record.trials, key=lambda trial: (trial.status != FINISHED, trial.rank))
    tried = _tried(record.trials)
    curves = {number: found.get(_LOSS) for number, found in record.curves.items()}
    return SweepPage(
        str(folder), tried, [_row(each, tried, curves.get(each.number)) for each in trials]
    )


def _tried(trials: list[Trial]) -> list[str]:
    names = dict.fromkeys(name for trial in trials for name in trial.settings)
    first = trials[0].settings if trials else {}
    return [
        name
        for name in names
        if any(trial.settings.get(name) != first.get(name) for trial in trials)
    ]


def _row(trial: Trial, tried: list[str], curve) -> dict:
    return {
        "number": trial.number,
        "status": trial.status,
        "step": trial.step,
        "loss": trial.loss,
        "values": [trial.settings.get(name) for name in tried],
        "sources": [each for each in trial.sources if each[1] != trial.number],
        "error": trial.error,
        "curve": [] if curve is None else curve.tolist(),
    }


def describe_sweep(folder) -> str:
    """Return a line for each trial, from the lowest loss on."""
    sweep = read_sweep(folder)
    heads = ["trial", "status", "step", "validation loss", *sweep.tried]
    rows = [heads, *(_texts(row) for row in sweep.trials)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    errors = [_error(row) for row in sweep.trials if row["error"]]
    return "\n".join([f"sweep {sweep.name}", *lines, *errors]) + "\n"


def _texts(row: dict) -> list[str]:
    loss = "none" if row["loss"] is None else f"{row['loss']:.6g}"
    values = [_value(each) for each in row["values"]]
    return [str(row["number"]), row["status"], str(row["step"]), loss, *values]


def _value(value) -> str:
    return f"{value:.4g}" if type(value) is float else str(value)


def _error(row: dict) -> str:
    text = row["error"].partition("\n")[0]
    short = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."
    return f"trial {row['number']}: {short}"
