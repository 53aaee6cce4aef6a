"""The package stays made of parts: the limits on what benchmarks/structure.py measures."""

import ast
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import sources
from sources import structure

import shardkit.testing
from shardkit.testing import comm

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

# Limits that may only fall. docs/hops.md says what keeps the last three where they are.
MOST_SHARED_NAMES = 1  # Linear: a layer, and a learning-rate schedule in sk.schedules
LONGEST_IMPORT_PATH = 30
MOST_FILES_OF_A_STEP = 65
MOST_ENGINE_FILES_OF_A_STEP = 30


@pytest.fixture
def package():
    return sources.package()


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


def functions_that_read(package, attribute):
    """Return the functions of the package in which this attribute of any object is read."""
    return [
        (module.path.name, function.name)
        for module in package.modules.values()
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(n, ast.Attribute) and n.attr == attribute for n in ast.walk(function))
    ]


def test_callers_are_looked_for_in_one_function(package):
    assert functions_that_read(package, "f_back") == [("frames.py", "first_frame")]


def members(package, name):
    """Return the names of the methods of a class of the package, inherited ones too."""
    (node,) = (
        node
        for module in package.modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return own.union(*(members(package, base) for base in package.bases(name)))


MOST_MEMBERS_OF_A_CHANNEL = 25
MOST_ALL_REDUCES = 12  # in comm, under any name that ends with it


def test_channels_are_narrow_and_those_around_others_forward_no_verb(package):
    channels = [name for name in package.classes if name.endswith("Channel")]
    verbs = {"barrier", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"}
    assert {"WrappedChannel", "LevelsChannel", "MPIChannel"} <= set(channels)
    for name in channels:
        found = members(package, name)
        assert len(found) <= MOST_MEMBERS_OF_A_CHANNEL, name
        assert not found & (verbs | {f"i{verb}" for verb in verbs}), name


def test_a_verb_is_written_in_few_places(package):
    written = [
        function.name
        for module in package.modules.values()
        if module.path.is_relative_to(package.folder / "comm")
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef) and re.match("_?i?all_reduce", function.name)
    ]
    assert 0 < len(written) <= MOST_ALL_REDUCES, written


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


# ---- what tests know of the inside ---------------------------------------------------------------

PUBLIC = ("shardkit", "shardkit.nn", "shardkit.nn.ops")
# How often a file of tests goes past the public names and the doors of shardkit.testing.
PAST_THE_DOORS = {
    "pure/test_imports.py": 7,  # which files and rooms are imported, and by which name
    "pure/test_packing.py": 1,  # what jobs/launch.sh runs
    "pure/test_roll.py": 1,  # puts an empty package there, so that nothing else is imported
    "threads/test_rebuilt.py": 1,  # what a hostile image names
    "threads/test_trust.py": 3,  # the same
    "user_script.py": 1,  # the type of a rule, in a user's annotation
}


def inside(folder, *public):
    """Return the names of the files and folders of a folder of the package that are not public."""
    names = {path.stem for path in (ROOT / folder).iterdir() if "__" not in path.name}
    return names - set(public)


ROOMS = inside("shardkit", "nn", "testing")
PARTS_OF_NN = inside("shardkit/nn", "init", "models", "ops")
INSIDE = re.compile(
    rf"\bshardkit\.({'|'.join(ROOMS)})\b|\bshardkit\.nn\.({'|'.join(PARTS_OF_NN)})\b|\.engine\b"
)


def is_past_the_doors(node):
    """Return True if this piece of a test takes something of the inside without a door."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardkit":
        if node.module in PUBLIC:
            public = {*import_module(node.module).__all__, "nn", "testing"}
            return not {alias.name for alias in node.names} <= public
        return not node.module.startswith("shardkit.testing")
    if isinstance(node, ast.Import):
        return any(re.match(r"shardkit\.(?!testing\b)", alias.name) for alias in node.names)
    if isinstance(node, ast.Attribute):
        if node.attr in ROOMS:
            return ast.unparse(node.value) in ("sk", "shardkit")
        if node.attr in PARTS_OF_NN:
            return ast.unparse(node.value) in ("nn", "sk.nn", "shardkit.nn")
        return node.attr == "engine"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return INSIDE.search(node.value) is not None
    return False


@pytest.mark.parametrize(
    "code",
    [
        "from shardkit.comm.watch import ledger",
        "from shardkit.nn.ops import joint",
        "from shardkit import parallel",
        "import shardkit.array.kernels",
        "model.engine.units",
        "sk.errors.PeerError",
        "sk.nn.autograd.Tensor",
        "patch('shardkit.comm.watch.ledger.MACHINE_CODE')",
        "run('from shardkit.cli import main')",
        "run('print(model.engine)')",
    ],
)
def test_what_goes_past_the_doors_is_seen(code):
    assert any(map(is_past_the_doors, ast.walk(ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "from shardkit import AdamW, nn",
        "from shardkit.nn.ops import linear",
        "from shardkit.testing.comm import ledger",
        "sk.nn.ops.linear(sk.nn.Tensor(x))",
        "patch('shardkit.testing.comm.ledger.MACHINE_CODE')",
    ],
)
def test_public_names_and_doors_are_no_way_past(code):
    assert not any(map(is_past_the_doors, ast.walk(ast.parse(code))))


def test_tests_know_the_inside_by_its_doors_alone():
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__):
            nodes = ast.walk(ast.parse(path.read_text()))
            found[str(path.relative_to(TESTS))] = sum(map(is_past_the_doors, nodes))
    assert {name: count for name, count in found.items() if count} == PAST_THE_DOORS


def doors():
    """Return {name: module} of the doors."""
    names = [each.name for each in pkgutil.iter_modules(shardkit.testing.__path__)]
    return {name: import_module(f"shardkit.testing.{name}") for name in names}


def offered(door):
    """Return the names that tests can take from a door."""
    own = [name for name, value in vars(door).items() if name[0] != "_" and callable(value)]
    questions = {name for name in own if getattr(door, name).__module__ == door.__name__}
    return {*" ".join(door.NAMES.values()).split(), *door.MODULES, *questions}


def taken():
    """Return (door, name) of all that tests take, scripts in their texts included."""
    found = set()
    for path in TESTS.rglob("*"):
        if path.suffix in (".py", ".sh") and path != Path(__file__):
            text = path.read_text()
            imports = r"from shardkit\.testing\.(\w+) import (\([^)]*\)|[^\n;\\]*)"
            for door, names in re.findall(imports, text):
                found |= {(door, name) for name in re.findall(r"\w+", names)}
            found |= set(re.findall(r"\bshardkit\.testing\.(\w+)\.(\w+)", text))
            for door in re.findall(r"from shardkit\.testing import (\w+)", text):
                found |= {(door, name) for name in re.findall(rf"\b{door}\.(\w+)", text)}
    return found


def test_every_name_of_a_door_is_there_once_and_some_test_takes_it():
    used = taken()
    for name, door in doors().items():
        listed = [*" ".join(door.NAMES.values()).split(), *door.MODULES]
        assert len(listed) == len(set(listed)), name
        assert not [each for each in offered(door) if not hasattr(door, each)]
        assert not sorted(each for each in offered(door) if (name, each) not in used), name


def test_a_name_of_a_door_cannot_be_set_where_setting_it_does_nothing(monkeypatch):
    with pytest.raises(AttributeError, match="set it in the module that uses it"):
        monkeypatch.setattr(comm, "LEDGER_NAME", "other")
    monkeypatch.setattr("shardkit.testing.comm.ledger.LEDGER_NAME", "other")
    assert comm.LEDGER_NAME == comm.ledger.LEDGER_NAME == "other"


def modules_after(code):
    """Return the modules of shardkit that this program has imported at its end."""
    code += "; print(*(name for name in sys.modules if name.startswith('shardkit.')))"
    command = [sys.executable, "-c", f"import sys, types; {code}", ROOT / "shardkit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return set(done.stdout.split())


def test_the_package_imports_no_door():
    assert not {name for name in modules_after("import shardkit") if "testing" in name}


def test_a_door_imports_nothing_before_it_is_asked():
    names = {f"shardkit.testing.{name}" for name in doors()}
    an_empty_package = (
        "sys.modules['shardkit'] = package = types.ModuleType('shardkit'); "
        "package.__path__ = [sys.argv[1]]; "
    )
    found = modules_after(f"{an_empty_package} import {', '.join(sorted(names))}")
    assert found == {"shardkit.testing", *names}
