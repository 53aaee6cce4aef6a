"""Draw the pictures of these pages: python docs/pictures.py

Each is computed by shardkit from a layout, a policy, a mesh or a schedule. tests/docs compares
them with the files.
"""

from pathlib import Path

import numpy

from shardkit import nn
from shardkit.layout import Box, FlatLayout, MeshShape, even_span
from shardkit.layout.pictures import draw_boxes, draw_memory, draw_mesh, draw_policies, draw_slabs
from shardkit.schedule import ORDERS, draw_svg, unit_timeline

FOLDER = Path(__file__).parent / "pictures"
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
