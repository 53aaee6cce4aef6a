"""Pictures of space, as SVG: who keeps which elements, what that takes, who stands where.

    layout = FlatLayout.of({"weight": (4, 8), "bias": (8,)}, num_shards=4, alignment=1)
    Path("fsdp.svg").write_text(draw_policies(layout, ["fsdp"]))

Every picture is computed from the layouts, policies and meshes that training uses, and loads
nothing. Timelines of schedules are drawn by schedule/grid.py.
"""

from collections.abc import Iterable

from ..svg import EMPTY, SOFT, Drawing
from .axes import COPIES
from .flat import FlatLayout
from .mesh_shape import MeshShape, in_words
from .policy import POLICIES, SIZES, Kept, Policy, policy_named

COLORS = ("#568ed2", "#e68a32", "#62aa6a", "#c05c6e", "#8a6fb8", "#4aa5a5", "#a88b45", "#777f8c")
# of a policy: what it keeps, and how many numbers of each parameter (AdamW: two moments)
_ARRAYS = {"parameters": 1, "gradients": 1, "state": 2}
_WORDS = {"state": "optimizer state"}


# ---- who keeps what ------------------------------------------------------------------------------

_COLUMNS = 2  # of panels
_HEAD = 54
_PANEL = 330
_UNIT = 64  # pixels of one array of a panel
_GAP = 16
_ROW = 24
_LEFT = 62


