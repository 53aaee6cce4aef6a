"""The report of a search: a table of the best layouts with why each lost, one layout in detail, and
all as JSON.

#  pipeline x data x tensor  policy  schedule  micro-batches  s per step  GB  days  why
"""

import json
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import inf, isfinite

from ..files.tables import table_console, table_of
from ..files.writing import write_whole
from ..plain import counted
from ..schedule.grid import draw_svg
from .band import Band, band_of
from .cost import PARTS, checkpoint_bytes
from .layouts import RunLayout
from .search import WORDS, Candidate, Search
from .shape import by
from .stages import blocks_per_stage
from .timeline import PipelineRun
from .whole_run import Interruptions, interruptions_of

_MOST_BOXES = 4000  # of a drawing
_GB = 1e9
_WIDE = 200  # in a file or a pipe


@dataclass(frozen=True)
class PlannedTraining:
    """A whole run of this many tokens or rows, in steps of the batch of the search.

    left_out   a line for each setting of the run that the best layout's figures do not follow
    """

    found: Search
    tokens: float
    left_out: tuple[str, ...] = ()

    def days(self, candidate: Candidate) -> float:
        return self.steps * candidate.cost.seconds / 86400

    def band(self, candidate: Candidate) -> Band:
        """Return the residuals of runs like this one."""
        found = self.found
        return band_of(candidate.layout, found.shape, found.cluster, found.software.name)

    def between(self, candidate: Candidate) -> tuple[float, float]:
        """Return between which seconds a step is expected to take, by its family's residuals."""
        return self.band(candidate).around(candidate.cost.seconds)

    def useful_share(self, candidate: Candidate) -> float:
        """Return the share of the time that goes into steps; 1 if the hardware says nothing of
        failures.
        """
        stops = self.interruptions(candidate)
        return stops.useful_share(stops.best_interval()) if stops else 1.0

    def with_failures(self, candidate: Candidate, time: float) -> float:
        """Return how long steps of so much time take with failures; infinite if they never end."""
        share = self.useful_share(candidate)
        return time / share if share else inf

    def interruptions(self, candidate: Candidate) -> Interruptions | None:
        devices, seconds = candidate.layout.devices, candidate.cost.checkpoint_seconds
        return interruptions_of(self.found.cluster, devices, seconds)

    def megawatt_hours(self, candidate: Candidate) -> float:
        """Return the energy of the whole run with its failures; 0 if it is unknown."""
        hours = self.with_failures(candidate, self.device_hours(candidate))
        return hours * self.found.cluster.watts / 1e6 if self.found.cluster.watts else 0.0

    def price(self, candidate: Candidate) -> float:
        """Return the price of the whole run with its failures; 0 if it is unknown."""
        hours = self.with_failures(candidate, self.device_hours(candidate))
        return (
            hours * self.found.cluster.price_per_hour if self.found.cluster.price_per_hour else 0.0
        )

    def device_hours(self, candidate: Candidate) -> float:
        return self.days(candidate) * 24 * candidate.layout.devices

    @property
    def steps(self) -> float:
        return self.tokens / (self.found.batch * self.found.shape.sequence_length)

    def flops(self, candidate: Candidate) -> float:
        """Return the operations of the model per second and device, without recomputation."""
        tokens = self.found.batch * self.found.shape.sequence_length
        flops = self.found.shape.num_flops_per_item * tokens
        return flops / candidate.cost.seconds / candidate.layout.devices


def print_search(training: PlannedTraining, count: int) -> None:
    """Print the table, or why no layout fits."""
    found = training.found
    console = table_console(_WIDE)
    console.print(
        f"{found.shape.parameter_count:,} parameters on {counted(found.devices, 'device')} of "
        f"{found.cluster.name}, {_batch(found)} in a step, as {found.software.name}\n"
        f"{counted(found.considered, 'layout')}: fit {len(found.fitting):,}, "
        f"refused {sum(found.refused.values()):,}",
        markup=False,
    )
    if found.best is None:
        console.print("no layout fits", markup=False)
        for line in found.what_would_fit():
            console.print(f"- {line}", markup=False)
        return
    console.print(_table(training, count))
    console.print(_totals(training), markup=False)
    for line in (*_whole_run(training), *_within(training), *_quicker(found), *training.left_out):
        console.print(f"- {line}", markup=False)


