"""Hardware as TOML files with a source for each figure.

    read_cluster("a100-80gb-hdr")     one of shardkit/plan/hardware/*.toml, or your own file

    [device]
    like = "h100-80gb-ndr"            the device of that file, but for the keys that are here

`shardkit bench hardware` writes such a file for the machine that it runs on.
"""

from functools import partial
from pathlib import Path

from ..arguments import is_integer
from ..errors import ConfigurationError
from ..files.reading import understood
from .hardware import (
    AttentionModel,
    Cluster,
    Crowding,
    DeviceModel,
    LinkModel,
    Measured,
    SwitchLevel,
)
from .tables import ABOVE_0, COUNT, FRACTION, list_of, made, names_in, tables_of, tuples, with_like

FOLDER = Path(__file__).parent / "hardware"


def _is_peak(peak) -> bool:
    return isinstance(peak, dict) and list_of(ABOVE_0[0], [*peak.values()])


# what holds for a value, and in words
_POINTS = partial(list_of, ABOVE_0[0]), "numbers above 0"
_FRACTIONS = partial(list_of, FRACTION[0]), "fractions above 0, at most 1"
_LIMITS = {  # {key: its own; all other numbers are finite and at least 0}
    "devices": COUNT,
    "head_dim": COUNT,
    "ranks": COUNT,
    "slowdown": ABOVE_0,
    "cores": (partial(is_integer, at_least=0), "an integer, at least 0"),
    "memory_bytes": ABOVE_0,
    "bytes_per_second": ABOVE_0,
    "memory_fraction": FRACTION,
    "fraction": FRACTION,
    "misaligned": FRACTION,
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
    tables, path = tables_of(name, FOLDER, "hardware")
    with understood(path):
        return cluster_from(tables, path)


def known_clusters() -> list[str]:
    """Return the names of the descriptions that come with shardkit."""
    return names_in(FOLDER)


def cluster_from(tables: dict, path="hardware") -> Cluster:
    """Return the description in these tables."""
    rest = dict(tables)
    device = with_like(_table(rest, "device", path), FOLDER, f"{path}: [device]", "device")
    products = _table(device, "products", path)
    twice = [key for key in products if key in device]
    if twice:
        raise ConfigurationError(f"{path}: [device]: {twice[0]}; wanted it in [device.products]")
    device |= tuples(products)
    del device["products"]
    device["attention"] = _rows(AttentionModel, device, "attention", f"{path}: device")
    parts = {
        "device": made(DeviceModel, device, f"{path}: [device]", _LIMITS),
        "inside": made(LinkModel, _table(rest, "inside", path), f"{path}: [inside]", _LIMITS),
        "between": made(LinkModel, _table(rest, "between", path), f"{path}: [between]", _LIMITS),
        "measured": _rows(Measured, rest, "measured", path),
        "crowding": _rows(Crowding, rest, "crowding", path),
        "levels": _rows(SwitchLevel, rest, "levels", path),
    }
    return made(Cluster, {**rest, **parts}, str(path), _LIMITS)


def _rows(kind, tables: dict, name: str, path) -> tuple:
    """Return the rows of [[name]], none if there is no such table."""
    where, rows = f"{path}: [[{name}]]", tables.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"{where}: {name} = {rows!r}; wanted tables, each with this head")
    return tuple(made(kind, tuples(row), where, _LIMITS) for row in rows)


def _table(tables: dict, name: str, path) -> dict:
    if not isinstance(tables.get(name), dict):
        raise ConfigurationError(
            f"{path} has no table [{name}]; look at {FOLDER / 'cpu-node.toml'} for one that has all"
        )
    return tables[name]
