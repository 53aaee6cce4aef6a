"""Grid: a timeline as a diagram with one row per pipeline rank and time to the right, as text, as
SVG, and with its figures.

    rank 0   F0 F1  . B0 W0 F2 B1 W1  . B2 W2
    rank 1    . F0 B0 W0 F1 B1 W1 F2 B2 W2  .

    print(describe_timeline(unit_timeline("1f1b", ranks=2, micro_batches=3)))

Only F, B and W are drawn. Where a rank runs several stages, the stage is a number in the text and a
shade in the SVG image.
"""

from dataclasses import replace
from math import ceil, floor, log10

from ..svg import EMPTY, SOFT, Drawing
from .actions import COMPUTE, Action, Kind
from .catalog import order_named
from .lowering import lower
from .simulate import Timeline, simulate

# by Timeline.unit
_IN_WORDS = {"s": "seconds", "units": "units; F, B and W of a stage take one each"}


def unit_timeline(
    order: str = "1f1b", ranks: int = 4, micro_batches: int = 8, virtual: int | None = None
) -> Timeline:
    """Return the timeline of an order in which F, B and W of a stage take one unit of time each and
    messages take none.

    virtual   stages per rank; None: the default of the order
    Errors: ScheduleError if there is no such order, or it does not run that many stages.
    """
    program = order_named(order)(ranks, micro_batches, virtual)
    stages = {action.stage for actions in program.values() for action in actions}
    return replace(simulate(lower(program, dict.fromkeys(stages, 1))), unit="units")


def describe_timeline(timeline: Timeline) -> str:
    """Return the grid with the time of the step, its bubble, and what each rank keeps below it."""
    keeps = " ".join(str(timeline.peak_live_micro_batches(rank)) for rank in timeline.events)
    has_pairs = _Rows(timeline).has_virtual_stages
    counted = "pairs of stage and micro-batch" if has_pairs else "micro-batches"
    return (
        f"{draw_text(timeline)}\n\n"
        f"time        {timeline.seconds:g} {_IN_WORDS[timeline.unit]}\n"
        f"bubble      {timeline.bubble_fraction:.1%}\n"
        f"peak live   {keeps} {counted}, by rank"
    )


class _Rows:
    """What a timeline computes, by rank, and how to label it.

    work     {rank: its F, B and W that take time}
    stages   {rank: its stages, ascending}
    """

    def __init__(self, timeline: Timeline):
        self.work = {
            rank: [e for e in events if e.action.kind in COMPUTE and e.end > e.start]
            for rank, events in timeline.events.items()
        }
        self.stages = {
            rank: sorted({e.action.stage for e in events}) for rank, events in self.work.items()
        }
        self.has_virtual_stages = any(len(stages) > 1 for stages in self.stages.values())
        self.has_units = any(e.action.unit for events in self.work.values() for e in events)

    def label(self, action: Action) -> str:
        """Return the action without the numbers that are all 0: F5, 2F5 or 2.1F5."""
        if self.has_units:
            return str(action)
        stage = action.stage if self.has_virtual_stages else ""
        return f"{stage}{action.kind.value}{action.micro_batch}"

    def shade(self, rank: int, stage: int) -> float:
        """Return 0 for the first stage of the rank, up to 1 for the last that any rank has."""
        return self.stages[rank].index(stage) / max(1, max(map(len, self.stages.values())) - 1)


# --- text -----------------------------------------------------------------------------------------


def draw_text(timeline: Timeline) -> str:
    """Draw one row per rank, one cell per second: what runs when the second begins, or a dot."""
    rows = _Rows(timeline)
    cells = {rank: _cells(rows, rank, ceil(timeline.seconds)) for rank in rows.work}
    width = max((len(cell) for row in cells.values() for cell in row), default=1)
    margin = max(len(str(rank)) for rank in cells)
    return "\n".join(
        f"rank {rank:{margin}}   {' '.join(cell.rjust(width) for cell in row)}"
        for rank, row in cells.items()
    )


def _cells(rows: _Rows, rank: int, num_cells: int) -> list[str]:
    cells = ["."] * num_cells
    for action, start, end in rows.work[rank]:
        for second in range(ceil(start), ceil(end)):
            cells[second] = rows.label(action)
    return cells


# --- SVG ------------------------------------------------------------------------------------------

