"""Tables of TOML files as frozen dataclasses: each key known, each value within its limits."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path

from ..arguments import is_among, is_integer, is_number, nearest
from ..errors import ConfigurationError, InputError
from ..files.reading import read_toml
from ..settings import value_text

Limit = tuple[Callable, str]  # what holds for a value, and in words

COUNT: Limit = partial(is_integer, at_least=1), "an integer, at least 1"


def _is_fraction(value) -> bool:
    return is_number(value, above=0) and value <= 1


ABOVE_0: Limit = partial(is_number, above=0), "a finite number above 0"
FRACTION: Limit = _is_fraction, "a fraction above 0, at most 1"
_AT_LEAST_0: Limit = partial(is_number, at_least=0), "a finite number, at least 0"
_OF_KIND: dict[object, Limit] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: isinstance(value, str), "a text"),
    **dict.fromkeys((int, float), _AT_LEAST_0),
}


def list_of(holds: Callable, values) -> bool:
    """Return whether this is a list with something in it, for all of which it holds."""
    return isinstance(values, (list, tuple)) and bool(values) and all(map(holds, values))


def names_from(known) -> Limit:
    """Return the limit of a list of these names."""
    names = tuple(known)
    return partial(list_of, partial(is_among, names=names)), f"a list of {', '.join(names)}"


def tables_of(name, folder: Path, what: str) -> tuple[dict, Path]:
    """Return the tables of this file, or of the one of this name in the folder, and where it is.

    Errors: InputError, with the names that there are.
    """
    path = Path(name) if Path(name).suffix == ".toml" else folder / f"{name}.toml"
    try:
        return read_toml(path), path
    except OSError as error:
        raise InputError(
            f"cannot read {what} {path}: {error.strerror}; those that come with shardkit are "
            f"{', '.join(names_in(folder))}",
            path,
        ) from None


def names_in(folder: Path) -> list[str]:
    """Return the names of the files that come with shardkit."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def with_like(table: dict, folder: Path, where: str, part: str = "") -> dict:
    """Return the table; what it lacks is that of `like`, a file of the folder, or a part of it."""
    own = dict(table)
    like = own.pop("like", None)
    if like is None:
        return own
    known = names_in(folder)
    if not is_among(like, known):
        raise ConfigurationError(f"{where}: like = {like!r}; wanted one of {', '.join(known)}")
    other = read_toml(folder / f"{like}.toml")
    return {**with_like(other[part] if part else other, folder, like, part), **own}


def tuples(table: dict) -> dict:
    """Return the table with tuples for its lists, which can be hashed."""
    lists = {key: tuple(each) for key, each in table.items() if isinstance(each, list)}
    return {**table, **lists}


def made(kind, values: dict, where: str, limits: dict[str, Limit]):
    """Return kind(**values).

    limits   {key: its own; all others go by the type of the field}
    Errors: ConfigurationError on a key that is unknown or missing, or a value outside its limits.
    """
    known = {f.name: f for f in fields(kind) if f.init}
    for key, value in values.items():
        if key not in known:
            near = nearest(key, known)
            advice = f"did you mean {near}? The" if near else "the"
            raise ConfigurationError(
                f"{where}: unknown key {key}; {advice} keys are {', '.join(known)}"
            )
        limit = limits.get(key, _OF_KIND.get(known[key].type))
        if limit is not None and not limit[0](value):
            raise ConfigurationError(f"{where}: {key} = {value_text(value)}; wanted {limit[1]}")
    required = [name for name, field in known.items() if field.default is MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise ConfigurationError(f"{where}: {', '.join(missing)} missing")
    return kind(**values)
