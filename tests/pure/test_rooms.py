"""The house rules of DESIGN: imports go one way, and each library has one door."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from sources import files

import shardkit
from shardkit.testing.files import LIBRARIES

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

PACKAGE = Path(shardkit.__file__).parent
LEVEL = {
    "values": -3,
    "forks": -3,
    "on_gpu": -3,
    "scoped": -3,
    "errors": -2,
    "annotations": -2,
    "public": -2,
    "arguments": -1,
    "environment": -1,
    "files": -0.5,
    "plain": -1,
    "habits": -1,
    "tree": -1,
    "refusal": 0,
    "settings": 0,
    "svg": 0,
    "layout": 1,
    "schedule": 1,
    "array": 1,
    "comm": 2,
    "nn": 2,
    "optim": 2,
    "checkpoint": 3,
    "data": 4,
    "parallel": 4,
    "gpu": 4.5,
    "task": 5,
    "train": 6,
    "coupling": 6,
    "plan": 7,
    "ensemble": 7,
    "report": 8,
    "slurm": 8,
    "doctor": 8,
    "__init__": 8,
    "cli": 9,
    "__main__": 10,
    "testing": 10,
}
DOORS = {
    "cupy": ("gpu/library.py", "gpu/transports/device.py"),
    "scipy": ("array/fourier.py",),
    "mpi4py": ("comm/",),
    "h5py": ("checkpoint/format/hdf5.py",),
    "xxhash": ("checkpoint/format/files.py",),
    "pyarrow": ("data/arrow.py",),
    "optuna": ("ensemble/asking.py",),
    "jinja2": ("data/prepare/template.py",),
    "tokenizers": ("data/tokenizer.py", "data/prepare/vocabulary.py"),
}
PACKAGED_AS = {"cupy": "cupy-cuda12x"}  # where the name to import is not that of the package


@cache
def files_and_imports():
    """{(path relative to the package, imported module, level of a relative import)} of the
    package, sorted.
    """
    return sorted(set(_files_and_imports()))


def _files_and_imports():
    for path, module in files():
        for node in module.nodes:
            if isinstance(node, ast.Import):
                yield from ((path, alias.name, 0) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names = [node.module] if node.module else [alias.name for alias in node.names]
                yield from ((path, name, node.level) for name in names)


def room_of(path):
    return path.parts[0].removesuffix(".py")


def test_a_room_imports_only_what_stands_left_of_it():
    wrong = []
    for path, module, level in files_and_imports():
        is_from_the_top = level == len(path.parts)
        if is_from_the_top and module.split(".")[0] in LEVEL:
            here, there = room_of(path), module.split(".")[0]
            if here != there and LEVEL[there] >= LEVEL[here]:
                wrong.append(f"{path} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_each_library_has_one_door():
    wrong = [
        f"{path} imports {module}"
        for path, module, level in files_and_imports()
        if level == 0 and not str(path).startswith(DOORS.get(module.split(".")[0], ("",)))
    ]
    assert not wrong, "\n".join(wrong)


def test_each_library_is_declared_with_its_lowest_version():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = ("style", "docs", "coverage")
    libraries = [extras[name] for name in extras if name not in tools]
    declared = {
        re.match(r"[\w-]+(?=(?:\[\w+\])?>=\d)", requirement)[0]
        for part in (project["dependencies"], *libraries)
        for requirement in part
    }
    imported = {
        module.split(".")[0] for _, module, level in files_and_imports() if level == 0
    } - sys.stdlib_module_names
    assert "numpy" in imported and not {PACKAGED_AS.get(name, name) for name in imported} - declared


def test_no_library_is_looked_for_beside_the_file_of_a_task():
    names = {module.split(".")[0] for _, module, level in files_and_imports() if level == 0}
    assert names - sys.stdlib_module_names - {"pytest", "xdist", "_pytest"} <= set(LIBRARIES)


def test_only_one_file_reads_the_environment():
    reads = ("os.environ", "environ[", "environ.get", "getenv")
    wrong = [
        str(path)
        for path, module in files()
        if path.name != "environment.py" and any(word in module.text for word in reads)
    ]
    assert not wrong


def test_every_room_is_known():
    rooms = {room_of(path) for path, _ in files()}
    assert rooms <= set(LEVEL)


PRODUCTS = "array/products.py", "array/reference/by_row.py"  # which products.py calls


def test_every_matrix_product_goes_through_its_one_place():
    wrong = []
    for path, module in files():
        if str(path) in PRODUCTS or str(path.parent) in ("array/blas", "gpu/products"):
            continue
        for node in module.nodes:
            is_operator = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
            is_call = (
                isinstance(node, ast.Attribute)
                and node.attr in ("matmul", "dot", "einsum", "tensordot", "inner")
                and not (isinstance(node.value, ast.Name) and node.value.id in ("products", "ops"))
            )
            if is_operator or is_call:
                wrong.append(f"{path}:{node.lineno}")
    assert not wrong, "use products.matmul, which is counted and timed: " + ", ".join(wrong)


def test_files_of_tests_have_names_of_their_own():
    """pytest imports them by name, and they import what stands beside them by name: two of one name
    are an error.
    """
    tests = Path(__file__).parents[1]
    names = [
        path.name
        for folder in ("", "pure", "threads", "gpu", "mpi", "e2e")
        for path in (tests / folder).glob("*.py")
        if path.name != "conftest.py"
    ]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
