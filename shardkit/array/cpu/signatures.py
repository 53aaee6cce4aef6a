"""What a loop is called with, as text: machine code is kept and found by it.

float32[2]          array of two dimensions, C-contiguous, writable; read-only: float32[2]!
bytes               array of one dimension and any dtype, as its bytes; bytes!: it may be read-only;
                    only where code is asked for by its signature (Loop.entry_for)
int64, bool, ...    number; those of Python are int64, float64 and bool
(int64, float32[1]) tuple;    module:Name(...)  a named one
"""

import importlib

import numpy

BYTES, READ_ONLY_BYTES = "bytes", "bytes!"
_NUMBERS = {bool: "bool", int: "int64", float: "float64"}


class Unknown(TypeError):
    """A loop was called with something that is not made for."""


def signature_of(arguments) -> tuple[str, ...]:
    """Return the signature of a call with these arguments.

    Errors: Unknown names an argument that no loop takes.
    """
    return tuple(map(_text_of, arguments))


def _text_of(argument) -> str:
    kind = type(argument)
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if isinstance(argument, numpy.ndarray):
        return _array_text(argument)
    if isinstance(argument, numpy.generic):
        return argument.dtype.name
    if isinstance(argument, tuple):
        name = "" if kind is tuple else f"{kind.__module__}:{kind.__qualname__}"
        return f"{name}({', '.join(map(_text_of, argument))})"
    raise Unknown(f"a compiled loop takes arrays, numbers and tuples of these; got {kind.__name__}")


def _array_text(array) -> str:
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and array.dtype.isnative):
        raise Unknown(
            f"a compiled loop takes C-contiguous arrays in the byte order of the machine; got "
            f"{array.dtype} [{', '.join(map(str, array.shape))}] with strides {array.strides}"
        )
    return f"{array.dtype.name}[{array.ndim}]{'' if flags.writeable else '!'}"


def parts_of(text: str) -> tuple[str, list[str]] | None:
    """Return the name of a tuple's class, "" for a plain one, and what is in it; None: no tuple."""
    name, opening, inside = text.partition("(")
    if not opening:
        return None
    parts, depth, start = [], 0, 0
    inside = inside[:-1]
    for place, char in enumerate(inside):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(inside[start:place].strip())
            start = place + 1
    return name, [*parts, inside[start:].strip()] if inside else []


def class_named(name: str):
    """Return the class of a named tuple, module:Name."""
    module, _, qualname = name.partition(":")
    return getattr(importlib.import_module(module), qualname)
