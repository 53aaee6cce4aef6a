"""A program fitted to measured steps of it: one efficiency, and one overlap if steps ask for it.

A line of a file is a step of any program, with a layout as RunLayout has it,

    {"step": 90, "seconds": 12.5, "layout": {"data": 8, "tensor": 4, "micro_batches": 16}}

or all lines are the records of one run of shardkit, whose folder says its layout. Lines of one
layout count as one step, their median. What is fitted is chosen by the error of each step under
what the others give: nothing, the efficiency, or both. There are always fewer fitted values than
steps, but for one step, which gives an efficiency that nothing checks.
"""

from dataclasses import replace
from functools import partial
from itertools import chain
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..arguments import is_number, require
from ..errors import ConfigurationError, InputError
from ..files.reading import read_json, understood, wanted
from ..train.log import read_metrics
from .cost import step_cost
from .layouts import RunLayout, why_not
from .shape import Shape
from .software import Software
from .tables import ABOVE_0, COUNT, Limit, list_of, made, tuples

_OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
_TURNS = 8  # of the search for an efficiency, each of which takes most of what is left of the error
_MOST = 20.0  # times as efficient, or as inefficient
_SPEED = "_per_second"
_COUNTS = "pipeline data tensor virtual micro_batch micro_batches domain recomputed shard_ranks"
_GRID: Limit = partial(list_of, COUNT[0]), "a list of integers, at least 1"
_LIMITS = dict.fromkeys(_COUNTS.split(), COUNT) | {"domain_grid": _GRID}
Steps = dict[RunLayout, float]  # {layout: seconds of a step}


def calibration_text(program: Software, ratios: list[float]) -> str:
    """Return what fitted() found, in words."""
    found = f"{program.name} has efficiency {program.efficiency:.3g}, overlap {program.overlap:.3g}"
    if not ratios:
        return f"{found} by one step, which nothing checks"
    error = mean(abs(1 / ratio - 1) for ratio in ratios)
    return f"{found}; each of {len(ratios)} steps, left out, is off by {error:.1%} on average"


