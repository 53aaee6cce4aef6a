"""The data that stands for values of Python in a description: what it lacks, and how it reads.

    {"$": "tuple", "of": [1, 2]}  -->  "(1, 2)"       {"$": "lost", "of": "a generator"}

What writes and reads it is checkpoint/values.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

KIND = "$"  # the key of data that is no list and no dict of its own
_SEQUENCES = ("tuple", "set", "frozenset", "complex", "range", "slice", "dict", "OrderedDict")


def lost_in(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (where, what) of what data does not hold: ("act", "the function ...")."""
    if isinstance(data, dict) and KIND in data:
        if data[KIND] == "lost":
            yield path, str(data["of"])
        elif data[KIND] == "large":
            yield path, f"an array {tuple(data['shape'])}, which is too large"
        else:
            yield from lost_in(data.get("of"), path)
    elif isinstance(data, dict):
        for name, entry in data.items():
            yield from lost_in(entry, f"{path}.{name}" if path else name)
    elif isinstance(data, list):
        for index, entry in enumerate(data):
            yield from lost_in(entry, f"{path}[{index}]")


def with_lists(data: Any) -> Any:
    """Return data with lists for tuples, as checkpoints of before have them."""
    if isinstance(data, dict):
        if data.get(KIND) == "tuple":
            return with_lists(data.get("of"))
        return {name: with_lists(inner) for name, inner in data.items()}
    return [with_lists(inner) for inner in data] if isinstance(data, (list, tuple)) else data


def with_defaults(data: Any, defaults: Callable[[str], dict[str, Any]]) -> Any:
    """Return data with the defaults of arguments that it lacks: what is made was described when its
    class had fewer.

    defaults   function (class) -> {argument: data}
    """
    if isinstance(data, list):
        return [with_defaults(inner, defaults) for inner in data]
    if not isinstance(data, dict):
        return data
    found = {name: with_defaults(inner, defaults) for name, inner in data.items()}
    if data.get(KIND) == "made":
        found["of"] = {**defaults(str(data.get("class"))), **found["of"]}
    return found


def differences(there: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (where, data there, data here) of the innermost that are not equal: ("[1].window", 4,
    None).
    """
    if isinstance(there, dict) and _names_in(there) == _names_in(here):
        for name in there:
            below = path if KIND in there else f"{path}.{name}" if path else name
            yield from differences(there[name], here[name], below)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for index, inner in enumerate(zip(there, here)):
            yield from differences(*inner, f"{path}[{index}]")
    elif there != here:
        yield path, there, here


def _names_in(data: Any) -> Any:
    """Return of what kind data is, and which names are in it; None where there are none."""
    return (data.get(KIND), data.keys()) if isinstance(data, dict) else None


def text_of(data: Any) -> str:
    """Return data as a person would write the value."""
    if not isinstance(data, (dict, list)):
        return repr(data)
    if isinstance(data, list):
        return f"[{', '.join(map(text_of, data))}]"
    if KIND not in data:
        return f"{{{', '.join(f'{name!r}: {text_of(entry)}' for name, entry in data.items())}}}"
    kind, content, cls = data[KIND], data.get("of"), str(data.get("class", "")).rpartition(":")[2]
    if kind in ("made", "object") and isinstance(content, dict):
        return f"{cls}({', '.join(f'{name}={text_of(e)}' for name, e in content.items())})"
    if kind in _SEQUENCES and isinstance(content, list):
        inner = ", ".join(map(text_of, content))
        return f"({inner})" if kind == "tuple" else f"{kind}({inner})"
    if kind == "array":
        return f"array {tuple(data.get('shape', ()))} of {data.get('dtype')}"
    return f"{cls}.{content}" if cls else str(content).rpartition(":")[2]
