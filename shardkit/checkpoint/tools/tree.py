"""Print the tensors of a checkpoint as a tree of modules, with sizes.

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
    """Sort names with their numbers as numbers: blocks.2 before blocks.10."""
    return sorted(names, key=_natural_key)


def _natural_key(name: str) -> list:
    parts = re.split(r"(\d+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


def shape_text(shape) -> str:
    """Return a shape as text: 4x6, or scalar."""
    return "x".join(map(str, shape)) or "scalar"


def tensor_tree(tensors: dict[str, dict]) -> str:
    """Return the "tensors" entry of a manifest as aligned text.

    There is a line for each module with its sum, and one for each tensor.
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
        self.shape = entry["shape"]
        self.dtype = entry["dtype"]
        # Many files list their own boxes, and nobody opens them all for a page.
        self.boxes = f"{len(entry['boxes'])}" if "boxes" in entry else ""
        self.elements = prod(self.shape)
        self.bytes = self.elements * numpy.dtype(self.dtype).itemsize


def _rows(node: dict, depth: int):
    for name, below in node.items():
        # up.weight is one line, where up has no bias
        while not isinstance(below, _Leaf) and len(below) == 1 and name.endswith("."):
            ((only, below),) = below.items()
            name += only
        label = "  " * depth + name.rstrip("./")
        if isinstance(below, _Leaf):
            sizes = f"{below.elements:,}", f"{below.bytes:,}", below.boxes
            yield label, shape_text(below.shape), below.dtype, *sizes
        else:
            leaves = list(_leaves(below))
            num_elements = sum(leaf.elements for leaf in leaves)
            num_bytes = sum(leaf.bytes for leaf in leaves)
            yield label, "", "", f"{num_elements:,}", f"{num_bytes:,}", ""
            yield from _rows(below, depth + 1)


def _leaves(node):
    for below in node.values():
        yield from [below] if isinstance(below, _Leaf) else _leaves(below)


def _line(row, widths) -> str:
    first, *others = row
    cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:])]
    return "  ".join([f"{first:<{widths[0]}}", *cells]).rstrip()
