"""The validation curve of a run as text."""

from ..plain import counted
from .run import named_checkpoints, run_records

_MOST_LINES = 18


def describe_run(folder) -> str:
    """Return the validation curve in a few lines; empty if the folder is no run folder."""
    records = run_records(folder)
    if not records:
        return ""
    curve = [each for each in records if isinstance(each.get("validation_loss"), int | float)]
    every = max(1, -(-len(curve) // _MOST_LINES))
    shown = curve[-1::-every][::-1]  # the last one is always among them
    lines = [f"run {folder}: {counted(max(record['step'] for record in records), 'step')}"]
    lines += [f"  step {record['step']:>8}  {_figures(record)}" for record in shown]
    lines += [f"  {text}" for text in _checkpoints(named_checkpoints(folder, records))]
    return "\n".join(lines) + "\n"


def _checkpoints(named: dict[str, dict | None]) -> list[str]:
    """Return a line for the best and for the newest checkpoint, as far as they are there."""
    return [
        f"{which} checkpoint: step {found['step']}{_loss(found['loss'])}, {found['folder']}"
        for which, found in named.items()
        if found is not None
    ]


def _loss(loss: float | None) -> str:
    return "" if loss is None else f", validation loss {loss:.6g}"


def _figures(record: dict) -> str:
    """Return what a validation measured, as text: the loss first, then all that is beside it."""
    numbers = [name for name, value in record.items() if isinstance(value, int | float)]
    others = [name for name in numbers if name not in ("step", "time", "validation_loss")]
    words = [f"{name.replace('_', ' ')} {record[name]:.4g}" for name in others]
    return "  ".join([f"validation loss {record['validation_loss']:.4f}", *words])
