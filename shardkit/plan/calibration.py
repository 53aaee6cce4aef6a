"""A program fitted to measured steps of it: one efficiency, and one overlap if steps ask for it.

    steps = [step for path in paths for step in measured_steps(path, shape)]
    fit = fitted(steps, shape, software, cluster)
    fit.software, fit.error

A line of a file is a step of any program, with a layout as RunLayout has it,

    {"step": 90, "seconds": 12.5, "layout": {"data": 8, "tensor": 4, "micro_batches": 16}}

or all lines are the records of one run of shardkit, whose folder says its layout. Lines of one
layout count as one step, their median. What is fitted is chosen by the error of each step under
what the others give: nothing, the efficiency, or both. There are always fewer fitted values than
steps, but for one step, which gives an efficiency that nothing checks.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import mean, median

from ..arguments import is_integer, is_number, require
from ..errors import ConfigurationError
from ..files.reading import read_json, understood, wanted
from ..train.log import read_metrics
from .band import Band
from .cost import step_cost
from .hardware import Cluster
from .layouts import RunLayout, why_not
from .shape import Shape
from .software import Software
from .tables import ABOVE_0, Limit, made

_OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
_ENOUGH = 5  # steps for a band of their own
_MOST = 20.0  # times as efficient, or as inefficient
_COUNT: Limit = partial(is_integer, at_least=1), "an integer, at least 1"
_COUNTS = "pipeline data tensor virtual micro_batch micro_batches domain recomputed shard_ranks"
_LIMITS = dict.fromkeys(_COUNTS.split(), _COUNT)
_TURNS = 8  # of the search for an efficiency, each of which takes most of what is left of the error


@dataclass(frozen=True)
class MeasuredStep:
    layout: RunLayout
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """A fitted program.

    ratios   measured over predicted seconds of each step, by the values that the others give; () if
             there is one step
    """

    software: Software
    ratios: tuple[float, ...]

    @property
    def error(self) -> float:
        """The mean magnitude of the errors of steps that were left out."""
        return mean(abs(1 / ratio - 1) for ratio in self.ratios)

    @property
    def band(self) -> Band | None:
        """Between which residuals steps are expected; None of too few steps to say."""
        if len(self.ratios) < _ENOUGH:
            return None
        low, high = min(1.0, *self.ratios), max(1.0, *self.ratios)
        return Band("measured steps", len(self.ratios), low, high, 0, 0)

    def __str__(self) -> str:
        found = f"efficiency {self.software.efficiency:.3g}, overlap {self.software.overlap:.3g}"
        if not self.ratios:
            return f"{found} by one step, which nothing checks"
        number = len(self.ratios)
        return f"{found}; each of {number} steps, left out, is off by {self.error:.1%} on average"


def measured_steps(path, shape: Shape) -> list[MeasuredStep]:
    """Return the steps of a file.

    Errors: ConfigurationError on a line or a run that is none of this model; OSError.
    """
    path = Path(path)
    records = read_metrics(path)
    with understood(path):
        steps = _steps([record for record in records if "layout" in record], path)
        speed = f"{shape.words[1]}_per_second"
        speeds = [record[speed] for record in records if record.get(speed)]
        if speeds and not steps:
            layout = _layout_of_run(path.parent, shape)
            items = layout.batch * shape.sequence_length
            speeds = speeds[1:] or speeds  # the first warms up
            steps = [MeasuredStep(layout, items / median(speeds))]
    if not steps:
        raise ConfigurationError(f"{path} has no step with seconds and layout, and no {speed}")
    return steps


def _steps(records: list[dict], path: Path) -> list[MeasuredStep]:
    """Return a step for each layout, the median of its records."""
    of_layout: dict[RunLayout, list[float]] = {}
    for record in records:
        seconds = record.get("seconds")
        require(is_number(seconds, above=0), f"{path}: seconds", seconds, ABOVE_0[1])
        given = wanted(record["layout"], dict, path, "layout").items()
        said = {name: value for name, value in given if value is not None}
        layout = made(RunLayout, said, str(path), _LIMITS)
        of_layout.setdefault(layout, []).append(seconds)
    return [MeasuredStep(layout, median(seconds)) for layout, seconds in of_layout.items()]


def _layout_of_run(folder: Path, shape: Shape) -> RunLayout:
    """Return the layout of a run of shardkit, by what stands beside its records."""
    settings, ranks = read_json(folder / "configuration.json"), read_json(folder / "ranks.json")
    if ranks["parameter_count"] != shape.parameter_count:
        raise ConfigurationError(
            f"{folder} is a run of {ranks['parameter_count']:,} parameters; the model that is "
            f"planned has {shape.parameter_count:,}"
        )
    parallel, batch = settings["parallel"], settings["batch"]
    return RunLayout(
        **ranks["mesh"],
        policy=parallel["policy"],
        schedule=parallel["schedule"],
        virtual=parallel["virtual_stages"] or 1,
        micro_batch=batch["micro_batch"],
        micro_batches=ranks["micro_batches"],
        recomputation="full" if parallel["activation_checkpointing"] else "none",
        is_sequence_parallel=parallel["sequence_parallel"],
        shard_ranks=parallel["shard_ranks"],
    )


def fitted(
    steps: list[MeasuredStep], shape: Shape, software: Software, cluster: Cluster
) -> Calibration:
    """Return the program with the values that the steps ask for.

    Errors: ConfigurationError on a step whose layout the program does not take.
    """
    for step in steps:
        reason = why_not(step.layout, shape, software)
        if reason is not None:
            raise ConfigurationError(f"a measured step, {step.layout}: {reason}")
    at = shape, cluster
    ways = [(), (software.overlap,), _OVERLAPS]
    if len(steps) == 1:
        return Calibration(_best(steps, software, ways[1], at), ())
    left_out = [
        tuple(
            _ratio(step, _best(steps[:i] + steps[i + 1 :], software, way, at), at)
            for i, step in enumerate(steps)
        )
        for way in ways[: len(steps)]
    ]
    errors = [mean(abs(log(ratio)) for ratio in ratios) for ratios in left_out]
    best = errors.index(min(errors))
    return Calibration(_best(steps, software, ways[best], at), left_out[best])


def _best(steps, software: Software, overlaps: tuple[float, ...], at) -> Software:
    """Return the program with one of these overlaps and its efficiency, or as it is."""
    tried = [_with_efficiency(steps, replace(software, overlap=each), at) for each in overlaps]
    return min(tried, key=lambda one: _error(steps, one, at)) if tried else software


def _with_efficiency(steps, software: Software, at) -> Software:
    """Return the program with the efficiency that makes the steps right on average."""
    for _ in range(_TURNS):
        late = mean(log(_ratio(step, software, at)) for step in steps)
        efficiency = software.efficiency * exp(-late)
        software = replace(software, efficiency=min(max(efficiency, 1 / _MOST), _MOST))
    return software


def _error(steps, software: Software, at) -> float:
    return mean(abs(log(_ratio(step, software, at))) for step in steps)


def _ratio(step: MeasuredStep, software: Software, at) -> float:
    shape, cluster = at
    return step.seconds / step_cost(step.layout, shape, software, cluster).seconds
