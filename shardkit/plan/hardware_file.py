"""Hardware as TOML files with a source for each figure.

    read_cluster("a100-80gb-hdr")     one of shardkit/plan/hardware/*.toml, or your own file

    [device]
    like = "h100-80gb-ndr"            the device of that file, but for the keys that are here

`shardkit bench hardware` writes such a file for the machine that it runs on.
"""

from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path

from ..arguments import is_integer, is_number, nearest
from ..errors import ConfigurationError, InputError
from ..files.reading import read_toml, understood
from .hardware import (
    AttentionModel,
    Cluster,
    Crowding,
    DeviceModel,
    LinkModel,
    Measured,
    SwitchLevel,
)

FOLDER = Path(__file__).parent / "hardware"


def _is_positive(value) -> bool:
    return is_number(value, above=0)


def _is_fraction(value) -> bool:
    return is_number(value, above=0) and value <= 1


def _is_list_of(holds, values) -> bool:
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(map(holds, values))


def _is_peak(peak) -> bool:
    return isinstance(peak, dict) and _is_list_of(_is_positive, [*peak.values()])


# what holds for a value, and in words
_AT_LEAST_0 = partial(is_number, at_least=0), "a finite number, at least 0"
_ABOVE_0 = _is_positive, "a finite number above 0"
_FRACTION = _is_fraction, "a fraction above 0, at most 1"
_POINTS = partial(_is_list_of, _is_positive), "numbers above 0"
_FRACTIONS = partial(_is_list_of, _is_fraction), "fractions above 0, at most 1"
_COUNT = partial(is_integer, at_least=1), "an integer, at least 1"
_LIMITS = {  # {key: its own; all other numbers are finite and at least 0}
    "devices": _COUNT,
    "head_dim": _COUNT,
    "ranks": _COUNT,
    "slowdown": _ABOVE_0,
    "cores": (partial(is_integer, at_least=0), "an integer, at least 0"),
    "memory_bytes": _ABOVE_0,
    "bytes_per_second": _ABOVE_0,
    "memory_fraction": _FRACTION,
    "fraction": _FRACTION,
    "edges": _POINTS,
    "lengths": _POINTS,
    "fractions": _FRACTIONS,
    "forward": _FRACTIONS,
    "backward": _FRACTIONS,
    "peak": (_is_peak, "a number above 0 for each dtype"),
}


def read_cluster(name) -> Cluster:
    """Return the description in this file, or the one of this name that comes with shardkit.

    Errors: ConfigurationError if there is none, or a key is unknown, missing or outside its limits.
    """
    path = Path(name) if Path(name).suffix == ".toml" else FOLDER / f"{name}.toml"
    tables = _tables_of(path)
    with understood(path):
        return cluster_from(tables, path)


def _tables_of(path: Path) -> dict:
    try:
        return read_toml(path)
    except OSError as error:
        raise InputError(
            f"cannot read hardware {path}: {error.strerror}; those that come with shardkit are "
            f"{', '.join(known_clusters())}",
            path,
        ) from None


def known_clusters() -> list[str]:
    """Return the names of the descriptions that come with shardkit."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def cluster_from(tables: dict, path="hardware") -> Cluster:
    """Return the description in these tables."""
    rest = dict(tables)
    device = _device(_table(rest, "device", path), path)
    device |= _tuples(_table(device, "products", path))
    del device["products"]
    device["attention"] = _rows(AttentionModel, device, "attention", f"{path}: device")
    parts = {
        "device": _made(DeviceModel, device, f"{path}: [device]"),
        "inside": _made(LinkModel, _table(rest, "inside", path), f"{path}: [inside]"),
        "between": _made(LinkModel, _table(rest, "between", path), f"{path}: [between]"),
        "measured": _rows(Measured, rest, "measured", path),
        "crowding": _rows(Crowding, rest, "crowding", path),
        "levels": _rows(SwitchLevel, rest, "levels", path),
    }
    return _made(Cluster, {**rest, **parts}, str(path))


def _device(table: dict, path) -> dict:
    """Return the table of a device; what it does not say is as in the hardware named by `like`."""
    known = dict(table)
    like = known.pop("like", None)
    if like is None:
        return known
    if not isinstance(like, str) or like not in known_clusters():
        raise ConfigurationError(
            f"{path}: [device]: like = {like!r}; wanted one of {', '.join(known_clusters())}"
        )
    return {**_device(_tables_of(FOLDER / f"{like}.toml")["device"], like), **known}


def _rows(kind, tables: dict, name: str, path) -> tuple:
    """Return the rows of [[name]], none if there is no such table."""
    return tuple(_made(kind, _tuples(row), f"{path}: [[{name}]]") for row in tables.get(name, []))


def _tuples(table: dict) -> dict:
    """Return the table with tuples for its lists, which can be hashed."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}


def _table(tables: dict, name: str, path) -> dict:
    if not isinstance(tables.get(name), dict):
        raise ConfigurationError(
            f"{path} has no table [{name}]; look at {FOLDER / 'cpu-node.toml'} for one that has all"
        )
    return tables[name]


def _made(kind, values: dict, where: str):
    """Return kind(**values).

    Errors: ConfigurationError on a key that is unknown or missing, or a value outside its limits.
    """
    known = {f.name: f for f in fields(kind)}
    for key, value in values.items():
        if key not in known:
            near = nearest(key, known)
            advice = f"did you mean {near}? The" if near else "the"
            raise ConfigurationError(
                f"{where}: unknown key {key}; {advice} keys are {', '.join(known)}"
            )
        holds, wanted = _LIMITS.get(key, _AT_LEAST_0)
        if (key in _LIMITS or known[key].type in (float, int)) and not holds(value):
            raise ConfigurationError(f"{where}: {key} = {_shown(value)}; wanted {wanted}")
    missing = [name for name, f in known.items() if name not in values and f.default is MISSING]
    if missing:
        raise ConfigurationError(f"{where}: {', '.join(missing)} missing")
    return kind(**values)


def _shown(value) -> str:
    """Return a value as TOML has it."""
    return repr(list(value) if isinstance(value, tuple) else value)
