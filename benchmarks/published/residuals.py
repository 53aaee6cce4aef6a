"""Residuals of the planner, for the band around its predictions: shardkit/plan/residuals.toml.

Only rows that may choose constants make a band, and the rows that judge say whether it holds. Bands
of processors are by the layouts of benchmarks/results/planner.json. validation_page.py writes the
file.
"""

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import quantiles

from blind_runs import blind_families, drawn
from float8_runs import mpt_float8, nemo, titan_float8, titan_large
from fsdp_runs import fsdp_paper, mpt, titan
from megatron_runs import megatron
from published_runs import (
    CLUSTER,
    Point,
    halves,
    hardware,
    korthikanti,
    narayanan,
    ratio,
    zero3_against_ptd,
    zero3_large,
)

from shardkit.plan import MIXED, RECOMPUTATIONS, Software, known_programs, software_named
from shardkit.plan.band import KNOWN, OWN, TUNED, UNKNOWN
from shardkit.plan.software import in_float8

OWN_RUNS = Path(__file__).parents[1] / "results" / "planner.json"
_OWN_DEVICES = 4  # of the layouts there
# The model there is smaller; products of those up to this size are as quick as its own.
_OWN_PARAMETERS = 10**8
# A band for nine of ten rows of families that chose nothing has 19 of 20 of those that may choose.
_CUTS = 40
_HEAD = """# Written by benchmarks/published/validation_page.py: seconds that runs took over those
# predicted, between low and high for nine of ten runs; band.py says whose band a layout gets.
"""


def residuals() -> dict[str, dict]:
    """Return {program: its table}, and those of layouts that no such program ran."""
    chosen = by_program(choosing())
    cuts = {name: _cuts([ratio(row) for row in rows]) for name, rows in chosen.items()}
    low, high = _ends([cut for own in cuts.values() for cut in own])  # each program counts once
    tables = {}
    for name, own in cuts.items():
        ends = {"low": min(low, own[0]), "high": max(high, own[-1])}
        tables[name] = {"rows": len(chosen[name])} | ends | _largest(chosen[name])
    rows = [row for own in chosen.values() for row in own]
    as_mixed, as_tuned = (
        _ends([ratio(as_program(row, program)) for row in rows])
        for program in (MIXED, software_named("tuned"))
    )
    others = {KNOWN: (low, high), UNKNOWN: as_mixed, TUNED: as_tuned}
    return {
        **tables,
        **{name: _table(len(rows), *ends) | _limits(0, 0) for name, ends in others.items()},
        OWN: _own() | _limits(_OWN_DEVICES, _OWN_PARAMETERS),
    }


def choosing() -> list[Point]:
    """Return the rows that constants may be chosen with."""
    rows = [*korthikanti(), *zero3_large()]
    for family in (*fsdp_families().values(), *float8_families().values()):
        rows += halves(family)[0]
    return rows + _blind(0)


def judging() -> list[Point]:
    """Return the rows that chose nothing."""
    rows = [*narayanan(), *zero3_against_ptd(), *megatron()]
    for family in (*fsdp_families().values(), *float8_families().values()):
        rows += halves(family)[1]
    return rows + _blind(1)


@lru_cache
def _blind(half: int) -> list[Point]:
    families = blind_families()
    return [row for name in drawn([*families])[half] for row in families[name] if row.has_run]


def by_program(rows: list[Point]) -> dict[str, list[Point]]:
    """Return {name of a program: its rows}; variants that have no name count with their program."""
    found = {}
    for row in rows:
        found.setdefault(program_name(row), []).append(row)
    return found


def program_name(row: Point) -> str:
    """Return the name of the program of a row, whose variants begin with it."""
    return max((n for n in known_programs() if row.software.name.startswith(n)), key=len)


def as_program(row: Point, program: Software) -> Point:
    """Return the run as if this program had done it, whatever layouts it takes."""
    taken = in_float8(program) if row.software.casts else program
    of = row.software
    return replace(
        row,
        software=replace(
            taken, recomputations=RECOMPUTATIONS, policies=of.policies, schedules=of.schedules
        ),
    )


def fsdp_families() -> dict[str, list[Point]]:
    """Return {heading: rows} of the families that are split in halves."""
    return {
        "MPT on A100": mpt("A100"),
        "MPT on H100": mpt("H100"),
        "175B on A100": fsdp_paper(),
        "Llama 3.1 8B on H100": titan(),
    }


def float8_families() -> dict[str, list[Point]]:
    """Return {heading: rows} of the families in float8, split like those."""
    return {
        "MPT in float8 on H100": mpt_float8(),
        "Llama 3.1 8B in float8": titan_float8(),
        "Llama 3.1 70B and 405B in float8": titan_large(),
        "NeMo in float8": nemo(),
    }


def residuals_text() -> str:
    """Return the tables as TOML."""
    lines = [_HEAD.rstrip()]
    for family, table in residuals().items():
        lines += ["", f'["{family}"]', *(f"{key} = {_value(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"


def _value(value) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(f'"{name}"' for name in value) + "]"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _largest(points: list[Point]) -> dict:
    names = {(point.cluster or hardware(CLUSTER)).device.name for point in points}
    return _limits(
        max(point.layout.devices for point in points),
        max(point.shape.parameter_count for point in points),
        sorted(names),
    )


def _limits(devices: int, parameters: int, names: list[str] = ()) -> dict:
    return {"devices": devices, "parameters": float(parameters), "on": list(names)}


def _table(rows: int, low: float, high: float) -> dict:
    return {"rows": rows, "low": low, "high": high}


def _cuts(ratios: list[float]) -> list[float]:
    """Return the ratios that cut these into 40 parts."""
    many = ratios if len(ratios) > 1 else ratios * 2
    return quantiles(many, n=_CUTS, method="inclusive")


def _ends(ratios: list[float]) -> tuple[float, float]:
    """Return between which ratios 19 of 20 are."""
    cuts = _cuts(ratios)
    return cuts[0], cuts[-1]


def _own() -> dict:
    """Return measured over predicted seconds, both over those of one rank, on the own machine."""
    tables = json.loads(OWN_RUNS.read_text(encoding="utf-8"))["tables"]
    ratios = [row[3] / row[4] for table in tables for row in table["rows"]]
    cuts = quantiles(ratios, n=20, method="inclusive")
    return _table(len(ratios), cuts[0], cuts[-1])
