"""What a message between stages holds: the structure of a tree, and shape and dtype of each leaf.

{"state": a, "ids": b}   Form   {state: *, ids: *}   (8, 64) float32, (8,) int64
                         forward messages   a, b          one for each leaf
                         backward messages  a's gradient  those of floating point alone
"""

import pickle
from functools import cached_property

import numpy

from ...array.dtypes import is_floating
from ...errors import ShapeError
from ...tree import LEAF, Structure, is_tree, leaves, rebuild, structure

NOTHING = (0,) * 5  # the shape of what a stage sends that failed before it knew one


class Form:
    """A tree without its numbers, equal by value.

    layout   (shape, dtype) of each leaf
    """

    def __init__(self, structure: Structure, layout: tuple):
        self.structure = structure
        self.layout = layout

    @classmethod
    def of(cls, tree) -> "Form":
        """Return the form of an array, or of a tree of arrays."""
        if not is_tree(tree):
            return cls(LEAF, ((tree.shape, tree.dtype),))
        return cls(structure(tree), tuple([(leaf.shape, leaf.dtype) for leaf in leaves(tree)]))

    def __eq__(self, other):
        return (
            isinstance(other, Form)
            and self.layout == other.layout
            and self.structure == other.structure
        )

    def __hash__(self):
        return hash((self.structure, self.layout))

    def __str__(self):
        text = ", ".join(f"{shape} {dtype}" for shape, dtype in self.layout)
        return text if self.is_array else f"{self.structure} of {text}"

    @property
    def is_array(self) -> bool:
        """True for one array."""
        return self.structure.kind is None

    @property
    def is_nothing(self) -> bool:
        """True for what a stage sends that failed before it knew what it makes."""
        return self.is_array and self.layout[0][0] == NOTHING

    @cached_property
    def gradients(self) -> tuple:
        """(shape, dtype) of the leaves that have gradients, in order."""
        return tuple([(shape, dtype) for shape, dtype in self.layout if is_floating(dtype)])

    def filled(self, arrays: list):
        """Return the array or tree of these leaves."""
        return arrays[0] if self.is_array else rebuild(self.structure, arrays)

    def gradient_of(self, arrays: list):
        """Return the gradient of it: an array, or a list with None for leaves that have none."""
        given = iter(arrays)
        parts = [next(given) if is_floating(dtype) else None for _, dtype in self.layout]
        return parts[0] if self.is_array else parts

    def packed(self) -> numpy.ndarray:
        """Return what unpacked() makes this of, as bytes.

        Errors: ShapeError if a class in it is known by no name of a module.
        """
        try:
            return numpy.frombuffer(pickle.dumps((self.structure, self.layout)), numpy.uint8)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ShapeError(
                f"the tree {self.structure} cannot be described to other ranks: {error}; define "
                "its classes at the top of a module"
            ) from None

    @classmethod
    def unpacked(cls, content) -> "Form":
        """Return the form that was packed into these bytes."""
        return cls(*pickle.loads(content.tobytes()))


def key_of(x):
    """Return what tells inputs of different forms apart: the shape of an array, a tree's Form."""
    return Form.of(x) if is_tree(x) else x.shape


def parts_of(carried) -> list:
    """Return the arrays that are sent of an activation or a gradient, which has None where there
    is nothing to send.
    """
    if not is_tree(carried):
        return [carried]
    return [part for part in leaves(carried) if part is not None]
