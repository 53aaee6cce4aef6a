"""Declare settings: one line holds a setting's default, meaning, limits and unit.

    @dataclass(frozen=True, kw_only=True)
    class MeshAxes:
        tensor: int = setting(1, "ranks that share each layer", "ranks", minimum=1)

The code that reads a setting stands in the same room. `Sections` composes such dataclasses into the
tables of a TOML file; an object in Python checks its own fields with `check_fields`. Plain fields
with a default are settings too, without limits and a text (`as_section`). Only None
leaves a choice open. In a file and on the command line it is written "none", and so are
0, "" and [] where the setting takes None.
"""

import dataclasses
import json
import re
from dataclasses import dataclass
from functools import cache
from math import inf
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

from .arguments import is_integer, is_number, nearest, require
from .errors import ConfigurationError, InputError
from .files.paths import spelled_out, usable_path
from .files.reading import MOST_TABLE_BYTES, read_bytes
from .files.reading import read_toml as read_tables
from .plain import plain

PATHS = {"is_path", "is_place", "made_absolute"}  # rules of settings that may begin with ~
_WANTED = {NoneType: "None", bool: "True or False", int: "an integer", float: "a finite number"}


def setting(default, text: str, unit: str = "", **rules):
    """Declare a setting that a continued run may change.

    text       what it means, for --help
    minimum, maximum, above, below    limits of a number, or of each element
    among      the names that it takes, or a registry of them
    known      the names that files take; in Python its reader refuses others
    holds      function (value) -> bool, a further condition on what is not None; wanted says what
    spelled    {spelling in files: value}
    is_common  --help lists it among the first
    is_path    relative paths are made absolute when a run starts; is_place: they stay relative
    fixed      why a run keeps it from its start to its end; see `fixed`
    unplanned  what another value changes in a run, which `shardkit plan` does not count, and says
    at_resume  what another value does in a run that goes on, which says it then; the value is
               stored in checkpoints
    """
    return dataclasses.field(default=default, metadata={"text": text, "unit": unit, **rules})


def fixed(reason: str, default, text: str, unit: str = "", **rules):
    """Declare a setting that a run keeps from its start to its end, for this reason."""
    return setting(default, text, unit, fixed=reason, **rules)


# ---- one value -----------------------------------------------------------------------------------


def _kinds(field) -> tuple:
    """Return the types that the annotation joins by |."""
    is_union = get_origin(field.type) not in (None, tuple)
    return get_args(field.type) if is_union else (field.type,)


def _is_kind(value, kind, field) -> bool:
    rules = field.metadata
    if kind is Any:
        return True
    if get_origin(kind) is tuple:
        elements = isinstance(value, (list, tuple)) and (len(value) > 0 or field.default == ())
        return elements and all(_is_kind(element, get_args(kind)[0], field) for element in value)
    if kind is int:
        return is_integer(value) and _is_within(value, rules)
    if kind is float:
        return is_number(value) and _is_within(value, rules)
    if kind is str:
        return isinstance(value, str) and value in rules.get("among", (value,))
    return isinstance(value, kind)


def _is_within(number, rules) -> bool:
    return (
        number >= rules.get("minimum", number)
        and number <= rules.get("maximum", number)
        and ("above" not in rules or number > rules["above"])
        and ("below" not in rules or number < rules["below"])
    )


def _is_valid(value, field) -> bool:
    if not any(_is_kind(value, kind, field) for kind in _kinds(field)):
        return False
    return value is None or field.metadata.get("holds", lambda value: True)(value)


def _wanted(field) -> str:
    """Return what the setting takes, in words."""
    rules = field.metadata
    if "wanted" in rules:
        return rules["wanted"]
    words = []
    kinds = _kinds(field)
    of_one = [get_args(kind)[0] if get_origin(kind) is tuple else kind for kind in kinds]
    for kind, one in zip(kinds, of_one):
        if kind is not one:
            is_filled = ", not empty" * (field.default != ())
            words.append(f"a list{is_filled}, each {_WANTED.get(one, 'text')}")
        elif kind is str:
            words += rules.get("among", rules.get("known", ("text",)))
        else:
            words.append(_WANTED[kind])
    if {int, float}.intersection(of_one):
        limits = {"minimum": "at least", "maximum": "at most", "above": "above", "below": "below"}
        set_here = [rule for rule in limits if rule in rules]
        words[0] += "".join(f", {limits[rule]} {rules[rule]}" for rule in set_here)
    return " or ".join(words)


