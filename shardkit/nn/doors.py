"""The doors of operations and modules: what users type becomes Tensors there, once.

    ops.relu([-1.0, 2.0])    ops.sqrt(numpy.arange(3))    x.sum(axis=1)    nn.Linear(4, 2)(numbers)

An operation of `ops` is the function of its file behind a door; files of this package call that
function itself. A door makes Tensors of what stands where a Tensor is wanted, floats of integers
where PyTorch does, and knows NumPy's names of arguments. The first module that is called makes
Tensors of the arrays that it is given, of the dtype of its parameters, as predict() does
(given_tensors of trees.py).
"""

import inspect
from functools import wraps
from typing import Any

from ..array.dtypes import FLOAT32
from ..tree import holds_numbers
from .autograd import Tensor, is_numbers

# Functions whose values of whole numbers are no whole numbers: PyTorch computes them in float32.
OF_INTEGERS = frozenset(
    "arctan cos erf exp expm1 log log1p rsqrt reciprocal sigmoid sin sqrt tan tanh".split()
)
# Names of arguments in NumPy, and one of PyTorch's that is True or False for 1 or 0.
_ELSEWHERE = {"axis": "dim", "keepdims": "keepdim", "ddof": "correction", "unbiased": "correction"}
_MOST_OPERANDS = 64
COUNTED = "biu"  # kinds of dtypes, as in ops/operands.py


def door(room: str, function: Any) -> Any:
    """Return a function of the room that makes Tensors of its arguments first; anything else, and a
    function that wants none and knows no dim, as it is.
    """
    if not inspect.isfunction(function):
        return function
    parameters = inspect.signature(function).parameters
    takes = (Tensor, Tensor | None)
    wanted = [pair for pair in enumerate(parameters.values()) if pair[1].annotation in takes]
    if not wanted and "dim" not in parameters:
        return function
    names = {each.name for _, each in wanted}
    places = {at for at, _ in wanted}
    for at, ending in wanted[-1:]:
        if ending.kind is ending.VAR_POSITIONAL:  # as of einsum
            places |= set(range(at, _MOST_OPERANDS))
    floats = function.__name__ in OF_INTEGERS

    def operation(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = dict(_meant(name, each, parameters) for name, each in kwargs.items())
            kwargs.pop("", None)
            kwargs |= {name: as_tensor(kwargs[name]) for name in names & kwargs.keys()}
        for at, value in enumerate(args):
            if at in places and not isinstance(value, Tensor):
                args = _with_tensors(args, places)
                break
        if floats and args and args[0].dtype.kind in COUNTED:
            args = Tensor(args[0].array.astype(FLOAT32)), *args[1:]
        return function(*args, **kwargs)

    wraps(function)(operation)
    operation.__module__ = room  # where its name finds it
    return operation


def _with_tensors(args, places):
    made = list(args)
    for at in places & set(range(len(args))):
        made[at] = as_tensor(args[at])
    return tuple(made)


def _meant(name, value, parameters):
    """Return (name, value) of an argument here; ("", None) of one of NumPy's that asks nothing."""
    if name in parameters:
        return name, value
    if name in ("dtype", "out") and value is None:
        return "", None
    here = _ELSEWHERE.get(name, name)
    return (here, value) if here in parameters else (name, value)


def as_tensor(value: Any) -> Any:
    """Return an array, a number or lists of numbers as a Tensor; anything else as it is."""
    if isinstance(value, Tensor):
        return value  # itself, which gradients go to
    is_plain = isinstance(value, (bool, int, float)) or holds_numbers(value)
    return Tensor(value) if is_plain or is_numbers(value) else value
