"""Draw the pictures of these pages: python docs/pictures.py

Each is computed by shardkit from a layout, a policy, a mesh or a schedule. tests/docs compares
them with the files.
"""

from pathlib import Path

import numpy

from shardkit import nn
from shardkit.layout import Box, FlatLayout, MeshShape, even_span
from shardkit.layout.pictures import COLORS, draw_memory, draw_mesh, draw_policies
from shardkit.schedule import ORDERS, draw_svg, unit_timeline
from shardkit.svg import EMPTY, SOFT, Drawing

FOLDER = Path(__file__).parent / "pictures"
SIDE = 150  # of an array
CELL, LINE = 36, 34  # of a row of a sample, of a rank
FOUR = ("ddp", "zero1", "zero2", "fsdp")
BLOCK = {"up.weight": (8, 4), "up.bias": (8,), "down.weight": (4, 8), "down.bias": (4,)}


def block(num_shards: int) -> FlatLayout:
    """Return the layout of two linear layers, cut without padding."""
    return FlatLayout.of(BLOCK, num_shards, alignment=1)


def cut(shape, dim, num_ranks):
    """Return (shape, {rank: box}) of an array that is cut evenly along one dim."""
    boxes = {}
    for rank in range(num_ranks):
        start, stop = even_span(shape[dim], num_ranks, rank)
        offset, size = [0, 0], list(shape)
        offset[dim], size[dim] = start, stop - start
        boxes[rank] = Box(tuple(offset), tuple(size))
    return shape, boxes


def reads(layer, num_ranks, length=11):
    """Return how many rows x has, and which each rank reads for its own rows of layer(x).

    A row that is read makes what it is read for something that is no number.
    """
    spoiled = numpy.ones((length, 1, length), "float32")
    spoiled[range(length), 0, range(length)] = numpy.nan
    is_read = numpy.isnan(layer.finish(0).predict(spoiled)[:, 0])  # [rows of x, rows of layer(x)]
    rows = []
    for rank in range(num_ranks):
        start, stop = even_span(is_read.shape[1], num_ranks, rank)
        rows.append(numpy.flatnonzero(is_read[:, start:stop].any(1)).tolist())
    return length, rows


def draw_boxes(arrays: dict) -> str:
    """Return two-dimensional arrays side by side, each cut into the boxes that ranks hold.

    arrays   {title: ((rows, columns), {rank: its box})}; a rank has one color in all of them
    """
    drawing = Drawing(24 + (SIDE + 74) * len(arrays), SIDE + 66)
    for at, (title, (shape, boxes)) in enumerate(arrays.items()):
        num_rows, num_columns = shape
        left, top = 24 + (SIDE + 74) * at, 52
        drawing.words(left, 20, title, size=14, bold=True)
        drawing.words(left, 40, f"{num_rows} x {num_columns}", size=11, color=SOFT)
        drawing.rectangle(left, top, SIDE, SIDE, EMPTY)
        for rank, box in boxes.items():
            (row, column), (height, width) = box.offset, box.shape
            y = top + SIDE * row / num_rows
            x = left + SIDE * column / num_columns
            high, wide = SIDE * height / num_rows, SIDE * width / num_columns
            about = f"rank {rank}: rows from {row}, {height}; columns from {column}, {width}"
            drawing.rectangle(x, y, wide, high, COLORS[rank % len(COLORS)], about)
            drawing.words(
                x + wide / 2, y + high / 2 + 4, f"rank {rank}", anchor="middle", color="white"
            )
    return drawing.svg


def draw_slabs(layers: dict) -> str:
    """Return a panel for each layer: a line per rank, with its own rows of a sample, and lower
    those that it reads of other ranks, in the color of who holds them.

    layers   {title: (rows of x, [numbers of the rows that each rank reads])}
    """
    num_rows = max(length for length, _ in layers.values())
    num_ranks = max(len(reads) for _, reads in layers.values())
    high = 52 + LINE * num_ranks
    drawing = Drawing(100 + CELL * num_rows, 16 + high * len(layers))
    for at, (title, (length, reads)) in enumerate(layers.items()):
        top = high * at
        drawing.words(24, top + 24, title, size=14, bold=True)
        for rank, rows in enumerate(reads):
            y = top + 40 + LINE * rank
            drawing.words(24, y + 20, f"rank {rank}")
            draw_rows(drawing, length, len(reads), rank, rows, y)
    return drawing.svg


def draw_rows(drawing, length: int, num_ranks: int, rank: int, rows, y: float) -> None:
    for holder in range(num_ranks):
        for row in range(*even_span(length, num_ranks, holder)):
            is_own, x = holder == rank, 76 + CELL * row
            if not is_own and row not in rows:
                continue
            about = f"row {row}, of rank {holder}" + ("" if is_own else f", read by rank {rank}")
            inset = 0 if is_own else 8
            color = COLORS[holder % len(COLORS)]
            high = LINE - 6 - 2 * inset
            drawing.rectangle(x, y + inset, CELL, high, color, about)
            if is_own:
                drawing.words(x + CELL / 2, y + 19, row, anchor="middle", color="white")


def schedule(name, micro_batches=8):
    return draw_svg(unit_timeline(name, 4, micro_batches), f"{name}, {micro_batches} micro-batches")


def pictures() -> dict[str, str]:
    """Return {file name: SVG text} of all pictures."""
    tensor = {
        "up: column": cut((512, 128), 0, 2),
        "down: row": cut((128, 512), 1, 2),
        "attention heads": cut((128, 128), 0, 2),
    }
    sequence = {
        "between layers": cut((64, 128), 0, 2),
        "inside of a layer": cut((64, 512), 1, 2),
    }
    slabs = {
        "a convolution that reads 5 rows": reads(nn.Conv1d(1, 1, 5, padding=2), 3),
        "one of 3 rows, with circular padding": reads(
            nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"), 3
        ),
        "means of 2 rows: 5 of them": reads(nn.AvgPool1d(2), 3),
    }
    return {
        "policies.svg": draw_policies(block(4), FOUR),
        "ddp.svg": draw_policies(block(4), ["ddp"]),
        "zero.svg": draw_policies(block(4), ["zero1", "zero2"]),
        "fsdp.svg": draw_policies(block(4), ["fsdp"]),
        "hsdp.svg": draw_policies(block(2), ["hsdp"], num_ranks=4),
        "memory.svg": draw_memory(100_000_000, 4, FOUR),
        "tensor.svg": draw_boxes(tensor),
        "sequence.svg": draw_boxes(sequence),
        "slabs.svg": draw_slabs(slabs),
        "mesh.svg": draw_mesh(MeshShape(pipeline=2, data=2, tensor=2)),
        **{f"{name}.svg": schedule(name) for name in ORDERS},
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg)
