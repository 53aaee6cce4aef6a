"""The report of a run: its curve as text and as a diagram."""

from pathlib import Path

from ..errors import ConfigurationError
from .log import read_metrics

_MOST_LINES = 18


def run_records(folder) -> list[dict]:
    """Return the records of metrics.jsonl; [] if the folder is no run folder."""
    path = Path(folder) / "metrics.jsonl"
    return read_metrics(path) if path.exists() else []


def describe_run(folder) -> str:
    """Return the validation curve in a few lines; empty if the folder is no run folder."""
    records = run_records(folder)
    if not records:
        return ""
    curve = [record for record in records if "validation_loss" in record]
    every = max(1, -(-len(curve) // _MOST_LINES))
    shown = curve[-1::-every][::-1]  # the last one is always among them
    lines = [f"run {folder}: {records[-1]['step']} steps"]
    lines += [f"  step {record['step']:>8}  {_figures(record)}" for record in shown]
    return "\n".join(lines) + "\n"


def _figures(record: dict) -> str:
    """Return what a validation measured, as text: the loss first, then all that is beside it."""
    others = [name for name in record if name not in ("step", "validation_loss")]
    words = [f"{name.replace('_', ' ')} {record[name]:.4g}" for name in others]
    return "  ".join([f"validation loss {record['validation_loss']:.4f}", *words])


def draw_curve(folder, target) -> None:
    """Draw training and validation loss over steps into `target` (.svg, .png or .pdf).

    Errors: FileNotFoundError if the folder holds no curve, ConfigurationError if Matplotlib is not
    installed or the format is unknown.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError(
            'drawing needs Matplotlib, which is not installed; install "shardkit[report]"'
        ) from None
    records = run_records(folder)
    if not records:
        raise FileNotFoundError(
            f"{folder} holds no metrics.jsonl with a curve; give the folder of a run"
        )
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label, style in (
        ("train_loss", "training", "-"),
        ("validation_loss", "validation", "o-"),
    ):
        points = [(record["step"], record[key]) for record in records if key in record]
        if points:
            axes.plot(*zip(*points), style, label=label, linewidth=1, markersize=3)
    axes.set(xlabel="step", ylabel="loss", title=str(folder))
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(target)
    except ValueError as error:
        raise ConfigurationError(f"cannot draw {target}: {error}") from None
