"""Trees of Tensors: what a block takes and returns where it is not one array.

    x {grid, time}  --as_tensors-->  Tensors  --blocks-->  (state, skip)  --arrays_of-->  arrays
    gradients of the leaves of x  <--gradients_of--  Tensors  <--backward_through--  [array or None]

A leaf of floating point takes a gradient, and has one of zeros if nothing used it, so that it does
not depend on where a chain of blocks is cut what is added to what. Other leaves take none.
"""

from typing import Any

import numpy

from ..array import fresh, halves
from ..array.backend import is_device_array, plain_array, xp_of
from ..array.dtypes import is_floating
from ..errors import AutogradError
from ..tree import holds_numbers, is_tree, leaves, map_tree, structure
from .autograd import (
    Tensor,
    WeightGradients,
    array_of,
    first_gradient,
    is_numbers,
    origin_of,
)
from .tape import walk


def given_arrays(x):
    """Return what a caller passes (arrays, Tensors, lists of numbers, or a tree) as arrays."""

    def array(leaf):
        leaf = array_of(leaf)
        return leaf if is_device_array(leaf) else plain_array(leaf)

    return map_tree(array, x) if is_tree(x) else array(x)


def entering(x, dtype):
    """Return the arrays of x as a model of this dtype takes them: floating numbers are cast to it,
    once; integers and bool stay what they are.
    """

    def cast(array):
        is_fine = array.dtype == dtype or not is_floating(array.dtype)
        return array if is_fine else halves.copy(array, dtype)

    return map_tree(cast, x)


def given_tensors(args: tuple, kwargs: dict, dtype: Any) -> tuple[tuple, dict]:
    """Return the arguments of a module: arrays, and a list of numbers that comes first, are
    Tensors, floating ones of this dtype (None: of their own).
    """

    def entered(value, is_first=False):
        is_list = is_first and isinstance(value, list) and holds_numbers(value)
        if isinstance(value, Tensor) or not (is_list or is_numbers(value)):
            return value
        tensor = Tensor(value)
        return tensor if dtype is None else Tensor(entering(tensor.array, dtype))

    made = [entered(value, at == 0) for at, value in enumerate(args)]
    return tuple(made), {name: entered(value) for name, value in kwargs.items()}


def as_tensors(x: Any, *, takes_gradient: bool = False) -> Any:
    """Return x, an array or a tree of arrays, as Tensors that are leaves of a tape.

    Parameters
    ----------
    takes_gradient
        Those of floating point do.
    """

    def tensor(array):
        return Tensor(array, requires_grad=takes_gradient and is_floating(array.dtype))

    return map_tree(tensor, x) if is_tree(x) else tensor(x)


def check_output(output: Any) -> None:
    """Raise TypeError unless a block returned a Tensor, or a tree of Tensors and arrays."""
    if isinstance(output, Tensor):
        return
    for leaf in leaves(output) or [output]:
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            inside = f", in {structure(output)}" if is_tree(output) else ""
            raise TypeError(
                f"a block returned a {type(leaf).__name__}{inside}; wanted a Tensor, or a tuple, "
                "list, dict or dataclass of Tensors and arrays"
            )


def arrays_of(output):
    """Return the arrays of what blocks returned: a Tensor, or a tree of Tensors and arrays.

    Errors: TypeError on anything else, and on a parameter, whose memory is not the block's to give.
    """
    check_output(output)
    return output.array if isinstance(output, Tensor) else map_tree(_array_of, output)


def _array_of(leaf):
    if isinstance(leaf, Tensor):
        if leaf.is_parameter:
            raise TypeError(
                f"a block returned its parameter {leaf.name}, which is released after the block; "
                "return what is computed with it"
            )
        return leaf.array
    if isinstance(leaf, numpy.generic):
        return numpy.asarray(leaf)
    return leaf


def backward_through(output, gradient) -> WeightGradients:
    """Run the backward for all leaves but the parameters (see backward_inputs).

    output     a tree of Tensors and arrays
    gradient   a list, with None for each leaf that has none
    Errors: AutogradError if no gradient flows into any leaf.
    """
    roots = [
        (leaf, part)
        for leaf, part in zip(leaves(output), gradient, strict=True)
        if part is not None and isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if not roots:
        raise AutogradError(
            f"backward through the outputs {structure(output)} of a block, but no gradient flows "
            "into any of them; was one made of arrays instead of Tensors?"
        )
    deferred: list[Any] = []
    first = [first_gradient(leaf, part) for leaf, part in roots]
    walk([origin_of(leaf) for leaf, _ in roots], first, deferred=deferred)
    return WeightGradients(deferred)


def gradients_of(inputs):
    """Return the gradient of each leaf that takes one, None for the others; of a tree a list."""
    if isinstance(inputs, Tensor):
        return _gradient_of(inputs)
    return [_gradient_of(leaf) for leaf in leaves(inputs)]


def _gradient_of(leaf):
    if leaf.grad is None and leaf.requires_grad:
        return fresh.zeros(leaf.shape, leaf.dtype, xp_of(leaf.array))
    return leaf.grad


def as_float64(tree):
    """Return floats, of an array or a tree of arrays, as float64: a loss of them is the same, to
    rounding of the predictions alone, for any division into batches.
    """
    return map_tree(lambda leaf: leaf.astype("float64") if leaf.dtype.kind == "f" else leaf, tree)
