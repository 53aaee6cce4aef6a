"""The operators of a Tensor: what x + y, x @ y, x[i], x == y or float(x) mean.

Operations are functions on Tensors, and the operators of a Tensor are operations. So that neither
file imports the other, the class gets its operators here, when the package is imported.
"""

import operator
from collections.abc import Callable
from typing import Any

from ..array.backend import is_true
from ..errors import ShapeError
from .autograd import Tensor
from .ops.elementwise import add, compare, divide, multiply, negative, power, subtract
from .ops.functions import abs
from .ops.linear import matmul
from .ops.shape import getitem

BINARY = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": divide,
    "pow": power,
    "matmul": matmul,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")  # a Tensor of booleans, which takes no gradient
NUMBERS = {"float": float, "int": int, "complex": complex, "index": operator.index}


def _reflected(operation):
    """Return the method for a Tensor that stands to the right of the operator."""
    return lambda self, other: operation(other, self)


def _comparison(name):
    return lambda self, other: compare(name, self, other)


def _number(convert):
    """Return the method that converts the only element."""
    return lambda self: convert(self.item())


def _format(self, form: str) -> str:
    """Return the text of the only element in this form; without one, of the Tensor."""
    return format(self.item(), form) if form else str(self)


def _truth(self) -> bool:
    """Return the truth of the only element. Errors: ShapeError if there are more."""
    if self.size != 1:
        raise ShapeError(
            f"the truth of a tensor of shape {self.shape} is ambiguous; ask for that of any or of "
            "all of its elements: t.numpy().any(), t.numpy().all()"
        )
    return bool(self.item())


OTHERS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": _truth,
    "contains": lambda self, value: is_true((self == value).array.any()),
    "format": _format,
    "getitem": getitem,
    "iter": lambda self: (self[row] for row in range(len(self))),
    "len": lambda self: len(self.array),
    "neg": negative,
}

OPERATORS = {
    **BINARY,
    **{f"r{name}": _reflected(operation) for name, operation in BINARY.items()},
    **{name: _comparison(name) for name in COMPARISONS},
    **{name: _number(convert) for name, convert in NUMBERS.items()},
    **OTHERS,
}

for name, method in OPERATORS.items():
    setattr(Tensor, f"__{name}__", method)