def check_fields(settings) -> None:
    """Raise ConfigurationError unless each declared setting of this object is valid."""
    for field in dataclasses.fields(settings):
        if "text" in field.metadata:
            value = getattr(settings, field.name)
            require(_is_valid(value, field), field.name, value, _wanted(field))


def _usable(value):
    """Return a path, or several, from the root where they begin with ~."""
    return list(map(usable_path, value)) if isinstance(value, (list, tuple)) else usable_path(value)


def _from_file(name: str, value, field):
    """Return a value of a file as Python has it. Errors: ConfigurationError."""
    kinds = _kinds(field)
    spelled = field.metadata.get("spelled", {})
    value = plain(value)
    if PATHS & field.metadata.keys():
        value = _usable(value)
    sequence = next((kind for kind in kinds if get_origin(kind) is tuple), None)
    meant = value
    if isinstance(value, str) and value in spelled:
        meant = spelled[value]
    elif NoneType in kinds and (value == "none" or not value and not isinstance(value, bool)):
        meant = None
    elif isinstance(value, str) and str not in kinds and sequence is not None:
        meant = (value,)
    elif isinstance(value, list):
        meant = tuple(value)
    elif is_integer(value) and float in kinds:
        meant = float(value) if is_number(value) else inf
    known = field.metadata.get("known", (meant,))
    is_known = not isinstance(meant, str) or meant in known
    require(_is_valid(meant, field) and is_known, name, value, _wanted(field))
    return meant


# ---- sections ------------------------------------------------------------------------------------

_PLAIN = (NoneType, bool, int, float, str)


def as_section(cls: type) -> type:
    """Return this class of annotated fields as a section of settings: a dataclass.

    A dataclass stays what it is; a plain class becomes a frozen one.
    Errors: ConfigurationError on a field without a default, or of a type that no file can hold.
    """
    made = cls if dataclasses.is_dataclass(cls) else dataclass(frozen=True)(cls)
    hints = get_type_hints(made)
    for field in dataclasses.fields(made):
        field.type = hints[field.name]
        kinds = [kind for each in _kinds(field) for kind in (get_args(each) or (each,))]
        known = {*_PLAIN, Ellipsis}
        require(
            known.issuperset(kinds),
            f"{cls.__name__}.{field.name}",
            field.type,
            "int, float, str, bool, a tuple of one of them, or one of them | None",
        )
        if field.default is dataclasses.MISSING:
            raise ConfigurationError(
                f"{cls.__name__}.{field.name} has no default; give it one, such as None"
            )
        default = plain(field.default)
        require(
            not isinstance(default, float) or is_number(default),
            f"{cls.__name__}.{field.name}",
            default,
            "a finite number as the default, which files can hold, or None",
        )
    return made