def _batch(found: Search) -> str:
    samples, items = found.shape.words
    length = found.shape.sequence_length
    return f"{found.batch} {samples}" + (f" of {length} {items}" if items != samples else "")


def _table(training: PlannedTraining, count: int):
    table = table_of(
        "#",
        " x ".join(training.found.best.layout.mesh.shown),
        "policy",
        "schedule",
        "micro-batches",
        "recomputed",
        "s per step",
        "between",
        "GB",
        "TFLOP/s",
        "days",
        "why not the best",
        right=(0, 6, 7, 8, 9, 10),
    )
    for number, candidate in enumerate(training.found.rows(count), 1):
        layout = candidate.layout
        table.add_row(
            str(number),
            " x ".join(_ranks_along(layout, axis) for axis in layout.mesh.shown)
            + " sequence" * layout.is_sequence_parallel,
            layout.policy_words,
            f"{layout.schedule} x {layout.virtual}" if layout.virtual > 1 else layout.schedule,
            f"{layout.micro_batches} of {layout.micro_batch}",
            layout.recomputed_words,
            _short(candidate.cost.seconds),
            " - ".join(map(_short, training.between(candidate))),
            _short(candidate.memory.total / _GB),
            _short(training.flops(candidate) / 1e12),
            _short(training.days(candidate)),
            "" if candidate is training.found.best else training.found.why_it_lost(candidate),
        )
    return table


def _ranks_along(layout: RunLayout, axis: str) -> str:
    """Return the size of an axis, of the domain axis as (2 x 2) where it cuts several dims."""
    if axis == "domain" and layout.domain_grid:
        return f"({by(layout.cut)})"
    return str(layout.mesh.sizes[axis])


def _totals(training: PlannedTraining) -> str:
    found = training.found
    best = training.found.best
    saved = f"a checkpoint has {_short(checkpoint_bytes(found.shape, found.software) / _GB)} GB"
    if best.cost.checkpoint_seconds:
        saved += f" and takes {_short(best.cost.checkpoint_seconds)} s"
    return (
        f"{training.tokens:.3g} {found.shape.words[1]} are {training.steps:,.0f} steps: "
        f"{_short(training.days(best))} days, {training.device_hours(best):,.0f} device-hours; "
        f"{saved}"
    )


def _whole_run(training: PlannedTraining) -> list[str]:
    """Return lines about failures, energy and money, as far as the hardware file has figures."""
    best = training.found.best
    lines = []
    stops = training.interruptions(best)
    if stops is not None:
        share = training.useful_share(best)
        days = [
            training.with_failures(best, training.steps * seconds / 86400)
            for seconds in (best.cost.seconds, *training.between(best))
        ]
        lines.append(
            f"a failure every {_short(stops.failure_seconds / 3600)} hours: with a checkpoint "
            f"every {_short(stops.best_interval() / 60)} minutes and restarts of "
            f"{_short(stops.restart_seconds)} s, {share:.1%} of the time goes into steps: "
            f"{_short(days[0])} days ({_short(days[1])} to {_short(days[2])})"
        )
    if training.found.cluster.watts:
        lines.append(f"energy: {training.megawatt_hours(best):,.3g} MWh")
    if training.found.cluster.price_per_hour:
        lines.append(f"price: {training.price(best):,.0f}")
    return lines


def _within(training: PlannedTraining) -> list[str]:
    """Return a line about the band, which says if the second row may as well be the quickest."""
    found = training.found
    best, *others = found.rows(2)
    band = training.band(best)
    low, high = training.between(best)
    lines = [
        f"nine of ten runs are expected at {band.low:.2f} to {band.high:.2f} times what is "
        f"predicted, by {band.rows} runs of {band.family}: {_short(low)} to {_short(high)} s"
    ]
    if others and others[0].cost.seconds <= best.cost.seconds * band.high / band.low:
        lines.append("rows 1 and 2 are within this band: measure both")
    return lines


def _quicker(found: Search) -> list[str]:
    """Return a line for the layout that would be best if it fitted."""
    quicker = [c for c in found.too_large if c.cost.seconds < 0.98 * found.best.cost.seconds]
    if not quicker:
        return []
    first = min(quicker, key=lambda c: c.cost.seconds)
    return [
        f"with more memory: {first.layout} would take {_short(first.cost.seconds)} s, but needs "
        f"{found.why_it_lost(first)}"
    ]


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


