"""The files of the package, read and parsed once in a process: for the tests that look at all."""

import importlib.util
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _structure():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "benchmarks/structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


structure = _structure()


@cache
def package():
    """Return the package of this checkout."""
    return structure.Package(ROOT / "shardkit")


def files():
    """Yield (path from the package, module) of each of its files, sorted."""
    for module in package().modules.values():
        yield module.path.relative_to(package().folder), module
