"""Values of context variables inside a block: in this thread alone, since ranks may be threads.

def no_grad():
    return Scoped(_grad_enabled, False)

with no_grad(): ...                     or @no_grad() before a function
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any


class Scoped:
    """Inside, a variable has this value; also a decorator. contextlib would take twice as long."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar, value: Any):
        self._variable, self._value = variable, value

    def __enter__(self) -> Any:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *error: object) -> None:
        self._variable.reset(self._token)

    def __call__(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def inside(*args, **kwargs):
            with type(self)(self._variable, self._value):
                return function(*args, **kwargs)

        return inside


class Together:
    """Inside, all of these hold; each can be entered without an error."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: AbstractContextManager):
        self._parts = parts

    def __enter__(self) -> None:
        for part in self._parts:
            part.__enter__()

    def __exit__(self, *error: Any) -> None:
        for part in reversed(self._parts):
            part.__exit__(*error)