def measured_steps(path, shape: Shape) -> Steps:
    """Return the steps of a file.

    Errors: ConfigurationError on a line or run that is none of this model; InputError, OSError.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"cannot read measured steps {path}: there is no such file", path)
    records = read_metrics(path)
    steps = _steps([record for record in records if "layout" in record], path)
    unit, speeds = _speeds(records)
    if speeds and not steps:
        with understood(path.parent):
            layout = _layout_of_run(path.parent, shape)
        of_sample = shape.sequence_length if unit == shape.words[1] else 1  # tokens, else samples
        count = layout.batch * of_sample
        steps = {layout: count / median(speeds[1:] or speeds)}  # the first has a start in it
    if not steps:
        raise ConfigurationError(f"{path} has no step with seconds and layout, and no speed")
    return steps


def _speeds(records: list[dict]) -> tuple[str, list[float]]:
    """Return what a run counted, and how many a second it reported each time."""
    found: dict[str, list[float]] = {}
    for key, value in chain.from_iterable(map(dict.items, records)):
        if key.endswith(_SPEED) and is_number(value, above=0):
            found.setdefault(key, []).append(value)
    key, speeds = next(iter(found.items()), (_SPEED, []))
    return key.removesuffix(_SPEED), speeds


def _steps(records: list[dict], path: Path) -> Steps:
    seconds: dict[RunLayout, list[float]] = {}
    for record in records:
        took: Any = record.get("seconds")
        require(is_number(took, above=0), f"{path}: seconds", took, ABOVE_0[1])
        given = wanted(record["layout"], dict, path, "layout").items()
        said = tuples({name: value for name, value in given if value is not None})
        seconds.setdefault(made(RunLayout, said, str(path), _LIMITS), []).append(took)
    return {layout: median(each) for layout, each in seconds.items()}


def _layout_of_run(folder: Path, shape: Shape) -> RunLayout:
    """Return the layout of a run of shardkit, by what stands beside its records."""
    paths = [folder / name for name in ("configuration.json", "ranks.json")]
    for path in paths:
        if not path.exists():
            raise InputError(f"speeds need {path}, which a run leaves, or lines with layouts", path)
    settings, ranks = map(read_json, paths)
    length = settings["model"].get("sequence_length") or shape.sequence_length
    whole = f"the planned length, {shape.sequence_length}"
    require(length == shape.sequence_length, f"{folder}: model.sequence_length", length, whole)
    require(
        ranks["parameter_count"] == shape.parameter_count,
        f"{folder}: parameters",
        ranks["parameter_count"],
        f"a run of the model that is planned, with {shape.parameter_count}",
    )
    parallel = settings["parallel"]
    grid = parallel.get("domain_grid")  # runs of earlier versions had none
    return RunLayout(
        **ranks["mesh"],
        domain_grid=tuple(grid) if grid else None,
        **{key: parallel[key] for key in ("policy", "schedule", "shard_ranks")},
        virtual=parallel["virtual_stages"] or 1,
        micro_batch=settings["batch"]["micro_batch"],
        micro_batches=ranks["micro_batches"],
        recomputation="full" if parallel["activation_checkpointing"] else "none",
        is_sequence_parallel=parallel["sequence_parallel"],
    )


def fitted(steps: Steps, shape: Shape, software: Software, cluster) -> tuple[Software, list[float]]:
    """Return the program with the values that the steps ask for, and measured over predicted
    seconds of each step by what the others ask for; none of one step.

    Errors: ConfigurationError on a step whose layout the program does not take, and on steps that
    no efficiency within reason explains.
    """
    for layout in steps:
        reason = why_not(layout, shape, software)
        if reason is not None:
            raise ConfigurationError(f"a measured step, {layout}: {reason}")

    def ratios(program: Software, of: Steps) -> list[float]:
        costs = (step_cost(layout, shape, program, cluster) for layout in of)
        return [seconds / cost.seconds for seconds, cost in zip(of.values(), costs)]

    def best(overlaps, of: Steps) -> Software:
        tried = [_efficient(replace(software, overlap=each), of, ratios) for each in overlaps]
        return min(tried, key=lambda one: _error(ratios(one, of)), default=software)

    def left_out(overlaps, layout: RunLayout) -> float:
        others = {each: seconds for each, seconds in steps.items() if each != layout}
        return ratios(best(overlaps, others), {layout: steps[layout]})[0]

    if len(steps) == 1:
        return _within_reason(best([software.overlap], steps)), []
    ways: list[tuple[float, ...]] = [(), (software.overlap,), _OVERLAPS]
    found = [[left_out(way, layout) for layout in steps] for way in ways[: len(steps)]]
    least = min(range(len(found)), key=lambda number: _error(found[number]))
    return _within_reason(best(ways[least], steps)), found[least]


def _within_reason(program: Software) -> Software:
    """Return the program. Errors: ConfigurationError where its efficiency is as far as one goes."""
    if 1 / _MOST < program.efficiency < _MOST:
        return program
    pace = "slower" if program.efficiency < 1 else "quicker"
    raise ConfigurationError(
        f"measured steps are over {_MOST:g} times {pace} than {program.name} is predicted to be; "
        "wanted seconds of steps of the model, batch and hardware that are planned"
    )


def _efficient(software: Software, steps: Steps, ratios) -> Software:
    """Return the program with the efficiency that makes the steps right on average."""
    for _ in range(_TURNS):
        late = mean(map(log, ratios(software, steps)))
        efficiency = min(max(software.efficiency * exp(-late), 1 / _MOST), _MOST)
        software = replace(software, efficiency=efficiency)
    return software


def _error(ratios) -> float:
    return mean(abs(log(ratio)) for ratio in ratios)
