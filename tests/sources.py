"""The files of the package, read and parsed once: for the tests that look at all of them.

These are marked `of_sources`, so that one worker of pytest-xdist runs and parses for all of them.
"""

import importlib.util
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
of_sources = pytest.mark.xdist_group("sources")


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
