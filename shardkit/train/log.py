"""Reports of a run: people read lines or a progress bar, programs read metrics.jsonl. Only rank 0 writes."""
import json
import math
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

BITS_PER_NAT = 1 / math.log(2)


class Reporter:
    """Says how a run is going. On a terminal a progress bar stands below the lines; elsewhere there are only lines.

    is_writer  False on all ranks but one: everything is then silent
    """

    def __init__(self, folder: Path, total_steps: int, *, is_writer: bool, stream=None):
        self._is_writer = is_writer
        self._metrics_path = folder / "metrics.jsonl"
        self._console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)
        self._bar = None
        if is_writer and self._console.is_terminal:
            self._bar = Progress(TextColumn("step"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
                                 console=self._console)
            self._task = self._bar.add_task("", total=total_steps)

    def __enter__(self):
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.stop()

    def line(self, text: str):
        """One line for people."""
        if self._is_writer:
            self._console.print(text, markup=False)

    def progress(self, step: int, text: str | None = None):
        """Move the bar, if there is one; `text` beside it stays until the next."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, **({} if text is None else {"description": text}))

    def record(self, **values):
        """One line of metrics.jsonl."""
        if self._is_writer:
            with open(self._metrics_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def drop_records_after(self, step: int):
        """A resumed run writes these steps again: what was recorded of them goes."""
        if self._is_writer and self._metrics_path.exists():
            kept = [record for record in read_metrics(self._metrics_path) if record["step"] <= step]
            self._metrics_path.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


def read_metrics(path: Path) -> list[dict]:
    """The records of metrics.jsonl; a last line that was cut short does not count."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def duration_text(seconds: float) -> str:
    """65.2 -> "1m05s"."""
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
