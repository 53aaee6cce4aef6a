"""Values as they are now: what nobody changes later, however lists and objects change.

[1, 2], {"a": ...}, arrays, plain objects     a copy
nn.Linear(8, 1)                               what it was made with, and not its weights
numbers, words, functions with a name         themselves
a lambda, an open file, a generator           a Lost, which says what it was
"""

import sys
from argparse import Namespace
from collections import OrderedDict
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    ModuleType,
    NoneType,
    NotImplementedType,
    SimpleNamespace,
)
from typing import Any

import numpy

from .autograd import Tensor

MAKING = "_making"  # the attribute in which a thing keeps what it was made with
MOST_BYTES = 1 << 20  # of an array that is kept
_MOST_PARTS = 10_000  # of an argument: containers and objects in it
_NAMESPACES = (Namespace, SimpleNamespace)  # objects of the standard library that are plain
_HEAP_TYPE = 1 << 9  # a class that was written in Python
ATOMS = frozenset(
    (bool, int, float, complex, str, bytes, NoneType, range, slice, EllipsisType)
    + (NotImplementedType, BuiltinFunctionType, type)
)


class Lost:
    """What cannot be stored, in words without addresses.

    what    such as "a generator"
    holds   what tells it from others of the kind, such as what a function closes over
    """

    __slots__ = ("what", "holds")

    def __init__(self, what: str, holds: Any = None) -> None:
        self.what, self.holds = what, holds

    def __repr__(self) -> str:
        return f"<{self.what}>"


class Making:
    """How one thing was made: its class, and the arguments; one for each thing, told by identity.

    of                  the class
    positional, named   the arguments as they were given; immutable
    """

    __slots__ = ("of", "positional", "named")

    def __init__(self, of: type, positional: tuple, named: Any) -> None:
        self.of, self.positional, self.named = of, positional, named

    def __deepcopy__(self, memo: dict[int, Any]) -> "Making":
        """Return another one: a copied module is another module."""
        return Making(self.of, self.positional, self.named)

    def __reduce__(self) -> tuple:
        return Making, (self.of, self.positional, dict(self.named))


def is_made(value: Any) -> bool:
    """Return True for what knows what it was made with."""
    return not isinstance(value, type) and MAKING in getattr(value, "__dict__", ())


def making_of(made: Any) -> Making | Lost:
    """Return how it was made; a Lost if its class does not let that be seen."""
    making, cls = made.__dict__.get(MAKING), type(made)
    if making is None:
        return Lost(f"a {cls.__qualname__} whose making was not seen")
    if type(making) is tuple:  # nobody has asked yet
        making = made.__dict__[MAKING] = Making(cls, *making)
    return making if making.of is cls else Making(cls, making.positional, making.named)


def kept_now(value: Any) -> Any:
    """Return the value as it is now, which nobody changes; what cannot be kept is Lost."""
    if type(value) in ATOMS:
        return value
    if is_made(value):
        return making_of(value)
    cls: Any = type(value)
    if is_final(cls):
        return value
    try:
        return _Keeper().kept(value)
    except RecursionError:
        return Lost(f"a {type(value).__qualname__} that is nested too deep")


