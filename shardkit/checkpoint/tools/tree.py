"""The tensors of a checkpoint as a tree of modules, with sizes.

tensor                             shape   dtype  elements  bytes  boxes
model                                                8,912  35,648
  blocks
    0 ...
"""

import re
from math import prod

import numpy

_COLUMNS = ("tensor", "shape", "dtype", "elements", "bytes", "boxes")


def in_order(names) -> list[str]:
    """Names sorted with their numbers as numbers: blocks.2 before blocks.10."""
    return sorted(
        names,
        key=lambda name: [
            int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))
        ],
    )


def shape_text(shape) -> str:
    """4x6, or scalar."""
    return "x".join(map(str, shape)) or "scalar"


def tensor_tree(tensors: dict[str, dict]) -> str:
    """The "tensors" entry of a manifest as aligned text: one line per module with its sum, one per
    tensor.
    """
    root: dict = {}
    for tensor in in_order(tensors):
        node, (*modules, name) = root, re.findall(r"[^./]+[./]?", tensor)
        for module in modules:
            node = node.setdefault(module, {})
        node[name] = _Leaf(tensors[tensor])
    rows = [_COLUMNS, *_rows(root, 0)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join(_line(row, widths) for row in rows)


class _Leaf:
    """A tensor of the tree."""

    def __init__(self, entry: dict):
        self.shape, self.dtype, self.num_boxes = entry["shape"], entry["dtype"], len(entry["boxes"])
        self.elements = prod(self.shape)
        self.bytes = self.elements * numpy.dtype(self.dtype).itemsize


def _rows(node: dict, depth: int):
    for name, below in node.items():
        while (
            not isinstance(below, _Leaf) and len(below) == 1 and name.endswith(".")
        ):  # up.weight, where up has no bias
            ((only, below),) = below.items()
            name += only
        label = "  " * depth + name.rstrip("./")
        if isinstance(below, _Leaf):
            yield (
                label,
                shape_text(below.shape),
                below.dtype,
                f"{below.elements:,}",
                f"{below.bytes:,}",
                f"{below.num_boxes}",
            )
        else:
            leaves = list(_leaves(below))
            yield (
                label,
                "",
                "",
                f"{sum(leaf.elements for leaf in leaves):,}",
                f"{sum(leaf.bytes for leaf in leaves):,}",
                "",
            )
            yield from _rows(below, depth + 1)


def _leaves(node):
    for below in node.values():
        yield from [below] if isinstance(below, _Leaf) else _leaves(below)


def _line(row, widths) -> str:
    first, *others = row
    cells = [
        f"{first:<{widths[0]}}",
        *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:])),
    ]
    return "  ".join(cells).rstrip()
