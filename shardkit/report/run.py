"""The record of a run: what its folder says about it, in numbers.

metrics.jsonl        curves, checkpoints, skipped steps, memory
configuration.json   settings
ranks.json           the mesh and its nodes
timeline.json        one step, action by action

A folder of an older run lacks some of these files; its record has None there.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError
from ..task.load import BUILT_IN, DEFAULT_TASK, load_task
from ..train.log import read_metrics
from ..train.ranks_record import ALL_AT_ONCE, RANKS, RESIDENT
from ..train.settings import RunConfiguration, configuration_of
from ..train.tracing import TIMELINE
from .timeline import read_timeline

_NO_CURVES = {"step", "time", "memory_bytes", "skipped_steps", "recovery_seconds"}
_OF_CHECKPOINTS = {"checkpoint_pause_seconds": "pause", "checkpoint_write_seconds": "write"}


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder shows it; JSON can hold all fields.

    curves       {name: [[step, value], ...]}, as metrics.jsonl names them
    checkpoints  [{"step", "pause", "write"}], seconds; write: None while, or if, it is not known
    skipped      [[step, skipped steps so far], ...]
    recoveries   [[step, seconds], ...] of an elastic run
    memory       {"purposes": {purpose: bytes of each rank}, "together", "resident": bytes of each}
    ranks        what ranks.json holds
    timeline     see timeline.py
    settings     [{"name", "value", "default", "unit", "text"}], in their order
    began, ended Unix seconds of the first record and the last
    """

    name: str
    steps: int
    total_steps: int | None
    curves: dict
    checkpoints: list
    skipped: list
    recoveries: list
    memory: dict | None
    ranks: dict | None
    timeline: dict | None
    settings: list
    began: float | None
    ended: float | None


def run_records(folder) -> list[dict]:
    """Return the records of metrics.jsonl; [] if the folder is no run folder."""
    return read_metrics(Path(folder) / "metrics.jsonl")


def read_run_folder(folder) -> RunRecord:
    """Return the record of the run in this folder.

    Errors: FileNotFoundError if it holds no curve, ConfigurationError if a file of it is damaged.
    """
    folder = Path(folder)
    records = run_records(folder)
    if not records:
        raise FileNotFoundError(
            f"{folder} holds no metrics.jsonl with a curve; give the folder of a run"
        )
    tables = _read(folder / "configuration.json") or {}
    times = [record["time"] for record in records if "time" in record]
    return RunRecord(
        name=str(folder),
        steps=max(record["step"] for record in records),
        total_steps=tables.get("run", {}).get("steps"),
        curves=_curves(records),
        checkpoints=_checkpoints(records),
        skipped=_points(records, "skipped_steps"),
        recoveries=_points(records, "recovery_seconds"),
        memory=_memory(records),
        ranks=_read(folder / RANKS),
        timeline=read_timeline(_read(folder / TIMELINE)),
        settings=_settings(tables),
        began=min(times, default=None),
        ended=max(times, default=None),
    )


def _read(path: Path):
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged ({error}); remove it, or restore it") from None


def _points(records, name) -> list:
    return [[record["step"], record[name]] for record in records if name in record]


def _curves(records) -> dict:
    left_out = _NO_CURVES | _OF_CHECKPOINTS.keys()
    names = dict.fromkeys(name for record in records for name in record if name not in left_out)
    return {name: _points(records, name) for name in names}


def _checkpoints(records) -> list:
    found: dict[int, dict] = {}
    for record in records:
        for name, short in _OF_CHECKPOINTS.items():
            if name in record:
                of_step = found.setdefault(record["step"], {"pause": None, "write": None})
                of_step[short] = record[name]
    return [{"step": step, **found[step]} for step in sorted(found)]


def _memory(records) -> dict | None:
    """Return the last one that was recorded: peaks only grow."""
    tables = [record["memory_bytes"] for record in records if "memory_bytes" in record]
    if not tables:
        return None
    table = tables[-1]
    return {
        "purposes": {k: v for k, v in table.items() if k not in (ALL_AT_ONCE, RESIDENT)},
        "together": table[ALL_AT_ONCE],
        "resident": table[RESIDENT],
    }


def _settings(tables: dict) -> list:
    """Return all settings, with what is known about each; a task of one's own is not loaded."""
    name = tables.get("run", {}).get("task", DEFAULT_TASK)
    known = configuration_of(load_task(name)) if name in BUILT_IN else RunConfiguration
    keys = known.keys()
    rows = []
    for section, table in tables.items():
        for key, value in table.items():
            field = keys.get(f"{section}.{key}")
            rules = {} if field is None else field.metadata
            rows.append(
                {
                    "name": f"{section}.{key}",
                    "value": value,
                    "default": value if field is None else field.default,
                    "unit": rules.get("unit", ""),
                    "text": rules.get("text", ""),
                }
            )
    return rows
