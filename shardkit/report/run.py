"""The record of a run: what its folder says about it, in numbers.

metrics.jsonl        curves, checkpoints, skipped steps, memory
configuration.json   settings
ranks.json           the mesh and its nodes
timeline.json        one step, action by action

A folder of an older run lacks some of these files; its record has None there.
"""

from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from ..checkpoint.choice import BEST, NEWEST, step_of
from ..checkpoint.find import best_among, newest_among
from ..files.reading import read_json, understood, wanted, wanted_count
from ..task.load import BUILT_IN, DEFAULT_TASK, load_task
from ..train.folder import stored_places
from ..train.log import OF_CHECKPOINTS, curves_of, points_of, read_metrics
from ..train.ranks_record import ALL_AT_ONCE, RANKS, RESIDENT
from ..train.settings import RunConfiguration, configuration_of
from ..train.tracing import TIMELINE
from .timeline import read_timeline

METRICS = "metrics.jsonl"
_MOST_BYTES = 1 << 27  # of a file of JSON
_OF_RANKS = {"mesh": dict, "ranks": list, "parameter_count": int, "policy": str}
_OF_CHECKPOINTS = dict(zip(OF_CHECKPOINTS, ("pause", "write")))


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder shows it; JSON can hold all fields.

    curves       {name: [[step, value], ...]}, as metrics.jsonl names them
    checkpoints  [{"step", "pause", "write"}], seconds; write: None while, or if, it is not known
    skipped      [[step, skipped steps so far], ...]
    recoveries   [[step, seconds], ...] of an elastic run
    best, newest {"step", "loss", "folder"} of checkpoints that are there; None: there is none. The
                 loss is that of the validation at this step, or None
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
    best: dict | None
    newest: dict | None
    memory: dict | None
    ranks: dict | None
    timeline: dict | None
    settings: list
    began: float | None
    ended: float | None


def run_records(folder) -> list[dict]:
    """Return the records of metrics.jsonl; [] if the folder is no run folder."""
    return read_metrics(Path(folder) / METRICS)


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
    path = folder / "configuration.json"
    tables = _read(path) or {}
    for section, table in tables.items():
        wanted(table, dict, path, section)
    times = [record["time"] for record in records if "time" in record]
    return RunRecord(
        name=str(folder),
        steps=max(record["step"] for record in records),
        total_steps=wanted(tables.get("run", {}).get("steps"), (int, NoneType), path, "run.steps"),
        curves=curves_of(records),
        checkpoints=_checkpoints(records),
        skipped=points_of(records, "skipped_steps"),
        recoveries=points_of(records, "recovery_seconds"),
        **named_checkpoints(folder, records),
        memory=_memory(records, folder / METRICS),
        ranks=_ranks(folder / RANKS),
        timeline=_timeline(folder / TIMELINE),
        settings=_settings(tables),
        began=min(times, default=None),
        ended=max(times, default=None),
    )


def _read(path: Path) -> dict[str, Any] | None:
    return read_json(path, _MOST_BYTES) if path.exists() else None


def _ranks(path: Path) -> dict[str, Any] | None:
    """Return what ranks.json holds, as far as the page reads it. Errors: InputError."""
    stored = _read(path)
    if stored is None:
        return None
    for name, kind in _OF_RANKS.items():
        wanted(stored.get(name, kind()), kind, path, name)
    for axis, size in stored.get("mesh", {}).items():
        wanted_count(size, path, f"mesh.{axis}")
    for number, each in enumerate(stored.get("ranks", [])):
        wanted(each, dict, path, f"ranks[{number}]")
        for name, value in each.items():
            wanted(value, (str, int, NoneType), path, f"ranks[{number}].{name}")
    return stored


def _timeline(path: Path) -> dict | None:
    stored = _read(path)
    with understood(path):
        return read_timeline(stored)


def _checkpoints(records) -> list:
    found: dict[int, dict] = {}
    for record in records:
        for name, short in _OF_CHECKPOINTS.items():
            if name in record:
                of_step = found.setdefault(record["step"], {"pause": None, "write": None})
                of_step[short] = record[name]
    return [{"step": step, **found[step]} for step in sorted(found)]


def named_checkpoints(folder, records: list[dict]) -> dict[str, dict | None]:
    """Return the "best" and the "newest" of the checkpoints that are there, as RunRecord has them.

    records   of metrics.jsonl
    """
    losses = dict(points_of(records, "validation_loss"))
    places = stored_places(Path(folder))
    best, newest = best_among(places), newest_among(places)
    return {
        BEST: None if best is None else _named(best.folder, best.loss),
        NEWEST: None if newest is None else _named(newest, losses.get(step_of(newest))),
    }


def _named(folder: Path, loss: float | None) -> dict:
    return {"step": step_of(folder), "loss": loss, "folder": str(folder)}


def _memory(records, path: Path) -> dict | None:
    """Return the last one that was recorded: peaks only grow."""
    tables = [record["memory_bytes"] for record in records if "memory_bytes" in record]
    if not tables:
        return None
    table = wanted(tables[-1], dict, path, "memory_bytes")
    for purpose in {**table, ALL_AT_ONCE: None, RESIDENT: None}:
        field = f"memory_bytes[{purpose}]"
        for value in wanted(table.get(purpose), list, path, field):
            wanted_count(value, path, field)
    return {
        "purposes": {k: v for k, v in table.items() if k not in (ALL_AT_ONCE, RESIDENT)},
        "together": table[ALL_AT_ONCE],
        "resident": table[RESIDENT],
    }


def _settings(tables: dict) -> list:
    """Return all settings, with what is known about each; a task of one's own is not loaded."""
    name = str(tables.get("run", {}).get("task", DEFAULT_TASK))
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
