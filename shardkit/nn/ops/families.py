"""Families of operations: one on signals, one on images and one on volumes, from one definition."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def of_dims(
    operation: Callable[Concatenate[int, Arguments], Result],
) -> tuple[Callable[Arguments, Result], Callable[Arguments, Result], Callable[Arguments, Result]]:
    """Return an operation for grids of 1, 2 and 3 dimensions: its first argument is which.

    The three are called as the operation, with 1d, 2d and 3d behind.
    """

    def with_dims(num_dims: int) -> Callable[Arguments, Result]:
        @wraps(operation)
        def of_this_many(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return operation(num_dims, *args, **kwargs)

        whole = inspect.signature(operation)
        rest = list(whole.parameters.values())[1:]
        of_this_many.__signature__ = whole.replace(parameters=rest)  # type: ignore[attr-defined]
        of_this_many.__name__ = operation.__name__.lstrip("_") + f"{num_dims}d"
        of_this_many.__qualname__ = of_this_many.__name__
        return of_this_many

    return with_dims(1), with_dims(2), with_dims(3)