@dataclass(frozen=True)
class Sections:
    """A configuration made of sections, each a dataclass of settings."""

    @classmethod
    @cache
    def keys(cls) -> dict[str, dataclasses.Field]:
        """Return {"section.key": field} in the order of declaration."""
        return {
            f"{section.name}.{field.name}": field
            for section in dataclasses.fields(cls)
            for field in dataclasses.fields(cast(type, section.type))
        }

    @classmethod
    def key(cls, name: str) -> dataclasses.Field:
        """Return the field of "section.key". Errors: ConfigurationError with the nearest name."""
        if name not in cls.keys():
            near = nearest(name, cls.keys())
            hint = f"; did you mean {near}?" if near else "; --help lists every key"
            raise ConfigurationError(f"unknown configuration key {name}{hint}")
        return cls.keys()[name]

    @classmethod
    def parse(cls, name: str, text: str):
        """Return the value of `--section.key=text`; `replace` checks it.

        Errors: ConfigurationError on a list that is none.
        """
        kinds = _kinds(cls.key(name))
        if not PATHS & cls.key(name).metadata.keys():
            text = spelled_out(text)
        if text.startswith("[") and any(get_origin(kind) is tuple for kind in kinds):
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(
                    f'{name} = {text!r:.100}; wanted a list, such as ["a", "b"]: {error}'
                ) from None
        if set(kinds) <= {str, NoneType}:
            return text
        if kinds == (tuple[str, ...],):
            return [text]
        try:
            return json.loads(text.lower() if bool in kinds else text)
        except (ValueError, RecursionError):
            return text

    @classmethod
    def help_text(cls) -> str:
        """Return one line for each key: default, unit and meaning; common ones first, then the
        others by section.
        """
        keys = cls.keys()
        common = [name for name, field in keys.items() if field.metadata.get("is_common")]
        parts = ["common settings:", *(_help_line(name, keys[name]) for name in common)]
        for section in dataclasses.fields(cls):
            rest = [
                name for name in keys if name.startswith(f"{section.name}.") and name not in common
            ]
            if rest:
                parts += ["", f"[{section.name}]{_meaning(cast(type, section.type))}"]
                parts += [_help_line(name, keys[name]) for name in rest]
        return "\n".join(parts)

    def toml_text(self) -> str:
        """Return all settings as a TOML file that reads as these."""
        lines: list[str] = []
        for section in dataclasses.fields(self):
            lines += [""] * bool(lines) + [f"[{section.name}]"]
            lines += [
                f"{field.name} = {_toml(self.value(f'{section.name}.{field.name}'))}"
                for field in dataclasses.fields(cast(type, section.type))
            ]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict:
        """Return {section: {key: value}}, which JSON can hold."""
        return plain(dataclasses.asdict(self))

    def value(self, name: str):
        """Return the value of "section.key"."""
        self.key(name)
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)

    def replace(self, settings: dict[str, Any]):
        """Return this configuration with {"section.key": value} replaced and checked.

        Errors: ConfigurationError on an unknown key, a wrong type or a value out of range.
        """
        changed: dict[str, dict] = {}
        for name, value in settings.items():
            meant = _from_file(name, value, self.key(name))
            section, _, key = name.partition(".")
            changed.setdefault(section, {})[key] = meant
        sections = {name: self._section(name, values) for name, values in changed.items()}
        return dataclasses.replace(self, **sections)

    def _section(self, name: str, values: dict):
        """Return a section with these values; what its own __post_init__ refuses is an error."""
        try:
            return dataclasses.replace(getattr(self, name), **values)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"section [{name}]: {error}") from None


def _help_line(name: str, field) -> str:
    rules = field.metadata
    shown = f"{json.dumps(plain(field.default))} {rules.get('unit', '')}".rstrip()
    default = "none" if field.default is None else shown
    names = (*rules.get("among", rules.get("known", ())), *rules.get("spelled", ()))
    choices = f" ({' | '.join(names)})" if names else ""
    meaning = f": {rules['text']}" if "text" in rules else ""
    return f"  --{name:<40} {default}{meaning}{choices}"


def _meaning(section: type) -> str:
    """Return the first line of what the section says about itself, or of the class it is made of;
    dataclasses say their fields where nothing was written.
    """
    for made in section.__mro__[:-1]:
        text = (made.__doc__ or "").partition("\n")[0]
        if text and not text.startswith(f"{made.__name__}("):
            return f" {text}"
    return ""


def _toml(value) -> str:
    """Return a value as TOML has it; "none" for what is left open."""
    if value is None:
        return '"none"'
    return json.dumps(plain(value), ensure_ascii=True).replace("\x7f", "\\u007f")


def value_text(value) -> str:
    """Return a value for a message, as a file of settings has it: a list, not a tuple."""
    return repr(list(value) if isinstance(value, tuple) else value)


def read_toml(path) -> dict[str, Any]:
    """Return the settings of the file as {"section.key": value}. Errors: ConfigurationError."""
    try:
        tables = read_tables(path)
    except OSError as error:
        raise InputError(f"cannot read configuration {path}: {error.strerror}", path) from None
    settings = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}: {section} = {table!r} is outside of a [section]; --help lists the "
                "sections"
            )
        settings.update({f"{section}.{name}": value for name, value in table.items()})
    return settings


def line_of(path, name: str) -> int | None:
    """Return the number of the line where a TOML file sets "section.key"; None if none is found."""
    above = ""
    for number, line in enumerate(read_bytes(path, MOST_TABLE_BYTES).decode().splitlines(), 1):
        table, key = re.match(r"\s*\[([^\[\]]+)\]", line), re.match(r"\s*([^=#\[]+?)\s*=", line)
        above = f"{_bare(table[1])}." if table else above
        if key and (above + _bare(key[1])) == name:
            return number
    return None


def _bare(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)
