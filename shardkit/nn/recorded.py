"""What a module, a loss or a metric was made with: recorded when it is made, before __init__ runs.

    Net(32, act=gelu)   ->  Net.__new__ keeps  (32,), {"act": gelu}  ->  Net.__init__
    net.configuration() ->  {"width": 32, "act": gelu, "scale": 1.0}     defaults are in it

Arguments are kept as they were then (kept.py), since __init__ or the caller may change them.
"""

import inspect
from functools import lru_cache
from typing import Any

from .kept import ATOMS, MAKING, Lost, Making, kept_now

_NEW = object.__new__
_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def recorded(cls: Any) -> Any:
    """Let all things of this class know what they are made with, whatever __init__ does to it.

    A decorator, and no base class, so that the class is the first of its line.
    """
    cls.__new__ = staticmethod(_new)
    cls.__signature__ = _SignatureOfInit()
    return cls


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Make it, and keep the arguments."""
    make = _maker(cls)
    made = _NEW(cls) if make is None else make(cls, args, kwargs)
    for value in args:
        if type(value) not in ATOMS:
            args = tuple(map(kept_now, args))
            break
    for value in kwargs.values():
        if type(value) not in ATOMS:
            kwargs = {name: kept_now(value) for name, value in kwargs.items()}
            break
    if not ELSEWHERE.keys().isdisjoint(kwargs):
        _check_arguments(cls, kwargs)
    made.__dict__[MAKING] = args, kwargs
    return made


# {argument that PyTorch has and classes here may not have: what to write}
ELSEWHERE = {
    "device": 'device="cuda" of sk.ShardingConfiguration, for the whole run',
    "num_embeddings": "num_rows, the first argument",
    "embedding_dim": "width, the second argument",
    "normalized_shape": "width, the first argument",
    "padding_idx": "ops.where on its output, or ignore_index of the loss",
    "elementwise_affine": "ops.layer_norm of weights that are constants",
    "return_indices": "ops.argmax",
}


def _check_arguments(cls, kwargs):
    """Raise TypeError on an argument of PyTorch that the class lacks, with what to write."""
    parameters = inspect.signature(cls.__init__).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in ELSEWHERE.keys() & kwargs.keys() - parameters.keys():
        raise TypeError(
            f"{cls.__name__} has no argument {name!r}; here it is {ELSEWHERE[name]} "
            "(docs/porting.md)"
        )


@lru_cache(4096)
def _maker(cls: Any) -> Any:
    """Return the function (cls, args, kwargs) that makes an object of it; None: object.__new__."""
    behind = _new_behind(cls)
    if behind is not None:
        return lambda cls, args, kwargs: behind(cls, *args, **kwargs)
    return _made_without_arguments if cls.__init__ is object.__init__ else None


def _made_without_arguments(cls, args, kwargs):
    if args or kwargs:
        raise TypeError(f"{cls.__name__}() takes no arguments")
    return _NEW(cls)


def _new_behind(cls: type) -> Any:
    """Return the __new__ of another base that comes after this one; None if it has none."""
    news = [vars(each)["__new__"] for each in cls.__mro__ if "__new__" in vars(each)]
    after = next(index for index, new in enumerate(news) if is_recording(new)) + 1
    behind = next(each for each in news[after:] if not is_recording(each))
    return None if behind is vars(object)["__new__"] else getattr(behind, "__func__", behind)


def is_recording(new: Any) -> bool:
    """Return True for the __new__ that keeps arguments."""
    return getattr(new, "__func__", new) is _new


class _SignatureOfInit:
    """The signature of a class: that of its __init__, and not of the __new__ that records."""

    def __get__(self, made: Any, cls: Any) -> inspect.Signature:
        if made is not None:
            raise AttributeError("__signature__")
        if cls.__init__ is object.__init__:
            return inspect.Signature()
        signature = inspect.signature(cls.__init__)
        parameters = list(signature.parameters.values())
        is_self = parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
        return signature.replace(parameters=parameters[1:] if is_self else parameters)


def record(made: Any, args: tuple, kwargs: dict) -> None:
    """Keep these as the arguments that it was made with, in place of those that it was given.

    For a class that is given an iterator, which is empty once __init__ has read it.
    """
    kept = {name: kept_now(value) for name, value in kwargs.items()}
    made.__dict__[MAKING] = tuple(map(kept_now, args)), kept


def arguments_of(making: Making | Lost) -> dict[str, Any]:
    """Return {name: value} of all arguments, defaults too, in the order of the signature.

    "*blocks" has those of `*blocks`, and "**more" those of `**more`.
    """
    if isinstance(making, Lost):
        return {"*": making}
    cls: Any = making.of
    if not _is_made_plainly(cls):
        return {"*": Lost(f"what {cls.__qualname__} takes, which has a __new__ or metaclass")}
    if cls.__init__ is object.__init__:
        return {}
    try:
        signature = inspect.signature(cls.__init__, follow_wrapped=False)
        bound = signature.bind(None, *making.positional, **making.named)
    except (TypeError, ValueError):
        return {"*": Lost(f"what {cls.__qualname__} takes, whose signature is not known")}
    bound.apply_defaults()
    return {
        _STARS.get(parameter.kind, "") + name: kept_now(value)
        for name, parameter, value in _without_self(signature, bound)
    }


def plain_defaults(cls: Any) -> dict[str, Any]:
    """Return {name: default} of the arguments that a class can be made without, where that is plain
    data, or a tuple.
    """
    try:
        parameters = inspect.signature(cls.__init__, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return {}
    plain = *ATOMS, tuple
    found = {}
    for name, parameter in parameters.items():
        default = parameter.default
        if default is not parameter.empty and type(default) in plain:
            found[name] = default
    return found


def _without_self(signature, bound):
    """Yield (name, parameter, value) of what comes after the first argument."""
    for index, (name, parameter) in enumerate(signature.parameters.items()):
        value = bound.arguments[name]
        if index or parameter.kind is parameter.KEYWORD_ONLY:
            yield name, parameter, value
        elif parameter.kind is parameter.VAR_POSITIONAL:
            yield name, parameter, value[1:]


def _is_made_plainly(cls: Any) -> bool:
    """Return True if what a call of the class is given is what __new__ and __init__ are given."""
    return is_recording(cls.__new__) and type(cls).__call__ is type.__call__
