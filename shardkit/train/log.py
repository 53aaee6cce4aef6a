"""Reports of a run: people read the lines or the progress bar of rank 0, programs read
metrics.jsonl, and each rank has a log.

metrics.jsonl               one record per report, written by rank 0
logs/rank-00003.log         what this rank did and when; a resumed run goes on in the same file
"""

import json
import logging
import math
import sys
import time
from pathlib import Path

from ..errors import FileError, InputError
from ..files.notes import Notes, Screen, tell
from ..files.reading import bytes_of, opened, wanted, wanted_count
from ..files.shown import shown
from ..plain import plain
from .terminal import console_of

_MOST_BYTES = 1 << 30
_MOST_LINE = 1 << 22  # bytes
_LOSS = "validation_loss"
OF_CHECKPOINTS = "checkpoint_pause_seconds", "checkpoint_write_seconds"
_NO_CURVES = {"step", "time", "memory_bytes", "skipped_steps", "recovery_seconds", *OF_CHECKPOINTS}
_NUMBERS = "time", _LOSS  # what a run or its report counts with


class RankLog:
    """The log file of one rank, written line by line. A context manager that records an error.

    notes   the files of the run that this rank writes beside its work, this one among them
    """

    def __init__(self, folder: Path, rank: int):
        self._path = folder / "logs" / f"rank-{rank:05d}.log"
        self.notes = Notes()

    def line(self, text: str):
        """Write the text with date and time."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        self.notes.add(self._path, f"{stamp}.{int(now % 1 * 1000):03d}  {text}")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is not None:
            self.line(f"failed: {kind.__name__}: {error}")
        self.notes.close()


class Reporter:
    """Says how a run is going. On a terminal a progress bar stands below the lines; elsewhere there
    are only lines.

    log        of this rank, which gets the lines too, and whose notes have the records
    is_writer  False on all ranks but one: only the log is written then
    """

    def __init__(
        self, folder: Path, total_steps: int, log: RankLog, *, is_writer: bool, stream=None
    ):
        self._is_writer, self._log = is_writer, log
        self._logger = logging.getLogger("shardkit.run")  # of a script that asks for it
        if not self._logger.handlers:
            self._logger.addHandler(logging.NullHandler())
        self._folder, self._metrics_path = folder, folder / "metrics.jsonl"
        self._screen = Screen(sys.stdout if stream is None else stream)
        self._console = console_of(self._screen) if is_writer else None
        self._bar = None
        if self._console is not None and self._console.is_terminal:
            self._bar = _bar_on(self._console)
            self._task = self._bar.add_task("", total=total_steps)

    def __enter__(self):
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.stop()

    def close(self):
        """Write what standard output has not taken yet, or say what is lost."""
        self._screen.close()

    def line(self, text: str):
        """Write one line for people."""
        self._log.line(text)
        if self._console is not None:
            self._console.print(shown(text), markup=False)
        if self._is_writer:
            self._logger.info("%s", text)

    def warn(self, text: str):
        """Write a warning, also to standard error."""
        self._log.line(f"warning: {text}")
        if self._is_writer:
            tell(f"warning: {text}")
            self._logger.warning("%s", text)

    def progress(self, step: int, text: str | None = None):
        """Move the progress bar, if there is one; `text` beside it stays until the next call."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)

    def total(self, steps: int):
        """Let the progress bar end at another step."""
        if self._bar is not None:
            self._bar.update(self._task, total=steps)

    def record(self, **values):
        """Write one line of metrics.jsonl, without NaN and infinity, which JSON lacks; a validation
        whose loss is one is null.

        time   Unix seconds, is added
        """
        values = {
            name: value if _is_finite(value) else None
            for name, value in {**plain(values), "time": round(time.time(), 3)}.items()
            if _is_finite(value) or name == _LOSS
        }
        if self._is_writer:
            self._log.notes.add(self._metrics_path, json.dumps(values))

    def write(self, name: str, text: str):
        """Write this file of the run folder whole, if this rank is the writer."""
        if self._is_writer:
            self._log.notes.write(self._folder / name, text)

    def validation_losses(self) -> list[float]:
        """Return the loss of each validation in metrics.jsonl, in their order; NaN for null."""
        losses = [record[_LOSS] for record in self._records() if _LOSS in record]
        return [math.nan if loss is None else loss for loss in losses]

    def lowest_validation(self) -> tuple[float, int] | None:
        """Return (loss, step) of the lowest validation in metrics.jsonl, if this rank is the
        writer; None without one.
        """
        records = self._records() if self._is_writer else []
        measured = [each for each in records if each.get(_LOSS) is not None]
        return min(((each[_LOSS], each["step"]) for each in measured), default=None)

    def drop_records_after(self, step: int):
        """Remove the records after this step: a resumed run writes them again."""
        if not self._is_writer:
            return
        records = self._records()
        kept = [record for record in records if record["step"] <= step]
        if len(kept) < len(records):
            text = "".join(json.dumps(record) + "\n" for record in kept)
            self._log.notes.write(self._metrics_path, text)

    def _records(self) -> list[dict]:
        """Return the records so far; none, with a warning, where the file cannot be read."""
        try:
            return read_metrics(self._metrics_path)
        except (OSError, FileError) as error:
            tell(f"warning: {error}; its records stay as they are")
            return []


def _bar_on(console):
    """Return a progress bar on this console; only there its library is imported."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("step"),
        BarColumn(16),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        console=console,
        refresh_per_second=4,
    )


def read_metrics(path: Path) -> list[dict]:
    """Return the records of metrics.jsonl, without lines that were cut short; [] without a file.

    Errors: InputError, with the number of the line, if one is no record of a step; OSError.
    """
    if not path.exists():
        return []
    records = []
    with opened(path) as file:
        if bytes_of(file) > _MOST_BYTES:
            raise InputError(f"{path} has {bytes_of(file):,} bytes; wanted {_MOST_BYTES:,}", path)
        number = 0
        while line := file.readline(_MOST_LINE):
            number += 1
            record = _record_of(line, path, number)
            if record is not None:
                records.append(record)
    return records


def _record_of(line: bytes, path: Path, number: int) -> dict | None:
    """Return the record in a line; None if the line is no JSON, as one that was cut short."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    where = f"line {number}"
    for name, value in wanted(record, dict, path, where).items():
        if type(value) is float and not math.isfinite(value):
            raise InputError(f"{path}, {where}: {name} = {value!r:.100}", path, name)
        if type(value) is int or name in _NUMBERS and (name, value) != (_LOSS, None):
            wanted(value, float, path, f"{where}, {name}")
    wanted_count(record.get("step"), path, f"{where}, step")
    return record


def curves_of(records: list[dict]) -> dict[str, list]:
    """Return {name: [[step, value], ...]} of records of metrics.jsonl, without empty ones."""
    names = dict.fromkeys(name for record in records for name in record if name not in _NO_CURVES)
    curves = {name: points_of(records, name) for name in names}
    return {name: points for name, points in curves.items() if points}


def points_of(records: list[dict], name: str) -> list:
    """Return [[step, value], ...] of the records that have this value."""
    return [[each["step"], each[name]] for each in records if each.get(name) is not None]


def _is_finite(value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


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
