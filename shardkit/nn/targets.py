"""Which targets count, in losses and in metrics."""

from math import prod
from typing import Any

from .autograd import array_of

IGNORED = -100  # the target that does not count, as in torch.nn.CrossEntropyLoss


def is_ignored(y, ignore_index: int | None):
    """Return which elements of an array y do not count: booleans of its shape."""
    return y == ignore_index if ignore_index is not None else y != y


def num_counted(y: Any, ignore_index: int | None) -> int:
    """Return how many elements of y count."""
    y = array_of(y)
    return prod(y.shape) if ignore_index is None else int((y != ignore_index).sum())
