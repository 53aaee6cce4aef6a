"""The files of the package, read and parsed once in a process: for the tests that look at all."""

from functools import cache
from pathlib import Path

import structure

ROOT = Path(__file__).resolve().parents[1]


@cache
def package():
    """Return the package of this checkout."""
    return structure.Package(ROOT / "shardkit")


def files():
    """Yield (path from the package, module) of each of its files, sorted."""
    for module in package().modules.values():
        yield module.path.relative_to(package().folder), module