def draw_policies(
    layout: FlatLayout, policies: Iterable[str] = tuple(POLICIES), num_ranks: int | None = None
) -> str:
    """Return a panel for each policy: a row per rank, and in it what the rank keeps between two
    steps of the parameters, gradients and optimizer state of one unit. A tensor has one color.

    layout      of the unit; rank r keeps shard r % layout.num_shards of what is sharded
    num_ranks   rows; None: one for each shard
    """
    names = list(policies)
    num_ranks = layout.num_shards if num_ranks is None else num_ranks
    high = _HEAD + _ROW * num_ranks + _GAP
    num_rows = -(-len(names) // _COLUMNS)
    texts = [_legend_text(slot) for slot in layout.slots]
    width = max(_PANEL * min(len(names), _COLUMNS), sum(map(_legend_width, texts)))
    drawing = Drawing(_LEFT + width, high * num_rows + 26)
    for at, name in enumerate(names):
        row, column = divmod(at, _COLUMNS)
        if column == 0:
            _name_ranks(drawing, num_ranks, row * high + _HEAD)
        corner = _LEFT + column * _PANEL, row * high
        _draw_panel(drawing, policy_named(name), layout, num_ranks, corner)
    _draw_legend(drawing, texts, _LEFT)
    return drawing.svg


def _name_ranks(drawing, num_ranks: int, top: float) -> None:
    for rank in range(num_ranks):
        drawing.words(_LEFT - 10, top + _ROW * rank + 16, f"rank {rank}", anchor="end")


def _draw_panel(drawing, policy: Policy, layout: FlatLayout, num_ranks: int, corner) -> None:
    left, top = corner
    drawing.words(left, top + 20, policy.name, size=15, bold=True)
    for array, width in _ARRAYS.items():
        drawing.words(left, top + 44, _WORDS.get(array, array), size=11, color=SOFT)
        for rank in range(num_ranks):
            kept = _kept_part(getattr(policy, array), layout, rank)
            y = top + _HEAD + _ROW * rank
            _draw_array(drawing, layout, kept, left, y, _UNIT * width, rank)
        left += _UNIT * width + _GAP


def _kept_part(kept: Kept, layout: FlatLayout, rank: int) -> tuple[int, int]:
    """Return the elements [start, stop) of the flat array that a rank keeps."""
    if kept is Kept.WHOLE:
        return 0, layout.length
    return layout.span(rank % layout.num_shards)


def _draw_array(drawing, layout, kept, left, top, width, rank) -> None:
    scale = width / layout.length
    drawing.rectangle(left, top, width, _ROW - 4, EMPTY)
    for number, slot in enumerate(layout.slots):
        start, stop = max(slot.offset, kept[0]), min(slot.stop, kept[1])
        if start < stop:
            title = f"rank {rank} keeps elements {start} to {stop} of the unit, of {slot.name}"
            color = COLORS[number % len(COLORS)]
            drawing.rectangle(
                left + start * scale, top, (stop - start) * scale, _ROW - 4, color, title
            )


def _legend_text(slot) -> str:
    return f"{slot.name} {' x '.join(map(str, slot.shape))}"


def _legend_width(text: str) -> float:
    return 30 + 5.8 * len(text)


def _draw_legend(drawing, texts: list[str], x: float) -> None:
    for number, text in enumerate(texts):
        drawing.rectangle(x, drawing.height - 22, 12, 12, COLORS[number % len(COLORS)])
        drawing.words(x + 18, drawing.height - 12, text, size=11)
        x += _legend_width(text)


# ---- what it takes -------------------------------------------------------------------------------


def draw_memory(parameter_count: int, num_ranks: int, policies=tuple(POLICIES)) -> str:
    """Return a bar for each policy: bytes on a rank of float32 parameters, gradients and the two
    moments of AdamW, by Policy.bytes_per_rank.
    """
    drawing = Drawing(700, 70 + 34 * len(policies))
    title = f"{parameter_count:,} parameters on {num_ranks} ranks: MB on each rank"
    drawing.words(12, 24, title, size=15, bold=True)
    scale = 500 / (parameter_count * sum(SIZES))
    for at, policy in enumerate(map(policy_named, policies)):
        left, top = 80.0, 40 + 34 * at
        drawing.words(70, top + 17, policy.name, anchor="end")
        parts = policy.parts_per_rank(parameter_count, num_ranks)
        for color, part, part_bytes in zip(COLORS, ("parameter", "gradient", "optimizer"), parts):
            about = f"{part}: {part_bytes / 1e6:.1f} MB"
            drawing.rectangle(left, top, part_bytes * scale, 24, color, about)
            left += part_bytes * scale
        drawing.words(left + 8, top + 17, f"{sum(parts) / 1e6:,.1f}")
    _draw_legend(drawing, ["parameters", "gradients", "optimizer state"], 80.0)
    return drawing.svg


# ---- who stands where ----------------------------------------------------------------------------


def draw_mesh(mesh: MeshShape) -> str:
    """Return the ranks of a mesh: a panel per pipeline stage, a column per tensor rank, and a row
    per rank that keeps shards of the same parameters: these have one color.
    """
    panel = 70 * mesh.tensor + 40
    groups = mesh.groups(COPIES)
    drawing = Drawing(max(_LEFT + 20 + panel * mesh.pipeline, 540), 84 + 44 * len(groups[0]))
    for rank in range(mesh.size):
        at = mesh.coordinates(rank)
        group = next(number for number, group in enumerate(groups) if rank in group)
        x = _LEFT + 20 + panel * at.pipeline + 70 * at.tensor
        row = groups[group].index(rank)
        y = 60 + 44 * row
        drawing.rectangle(x, y, 64, 38, COLORS[group % len(COLORS)], f"rank {rank}: {at}")
        drawing.words(x + 32, y + 24, f"rank {rank}", anchor="middle", color="white", bold=True)
        if row == 0:
            drawing.words(x + 32, 52, f"tensor {at.tensor}", size=11, anchor="middle", color=SOFT)
        if row == at.tensor == 0:
            drawing.words(x, 24, f"pipeline {at.pipeline}", size=15, bold=True)
        if at.pipeline == at.tensor == 0:
            name = in_words({axis: at.along[axis] for axis in COPIES[::-1]}, " ", usual=0)
            drawing.words(_LEFT + 8, y + 24, name, size=11, anchor="end", color=SOFT)
    words = "one color: one data group, which shares the parameters of one stage and slice"
    drawing.words(_LEFT + 20, drawing.height - 10, words, size=11, color=SOFT)
    return drawing.svg