# ---- one row -------------------------------------------------------------------------------------


def print_explanation(training: PlannedTraining, number: int, count: int) -> Candidate | None:
    """Print memory and time of one row of the table, part by part.

    Return the row, or None if there is no such row.
    """
    rows = training.found.rows(max(count, number))
    if not 1 <= number <= len(rows):
        return None
    candidate = rows[number - 1]
    console = table_console(_WIDE)
    console.print(f"\n{number}: {candidate.layout}", markup=False)
    table = table_of("memory", "GB", "", "time of a step", "s", "share", right=(1, 4, 5))
    memory = [
        (words, _short(getattr(candidate.memory, part) / _GB)) for part, words in WORDS.items()
    ]
    memory += [("all", _short(candidate.memory.total / _GB))]
    total = candidate.cost.seconds
    seconds = [(words, candidate.cost.parts[part]) for part, words in PARTS.items()]
    seconds.append(("all", total))
    times = [(what, _short(s), f"{s / total:.1%}") for what, s in seconds]
    for left, right in zip_longest(memory, times):
        table.add_row(*(left or ("", "")), "", *(right or ("", "", "")))
    console.print(table)
    return candidate


def write_timeline(candidate: Candidate, path) -> str:
    """Draw the pipeline of a layout into an SVG file; return a sentence about it.

    Errors: OSError if it cannot be written.
    """
    layout = candidate.layout
    fitting = max(_MOST_BOXES // (3 * layout.num_stages), 2)
    shown = min(
        layout.micro_batches,
        max(fitting, layout.pipeline) // layout.pipeline * layout.pipeline or fitting,
    )
    cost = candidate.cost
    form = (layout.schedule, layout.pipeline, layout.virtual)
    timeline = PipelineRun(*form, shown, cost.stages, cost.transfer_seconds).simulated()
    part = ""
    if shown < layout.micro_batches:
        part = f", {shown} of {layout.micro_batches} micro-batches"
    write_whole(path, draw_svg(timeline, f"{layout}{part}").encode())
    return f"{path}: the timeline{part or ' of all micro-batches'}"


# ---- for programs --------------------------------------------------------------------------------


def as_json(training: PlannedTraining, count: int) -> str:
    """Return everything in the table, and the parts of memory and time, as JSON."""
    found = training.found
    report = {
        "devices": found.devices,
        "batch": found.batch,
        "cluster": found.cluster.name,
        "software": found.software.name,
        "parameter_count": found.shape.parameter_count,
        "tokens": training.tokens,
        "considered": found.considered,
        "checkpoint_bytes": checkpoint_bytes(found.shape, found.software),
        "left_out": list(training.left_out),
        "fitting": len(found.fitting),
        "refused": found.refused,
        "what_would_fit": found.what_would_fit(),
        "rows": [_row(training, candidate) for candidate in found.rows(count)],
    }
    return json.dumps(report, indent=1)


def _row(training: PlannedTraining, candidate: Candidate) -> dict:
    layout = asdict(candidate.layout)
    del layout["devices"]
    shape, software, of = training.found.shape, training.found.software, candidate.layout
    return {
        "layout": layout,
        "blocks_per_stage": blocks_per_stage(shape, software, of.num_stages, of.tensor),
        "seconds": candidate.cost.seconds,
        "seconds_between": training.between(candidate),
        "seconds_by_part": candidate.cost.parts,
        "checkpoint_seconds": candidate.cost.checkpoint_seconds,
        "bytes": candidate.memory.total,
        "bytes_by_part": asdict(candidate.memory),
        "flops_per_second_and_device": training.flops(candidate),
        "days": training.days(candidate),
        "device_hours": training.device_hours(candidate),
        "useful_share": training.useful_share(candidate),
        "megawatt_hours": _or_none(training.megawatt_hours(candidate)),
        "price": _or_none(training.price(candidate)),
        "why": training.found.why_it_lost(candidate),
    }


def _or_none(figure: float) -> float | None:
    """Return the figure, as JSON has no infinite ones."""
    return figure if isfinite(figure) else None