# the first and the last stage of a rank
_COLORS = {
    Kind.FORWARD: ((170, 204, 243), (86, 142, 210)),
    Kind.BACKWARD: ((250, 203, 152), (230, 138, 50)),
    Kind.WEIGHT: ((188, 224, 188), (98, 170, 106)),
}
_NAMES = {Kind.FORWARD: "forward", Kind.BACKWARD: "input gradient", Kind.WEIGHT: "weight gradient"}
# pixels
_CELL = 18
_ROW = 26
_LEFT = 64
_TOP = 66
_FOOT = 44
_RIGHT = 20
_WIDEST = 8000
_NARROWEST = 760
_DIGIT = 6


def draw_svg(timeline: Timeline, title: str = "") -> str:
    """Return a self-contained SVG image: a box per F, B and W with the number of its micro-batch, a
    legend and an axis of time.

    The shortest action is 18 pixels wide, unless the image would then be wider than 8000. The title
    gets the time of the step, in the unit of the timeline, and the bubble fraction.
    """
    rows = _Rows(timeline)
    scale = _pixels_per_second(timeline)
    width = max(_LEFT + timeline.seconds * scale + _RIGHT, _NARROWEST)
    bottom = _TOP + _ROW * len(rows.work)
    figures = f"{timeline.seconds:g} {timeline.unit}, {timeline.bubble_fraction:.1%} bubble"
    drawing = Drawing(width, bottom + _FOOT)
    drawing.words(_LEFT, 22, f"{title}: {figures}" if title else figures, size=15, bold=True)
    _draw_legend(drawing, rows)
    _draw_axis(drawing, timeline, scale, bottom)
    for at, rank in enumerate(rows.work):
        _draw_row(drawing, rows, rank, _TOP + at * _ROW, timeline, scale)
    return drawing.svg


def _pixels_per_second(timeline: Timeline) -> float:
    shortest = min(
        (e.end - e.start for events in _Rows(timeline).work.values() for e in events), default=1.0
    )
    return min(_CELL / shortest, _WIDEST / (timeline.seconds or 1.0))


def _draw_row(drawing, rows: _Rows, rank: int, top: float, timeline: Timeline, scale) -> None:
    drawing.words(_LEFT - 10, top + 17, f"rank {rank}", anchor="end")
    drawing.rectangle(_LEFT, top + 2, timeline.seconds * scale, _ROW - 4, EMPTY)
    for action, start, end in rows.work[rank]:
        width = (end - start) * scale
        number = str(action.micro_batch)
        within = number if width >= _DIGIT * len(number) + 2 else ""
        title = f"{action}: {start:g} to {end:g} {timeline.unit}"
        color = _color(action.kind, rows.shade(rank, action.stage))
        box = _LEFT + start * scale, top + 2, width, _ROW - 4
        drawing.rectangle(*box, color, title, within)


def _color(kind: Kind, shade: float) -> str:
    mixed = (round(one + (two - one) * shade) for one, two in zip(*_COLORS[kind]))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _draw_legend(drawing, rows: _Rows) -> None:
    """Draw a swatch per kind, with one part per shade."""
    shades = sorted(
        {rows.shade(rank, stage) for rank, stages in rows.stages.items() for stage in stages}
    )
    left = _LEFT
    for kind, name in _NAMES.items():
        for shade in shades:
            drawing.rectangle(left, 34, 12, 14, _color(kind, shade))
            left += 12
        drawing.words(left + 5, 45, name)
        left += 7 * len(name) + 20
    if rows.has_virtual_stages:
        drawing.words(left, 45, "light to dark: stages of a rank, ascending", color=SOFT)


def _draw_axis(drawing, timeline: Timeline, scale: float, top: float) -> None:
    seconds = timeline.seconds
    step = _round_step(34 / scale)
    style = {"anchor": "middle", "color": SOFT}
    for tick in range(floor(seconds / step) + 1):
        x = _LEFT + tick * step * scale
        drawing.line([(x, top), (x, top + 6)])
        drawing.words(x, top + 20, f"{tick * step:g}", size=11, **style)
    drawing.words(_LEFT + seconds * scale / 2, top + 37, _IN_WORDS[timeline.unit], **style)


def _round_step(shortest: float) -> float:
    """Return the smallest of ... 0.5, 1, 2, 5, 10 ... that is not shorter."""
    power = 10.0 ** floor(log10(shortest))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= shortest)
