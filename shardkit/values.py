"""dataclass: Python's own, whose methods are not compiled before they are used.

    from ..values import dataclass          instead of: from dataclasses import dataclass

Python before 3.13 compiles the text of six methods for each class, a millisecond in all, and a
start defines 130 classes, half of which it makes no object of. Here the first object of a class
compiles its __init__, and the other methods are functions that know the names of the fields.
Python's own functions for dataclasses take such a class for one of theirs, and a class of theirs
may inherit from it.
"""

import dataclasses
import threading
from collections.abc import Callable
from copy import copy
from functools import cache
from operator import attrgetter, ge, gt, le, lt
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_ABOUT = "__dataclass_params__"
_ORDER = {"__lt__": lt, "__le__": le, "__gt__": gt, "__ge__": ge}
_LOOKING = threading.Lock()  # while Python's own looks at the bases of a class
_LEFT_OUT = object()  # in the place of an argument whose default a function makes

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool):
        """Return the class as a dataclass, or for options alone a function that does.

        options   frozen, eq, order, slots, kw_only: as for Python's own
        """
        return _made(cls, **options) if cls is not None else lambda cls: _made(cls, **options)


def _made(
    cls: Any, *, frozen: bool = False, eq: bool = True, order: bool = False, **options: bool
) -> type:
    own = {name for name in vars(cls) if name != "__hash__" or vars(cls)[name] is not None}
    cls = _with_fields(cls, frozen, options)
    methods: dict[str, Any] = {"__init__": _LateInit(cls, frozen), "__repr__": _text}
    if eq:
        methods |= _comparisons(cls, order) | {"__hash__": _hash_of(cls) if frozen else None}
    if frozen:
        methods |= _refusals(cls)
    if frozen and options.get("slots"):
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    methods = {name: method for name, method in methods.items() if name not in own}
    for name, value in (methods | {_ABOUT: _about(frozen, eq, order)}).items():
        setattr(cls, name, value)
    return cls


def _with_fields(cls: type, frozen: bool, options: dict[str, bool]) -> type:
    """Return the class as Python's own makes it, with fields and without methods.

    It is told of nothing frozen: it would compile what refuses changes.
    """
    with _LOOKING:
        bases = [base for base in cls.__mro__[1:] if frozen and _ABOUT in vars(base)]
        abouts = [about for base in bases if (about := vars(base)[_ABOUT]).frozen]
        _say(abouts, frozen=False)
        try:
            return dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
        finally:
            _say(abouts, frozen=True)


def _say(abouts: list, *, frozen: bool) -> None:
    for about in abouts:
        about.frozen = frozen


def _about(frozen: bool, eq: bool, order: bool) -> Any:
    """Return what Python's own says of a class with these options."""
    return copy(vars(_example(frozen, eq, order))[_ABOUT])


@cache
def _example(frozen: bool, eq: bool, order: bool) -> type:
    return dataclasses.dataclass(frozen=frozen, eq=eq, order=order)(type("Example", (), {}))


# ---- the method that is compiled -----------------------------------------------------------------


class _LateInit:
    """The __init__ of a class until it is asked for: by the first object, or by who looks at it."""

    def __init__(self, cls: type, frozen: bool):
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Callable:
        if vars(self._cls)["__init__"] is self:
            setattr(self._cls, "__init__", _init_of(self._cls, self._frozen))
        return vars(self._cls)["__init__"].__get__(instance, owner)


def _init_of(cls: Any, frozen: bool) -> Callable:
    """Compile the __init__ of a class, as Python's own would."""
    fields = dataclasses.fields(cls)
    given = sorted((each for each in fields if each.init), key=lambda each: bool(each.kw_only))
    words = ["self", *map(_argument, given)]
    num_placed = sum(not each.kw_only for each in given)
    if num_placed < len(given):
        words.insert(1 + num_placed, "*")
    put = "_put(self, '{}', {})" if frozen else "self.{} = {}"
    lines = [put.format(each.name, text) for each in fields if (text := _value(each, cls))]
    lines += ["self.__post_init__()"] * hasattr(cls, "__post_init__")
    known: dict[str, Any] = {"_put": object.__setattr__, "_left_out": _LEFT_OUT}
    known |= {f"_default_{each.name}": each.default for each in fields}
    known |= {f"_make_{each.name}": each.default_factory for each in fields}
    exec(f"def __init__({', '.join(words)}):\n " + "\n ".join(lines or ["pass"]), known)
    made = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {each.name: each.type for each in given} | {"return": None}
    return made


def _argument(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return f"{field.name}=_default_{field.name}"
    return field.name if field.default_factory is dataclasses.MISSING else f"{field.name}=_left_out"


def _value(field: dataclasses.Field, cls: type) -> str:
    """Return what an object gets, as text; "" for nothing, if the class has it."""
    name = field.name
    if field.default_factory is not dataclasses.MISSING:
        return f"_make_{name}()" + f" if {name} is _left_out else {name}" * field.init
    if field.init:
        return name
    is_in_slot = "__slots__" in vars(cls) and field.default is not dataclasses.MISSING
    return f"_default_{name}" * is_in_slot


# ---- the methods that are not --------------------------------------------------------------------


@recursive_repr()
def _text(self: Any) -> str:
    shown = [each.name for each in dataclasses.fields(self) if each.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _comparisons(cls: Any, order: bool) -> dict[str, Any]:
    values_of = _values_of([each.name for each in dataclasses.fields(cls) if each.compare])

    def __eq__(self, other):
        return values_of(self) == values_of(other) if type(other) is type(self) else NotImplemented

    def ordering(answer):
        def compare(self, other):
            if type(other) is not type(self):
                return NotImplemented
            return answer(values_of(self), values_of(other))

        return compare

    return {"__eq__": __eq__, **{name: ordering(each) for name, each in _ORDER.items() if order}}


def _hash_of(cls: Any) -> Callable:
    def counts(field):
        return field.compare if field.hash is None else field.hash

    values_of = _values_of([each.name for each in dataclasses.fields(cls) if counts(each)])
    return lambda self: hash(values_of(self))


def _values_of(names: list[str]) -> Callable[[Any], tuple]:
    """Return a function (object) -> tuple of these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


def _refusals(cls: Any) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(cls)}

    def check(self, name, doing):
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {doing} field {name!r}")

    def __setattr__(self, name, value):
        check(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self, name):
        check(self, name, "delete")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restore(self: Any, state: list) -> None:
    for each, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, each.name, value)
