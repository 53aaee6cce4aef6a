"""Trees of arrays: what a model may take, pass between its blocks, predict and be judged by.

    {"grid": a, "time": (b, c)}   leaves      [a, b, c]
                                  structure   {grid: *, time: (*, *)}

A tree is an array (or Tensor), or a tuple, named tuple, list, dict or dataclass instance of trees;
None is a tree without leaves; what converts to an array, such as one of Zarr, is a leaf. Leaves
stand in the order in which they are written: that of the keys of a dict, of the fields of a class.
Structures are equal by value and can be pickled, so a rank can tell another what a message holds.
Nothing here knows what an array is.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Number
from typing import Any

from .errors import ShapeError

_SEQUENCES = (tuple, list)


@dataclass(frozen=True)
class Structure:
    """A tree without its leaves.

    kind      tuple, list, dict, a class of named tuples, a dataclass, the class of None; None for a
              leaf
    names     keys or fields, where the kind has names
    children  what stands below, in order
    """

    kind: type | None
    names: tuple[str, ...] = ()
    children: tuple["Structure", ...] = ()

    @cached_property
    def num_leaves(self) -> int:
        """How many leaves a tree of this structure has."""
        return 1 if self.kind is None else sum(child.num_leaves for child in self.children)

    def __str__(self):
        if self.kind is None:
            return "*"
        if self.kind is type(None):
            return "None"
        if self.kind is dict:
            return f"{{{', '.join(f'{n}: {c}' for n, c in zip(self.names, self.children))}}}"
        if self.names:
            pairs = ", ".join(f"{n}={c}" for n, c in zip(self.names, self.children))
            return f"{self.kind.__module__}.{self.kind.__qualname__}({pairs})"
        inside = ", ".join(map(str, self.children))
        if self.kind is list:
            return f"[{inside}]"
        return f"({inside}{',' * (len(self.children) == 1)})"


LEAF = Structure(None)


def is_tree(value) -> bool:
    """Return True for a container of arrays, and for None; False for one array.

    Lists and tuples of numbers alone are one array, as NumPy takes them.
    Errors: ShapeError on a set, or a dict whose keys are no strings.
    """
    return _opened(value) is not None and not holds_numbers(value)


def leaves(tree) -> list:
    """Return the leaves of a tree, in order; [tree] of one array. Errors: as is_tree."""
    opened = _opened(tree)
    if opened is None:
        return [tree]
    found = []
    for part in opened[2]:
        found += leaves(part)
    return found


def named_leaves(tree, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (where it stands, leaf): ("x.grid", array), ("x.parts[0]", array)."""
    opened = _opened(tree)
    if opened is None:
        yield name, tree
        return
    _, names, parts = opened
    for number, part in enumerate(parts):
        yield from named_leaves(part, f"{name}.{names[number]}" if names else f"{name}[{number}]")


def structure(tree) -> Structure:
    """Return the tree without its leaves. Errors: as is_tree."""
    opened = _opened(tree)
    if opened is None:
        return LEAF
    kind, names, parts = opened
    return Structure(kind, names, tuple([structure(part) for part in parts]))


def rebuild(structure: Structure, leaves: Iterable):
    """Return the tree of this structure with these leaves, in order.

    Instances of dataclasses are made without their __init__, since a leaf may be anything: an
    array, a Tensor, a gradient. Errors: ValueError on another number of leaves.
    """
    leaves = list(leaves)
    if len(leaves) != structure.num_leaves:
        raise ValueError(f"{len(leaves)} leaves for {structure}, which has {structure.num_leaves}")
    return _rebuilt(structure, iter(leaves))


def map_tree(function: Callable, tree, *others):
    """Return a tree of function(leaf, leaves of the others at its place).

    Errors: ShapeError if the others have another structure; what the function raises.
    """
    if not others and _opened(tree) is None:
        return function(tree)
    form = structure(tree)
    for other in others:
        if structure(other) != form:
            raise ShapeError(f"a tree {structure(other)} beside one {form}; wanted equal trees")
    return rebuild(form, map(function, leaves(tree), *map(leaves, others)))


def num_samples(tree) -> int:
    """Return the length of the first leaf: that of each, once the tree has been checked."""
    return len(leaves(tree)[0] if is_tree(tree) else tree)


def rows(tree, index):
    """Return the tree of leaf[index]: a slice of the samples, or the samples of these numbers."""
    return map_tree(lambda leaf: leaf[index], tree)


def _opened(tree) -> tuple | None:
    """Return (kind, names, values) of what stands in a container; None for a leaf."""
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise ShapeError(f"a dict of arrays with keys {list(tree)!r:.60}; wanted strings")
        return dict, tuple(tree), tree.values()
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", ())
        return type(tree) if names else tuple, names, tree
    if isinstance(tree, list):
        return list, (), tree
    if tree is None:
        return type(None), (), ()
    if isinstance(tree, (set, frozenset)):
        raise ShapeError(
            f"a {type(tree).__name__} of arrays, which has no order; wanted a tuple, list, dict or "
            "dataclass of them"
        )
    if hasattr(type(tree), "__dataclass_fields__") and not hasattr(type(tree), "__array__"):
        names = tuple([field.name for field in fields(tree)])
        return type(tree), names, [getattr(tree, name) for name in names]
    return None


def holds_numbers(value) -> bool:
    """Return True for a list or tuple, nested or not, whose first element is a number or text."""
    if not isinstance(value, _SEQUENCES) or hasattr(value, "_fields"):
        return False
    while isinstance(value, _SEQUENCES):
        if not value:
            return True
        value = value[0]
    return isinstance(value, (Number, str, bytes))


def _rebuilt(structure: Structure, leaves: Iterator):
    kind = structure.kind
    if kind is None:
        return next(leaves)
    if kind is type(None):
        return None
    parts = [_rebuilt(child, leaves) for child in structure.children]
    if kind is dict:
        return dict(zip(structure.names, parts))
    if not structure.names:
        return kind(parts)
    if issubclass(kind, tuple):
        return kind(*parts)
    made = object.__new__(kind)
    for name, part in zip(structure.names, parts):
        object.__setattr__(made, name, part)
    return made
