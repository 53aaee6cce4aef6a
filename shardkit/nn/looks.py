"""How a module, a loss or a metric prints: what it was made with, and the modules inside of it.

Sequential(
  (0): Linear(in_features=4, out_features=8)
  (1-2): 2 x ReLU()
)
"""

import inspect
import re
from itertools import groupby
from typing import Any

import numpy

from ..array.dtypes import named_dtype
from .kept import Lost, Making, making_of
from .recorded import arguments_of

_MOST_LETTERS = 60  # of one argument
_UNTOLD = re.compile(" at 0x|object>")


def look_of(module: Any, children: dict[str, Any]) -> str:
    """Return the text of a module, and of the modules in it."""
    made_with = arguments_text(module)
    lines = []
    for text, same in groupby(children, key=lambda name: repr(children[name])):
        names = list(same)
        head = f"({names[0]}): "
        if len(names) > 1:
            head = f"({names[0]}-{names[-1]}): {len(names)} x "
        lines.append((head + text).replace("\n", "\n  "))
    inside = "".join(f"\n  {line}" for line in lines) + "\n" if lines else ""
    between = "," if made_with and lines else ""
    return f"{type(module).__name__}({made_with}{between}{inside})"


def arguments_text(made: Any) -> str:
    """Return "in_features=4, out_features=8": the arguments that are not their defaults."""
    arguments = arguments_of(making_of(made))
    parameters = inspect.signature(type(made)).parameters
    texts = []
    for name, value in arguments.items():
        default = getattr(parameters.get(name), "default", None)
        text = repr(named_dtype(value).name) if name == "dtype" else value_text(value)
        is_default = text == value_text(default) and default is not inspect.Parameter.empty
        if text is not None and not is_default:
            texts.append(f"{name}={text}")
    return ", ".join(texts)


def value_text(value: Any) -> str | None:
    """Return the text of an argument; None of one that is better left out."""
    if isinstance(value, (Making, Lost)):
        return None
    if isinstance(value, numpy.ndarray):
        return f"array{value.shape}"
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__name__
    text = repr(value)
    is_plain = len(text) <= _MOST_LETTERS and not _UNTOLD.search(text)
    return text if is_plain else None
