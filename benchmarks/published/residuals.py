"""Residuals of the planner, for the band around its predictions: shardkit/plan/residuals.toml.

Of published runs only the rows that judge count; of the own machine, the layouts of
benchmarks/results/planner.json. validation_page.py writes the file.
"""

import json
from pathlib import Path
from statistics import quantiles

from float8_runs import mpt_float8, nemo, titan_float8, titan_large
from fsdp_runs import fsdp_paper, mpt, titan
from megatron_runs import megatron
from published_runs import CLUSTER, Point, halves, hardware, narayanan, zero3_against_ptd

from shardkit.plan.band import BEYOND, CUT, OWN, SHARDED

OWN_RUNS = Path(__file__).parents[1] / "results" / "planner.json"
_OWN_DEVICES = 4  # of the layouts there
# The model there is smaller; products of those up to this size are as quick as its own.
_OWN_PARAMETERS = 10**8
_HEAD = """# Written by benchmarks/published/validation_page.py: seconds that runs took over those
# predicted. Nine of ten rows of a family lie between low and high; band.py says what a family is.
"""


def residuals() -> dict[str, dict]:
    """Return {family: its table}."""
    zero3, ptd = zero3_against_ptd()[:3], zero3_against_ptd()[3:]
    sharded = _judging([*fsdp_families().values(), mpt_float8(), titan_float8()])
    cut = [*narayanan(), *ptd, *megatron(), *_judging([titan_large(), nemo()])]
    all_rows = [_ratio(row) for row in (*sharded, *cut, *zero3)]
    own = _own_ratios()
    widest = {"rows": len(all_rows), "low": min(all_rows), "high": max(all_rows)}
    return {
        SHARDED: _nine_of_ten([_ratio(row) for row in sharded]) | _largest(sharded),
        CUT: _nine_of_ten([_ratio(row) for row in cut]) | _largest(cut),
        OWN: _nine_of_ten(own) | _limits(_OWN_DEVICES, _OWN_PARAMETERS),
        BEYOND: widest | _limits(0, 0),
    }


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


def _judging(families: list[list[Point]]) -> list[Point]:
    return [row for points in families for row in halves(points)[1]]


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


def _ratio(point: Point) -> float:
    """Return the seconds that a run took over those predicted."""
    ratio = point.predicted / point.published
    return 1 / ratio if point.unit == "s" else ratio


def _largest(points: list[Point]) -> dict:
    names = {(point.cluster or hardware(CLUSTER)).device.name for point in points}
    return _limits(
        max(point.layout.devices for point in points),
        max(point.shape.parameter_count for point in points),
        sorted(names),
    )


def _limits(devices: int, parameters: int, names: list[str] = ()) -> dict:
    return {"devices": devices, "parameters": float(parameters), "on": list(names)}


def _nine_of_ten(ratios: list[float]) -> dict:
    cuts = quantiles(ratios, n=20, method="inclusive")
    return {"rows": len(ratios), "low": cuts[0], "high": cuts[-1]}


def _own_ratios() -> list[float]:
    """Return measured over predicted seconds, both over those of one rank, on the own machine."""
    tables = json.loads(OWN_RUNS.read_text(encoding="utf-8"))["tables"]
    return [row[3] / row[4] for table in tables for row in table["rows"]]