class _Keeper:
    """Copies one argument. A part that is met again is the same part of the copy."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # the value itself too: ids stay its own

    def kept(self, value: Any) -> Any:
        """Return the value as it is now."""
        cls: Any = type(value)
        if cls in ATOMS:
            return value
        if cls is FunctionType:
            return value if is_named(value) else lost_function(value)
        if is_made(value):
            return making_of(value)
        if is_final(cls):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        if len(self._copies) >= _MOST_PARTS:
            return Lost(f"a {cls.__qualname__} of more than {_MOST_PARTS} parts")
        if cls is numpy.ndarray:
            is_kept = value.nbytes <= MOST_BYTES and value.dtype.kind in "biufcSUmM"
            return value.copy() if is_kept else lost_array(value)
        return self._copied(value, cls)

    def _copied(self, value, cls):
        if cls in (list, set, frozenset, tuple):
            if ATOMS.issuperset(map(type, value)):
                return cls(value)
            self._copies[id(value)] = value, Lost("a part of itself")
            return self._note(value, cls(map(self.kept, value)))
        if cls in (dict, OrderedDict, MappingProxyType):
            copied: dict = {} if cls is MappingProxyType else cls()
            self._note(value, copied)
            copied.update((self.kept(key), self.kept(entry)) for key, entry in value.items())
            return copied
        if cls is partial:
            return self._copied_partial(value)
        if is_named_tuple(cls):
            return tuple.__new__(cls, map(self.kept, value))
        state = state_of(value)
        if state is None:
            return Lost(f"a {cls.__module__}.{cls.__qualname__}")
        copied = cls.__new__(cls)
        self._note(value, copied)
        for name, entry in state.items():
            object.__setattr__(copied, name, self.kept(entry))
        return copied

    def _copied_partial(self, value):
        function = self.kept(value.func)
        if isinstance(function, Lost):
            return function
        keywords = {name: self.kept(entry) for name, entry in value.keywords.items()}
        return partial(function, *map(self.kept, value.args), **keywords)

    def _note(self, value, copied):
        self._copies[id(value)] = value, copied
        return copied


@lru_cache(1024)
def is_final(cls: Any) -> bool:
    """Return True if what is of this class does not change, or stands for itself."""
    own = (Tensor, Enum, type, ModuleType, PurePath, numpy.generic, numpy.ufunc, numpy.dtype)
    if issubclass(cls, (*own, Making, Lost)):
        return True
    parameters = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def is_named_tuple(cls: type) -> bool:
    """Return True for a class of named tuples."""
    return issubclass(cls, tuple) and cls is not tuple and hasattr(cls, "_fields")


def state_of(value: Any) -> dict[str, Any] | None:
    """Return {attribute: value} of a plain object, which these say whole; None of any other.

    An object is plain if its class was written in Python, outside of the standard library, and does
    not say how to copy it. Objects of this package are plain if they are dataclasses.
    """
    cls: Any = type(value)
    if cls in _NAMESPACES:
        return dict(vars(value))
    if not is_plain(cls):
        return None
    state = dict(getattr(value, "__dict__", {}))
    if is_dataclass(cls):
        own = [field.name for field in fields(cls) if hasattr(value, field.name)]
        state |= {name: getattr(value, name) for name in own}
    return state


@lru_cache(1024)
def is_plain(cls: Any) -> bool:
    """Return True if object.__new__ and its attributes make another one like an object of it."""
    top = cls.__module__.partition(".")[0]
    if not cls.__flags__ & _HEAP_TYPE or cls.__new__ is not object.__new__:
        return False
    if top in sys.stdlib_module_names - {"__main__"}:
        return False
    if is_dataclass(cls):
        return True
    is_ours = top == __name__.partition(".")[0]
    says_how = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getattr__")
    return not is_ours and not any(
        name in vars(each) or "__slots__" in vars(each)
        for each in cls.__mro__[:-1]
        for name in says_how
    )


# ---- what names find again -----------------------------------------------------------------------


def name_of(thing: Any) -> str | None:
    """Return "module:name" under which a function or class is found again; None if it is not."""
    module = getattr(thing, "__module__", None) or "numpy"  # an ufunc does not say
    names = (getattr(thing, "__qualname__", None) or thing.__name__).split(".")
    found: Any = sys.modules.get(module)
    for name in names:
        found = vars(found).get(name) if isinstance(found, (ModuleType, type)) else None
    if found is thing or isinstance(found, staticmethod) and found.__func__ is thing:
        return f"{module}:{'.'.join(names)}"
    held = vars(sys.modules[module]) if module in sys.modules else {}
    return next((f"{module}:{name}" for name, other in held.items() if other is thing), None)


def is_named(function: FunctionType) -> bool:
    """Return True if a name finds this function; one of a module that is being imported may."""
    return "<" not in function.__qualname__ or name_of(function) is not None


def lost_function(function: FunctionType) -> Lost:
    """Return what is said of a function that no name finds, with the values that it closes over."""
    name = f"{function.__module__}.{function.__qualname__}"
    held = [*map(_content, function.__closure__ or ()), *(function.__defaults__ or ())]
    known = [value for value in held if type(value) in ATOMS]
    return Lost(f"the function {name}, which its module does not name", known)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def lost_array(array: Any) -> Lost:
    """Return what is said of an array that is too large to be stored beside the weights."""
    return Lost(
        f"an array {array.shape} of {array.dtype}, which is no number of at most {MOST_BYTES} bytes"
    )
