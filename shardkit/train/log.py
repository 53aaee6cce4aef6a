"""Reports of a run: people read the lines or the progress bar of rank 0, programs read
metrics.jsonl, and each rank has a log.

metrics.jsonl               one record per report, written by rank 0
logs/rank-00003.log         what this rank did and when; a resumed run goes on in the same file
"""

import json
import math
import sys
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..files.shown import shown
from .terminal import console_of


class RankLog:
    """The log file of one rank, written line by line.

    A context manager that records an error and closes the file.
    """

    def __init__(self, folder: Path, rank: int):
        path = folder / "logs" / f"rank-{rank:05d}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", buffering=1, encoding="utf-8")

    def line(self, text: str):
        """Write the text with date and time."""
        now = time.time()
        self._file.write(
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}  "
            f"{text}\n"
        )

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is not None:
            self.line(f"failed: {kind.__name__}: {error}")
        self._file.close()


class Reporter:
    """Says how a run is going. On a terminal a progress bar stands below the lines; elsewhere there
    are only lines.

    log        of this rank, which gets the lines too
    is_writer  False on all ranks but one: only the log is written then
    """

    def __init__(
        self, folder: Path, total_steps: int, log: RankLog, *, is_writer: bool, stream=None
    ):
        self._is_writer, self._log = is_writer, log
        self._metrics_path = folder / "metrics.jsonl"
        self._console = console_of(stream or sys.stdout) if is_writer else None
        self._bar = None
        if self._console is not None and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("step"),
                BarColumn(16),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("", total=total_steps)

    def __enter__(self):
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.stop()

    def line(self, text: str):
        """Write one line for people."""
        self._log.line(text)
        if self._console is not None:
            self._console.print(shown(text), markup=False)

    def progress(self, step: int, text: str | None = None):
        """Move the progress bar, if there is one; `text` beside it stays until the next call."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)

    def record(self, **values):
        """Write one line of metrics.jsonl, without NaN and infinity, which JSON lacks.

        time   Unix seconds, is added
        """
        values = {
            name: value
            for name, value in {**values, "time": round(time.time(), 3)}.items()
            if not isinstance(value, float) or math.isfinite(value)
        }
        if self._is_writer:
            with open(self._metrics_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def recorded(self, name: str) -> list:
        """Return the values of this name in metrics.jsonl, in their order."""
        records = read_metrics(self._metrics_path) if self._metrics_path.exists() else []
        return [record[name] for record in records if name in record]

    def drop_records_after(self, step: int):
        """Remove the records after this step: a resumed run writes them again."""
        if self._is_writer and self._metrics_path.exists():
            kept = [record for record in read_metrics(self._metrics_path) if record["step"] <= step]
            self._metrics_path.write_text(
                "".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8"
            )


def read_metrics(path: Path) -> list[dict]:
    """Return the records of metrics.jsonl, without a last line that was cut short."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def duration_text(seconds: float) -> str:
    """Return a duration as text: 65.2 becomes "1m05s", 0.0421 becomes "42 ms"."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def seconds_text(seconds: float) -> str:
    """Return what something took as text: 1.234 becomes "1.23 s", 0.0421 becomes "42 ms"."""
    return f"{seconds:.2f} s" if 0.9995 <= seconds < 120 else duration_text(seconds)
