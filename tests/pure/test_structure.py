"""The package stays made of parts: the limits on what benchmarks/structure.py measures."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _structure():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "benchmarks/structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


structure = _structure()

# Limits that may only fall. docs/hops.md says what keeps the last three where they are.
MOST_SHARED_NAMES = 1  # Linear: a layer, and a learning-rate schedule in sk.schedules
LONGEST_IMPORT_PATH = 30
MOST_FILES_OF_A_STEP = 65
MOST_ENGINE_FILES_OF_A_STEP = 30


@pytest.fixture(scope="module")
def package():
    return structure.Package(ROOT / "shardkit")


def made_of(folder, **files):
    """A package whose files have these texts."""
    for name, text in {"__init__": "", **files}.items():
        (folder / f"{name}.py").write_text(text)
    return structure.Package(folder)


def test_a_cycle_is_found_and_a_chain_is_measured(tmp_path):
    found = made_of(
        tmp_path,
        a="from . import b",
        b="def late():\n    from .c import x",
        c="from .a import y\nfrom .d import z",
        d="import numpy",
    )
    name = tmp_path.name
    assert found.cycles == [[f"{name}.a", f"{name}.b", f"{name}.c"]]
    assert found.longest_import_path[-1] == f"{name}.d" and len(found.longest_import_path) == 4


def test_a_tower_of_classes_is_measured(tmp_path):
    body = "class A:\n    def f(self): pass\n\nclass B(A):\n    def g(self): pass\n"
    found = made_of(tmp_path, a=body, b="from .a import B\n\nclass C(B):\n    pass\n")
    assert found.deepest_class == (3, "C") and found.all_methods("C") == 2


def test_no_policy_is_asked_after_construction(package):
    assert not package.policy_tests()


def test_code_is_not_packed(package):
    assert package.nodes_per_line <= 10


def test_no_modules_import_each_other(package):
    assert not package.cycles


def test_inheritance_is_shallow(package):
    depth, _ = package.deepest_class
    assert depth <= 3


def test_no_frame_is_counted(package):
    assert not package.counted_frames()


def test_lines_are_short(package):
    assert not package.long_lines()


def test_docstrings_begin_with_a_sentence(package):
    assert not package.torn_off_docstrings()


def test_classes_are_small(package):
    assert not package.large_classes


def test_names_of_classes_are_unique(package):
    assert len(package.duplicate_classes) <= MOST_SHARED_NAMES, package.duplicate_classes


def test_import_paths_are_short(package):
    assert len(package.longest_import_path) <= LONGEST_IMPORT_PATH, package.longest_import_path


@pytest.mark.thorough
def test_a_step_enters_few_files():
    files, engine, functions = structure.step_entries(ROOT)
    assert 0 < files <= MOST_FILES_OF_A_STEP and functions > files
    assert 0 < engine <= MOST_ENGINE_FILES_OF_A_STEP
