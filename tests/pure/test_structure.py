"""The package stays made of parts: the limits on what benchmarks/structure.py measures."""

import ast
import pkgutil
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import foreign
import pytest
import roads
import sources
import structure
from repeats import repeats

import shardkit.testing
from shardkit.testing import comm

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
LIMITS = structure.read_limits()
LOWER = "python benchmarks/structure.py --lower"


@pytest.fixture
def package():
    return sources.package()


# ---- the limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in LIMITS if name not in structure.OF_A_STEP])
def test_no_figure_is_above_its_limit(name, package):
    measure, limit = structure.measures(package).get(name), LIMITS[name]
    assert measure is not None, f"{name!r} is not measured any more: {LOWER}"
    found = measure(package)
    figure = structure.number_of(found)
    if figure > limit:
        places = "\n".join(structure.places(found))
        pytest.fail(f"{name}: {figure}, at most {limit}\n{places}", pytrace=False)
    if figure < limit:
        warnings.warn(f"{name} has fallen from {limit} to {figure}: {LOWER}", stacklevel=1)


def test_every_figure_has_a_limit(package):
    without = {*structure.measures(package), *structure.OF_A_STEP} - set(LIMITS)
    assert not without, f"{LOWER} writes them"


def git(*command):
    """Return what a command of git says about this checkout; skip the test where there is none."""
    try:
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no checkout of git")
    return done.stdout


def test_no_limit_has_ever_risen():
    """Of what has reached the main line: a merge counts as one change."""
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("this clone is shallow, and so without the history of the limits")
    command = "log --reverse --first-parent -m -p --unified=0 --format= --".split()
    changes = git(*command, structure.LIMITS.relative_to(ROOT))
    wrong = broken(limits_in(changes), LIMITS, structure.RETIRED)
    assert not wrong, f"limits only fall, by {LOWER}"


def limits_in(changes):
    """Return {name: its limits} that lines of a diff have added, in their order."""
    found = {}
    for name, limit in re.findall(r'^\+  "(.*)": ([\d.]+),?$', changes, re.M):
        found.setdefault(name, []).append(float(limit))
    return found


def broken(history, limits, retired):
    """Return in words where limits have risen, or went away.

    history   {name: its limits}, oldest first
    limits    {name: limit} of now
    retired   {name: its successor, or why it has none}
    """
    ever = {name: [*history.get(name, ()), limit] for name, limit in limits.items()}
    wrong = [
        f"{name} rose to {ever[name][-1]}" for name in ever if ever[name][-1] > min(ever[name])
    ]
    gone = set(history) - set(limits)
    wrong += [f"{name} went away without a word in RETIRED" for name in sorted(gone - set(retired))]
    wrong += [f"{name} is in RETIRED and has a limit" for name in retired if name in limits]
    ever = history | ever
    for name, successor in retired.items():
        if name not in history:
            wrong.append(f"{name} is in RETIRED and never had a limit")
        elif successor in ever and ever[successor][0] > min(history[name]):
            wrong.append(f"{successor} began at {ever[successor][0]}, above {name}")
    return wrong


def test_the_history_of_a_limit_is_read():
    changes = '-  "a: b": 7,\n+  "a: b": 5,\n+  "c": 9.5\n+++ b/x\n+  "c": 11\n'
    assert limits_in(changes) == {"a: b": [5], "c": [9.5, 11]}


@pytest.mark.parametrize(
    "history, limits, retired, found",
    [
        ({"a": [5, 4]}, {"a": 4}, {}, []),
        ({"a": [5, 4]}, {"a": 3, "new": 9}, {}, []),
        ({"a": [5, 4]}, {"a": 5}, {}, ["a rose to 5"]),
        ({"a": [5, 6]}, {"a": 6}, {}, ["a rose to 6"]),
        ({"a": [5]}, {"b": 7}, {}, ["a went away without a word in RETIRED"]),
        ({"a": [5]}, {}, {"a": "its files are gone"}, []),
        ({"a": [5]}, {"b": 5}, {"a": "b"}, []),
        ({"a": [5, 4]}, {"b": 5}, {"a": "b"}, ["b began at 5, above a"]),
        ({"a": [5], "b": [7, 3]}, {"b": 3}, {"a": "b"}, ["b began at 7, above a"]),
        ({"a": [5], "b": [4]}, {"c": 4}, {"a": "b", "b": "c"}, []),
        ({"a": [5], "b": [6]}, {"c": 6}, {"a": "b", "b": "c"}, ["b began at 6, above a"]),
        ({"a": [5, 9]}, {"b": 9}, {"a": "b"}, ["b began at 9, above a"]),  # raised before
        ({"a": [5], "b": [4]}, {"b": 4}, {"a": "b", "b": "c"}, ["b is in RETIRED and has a limit"]),
        ({}, {"b": 4}, {"a": "b"}, ["a is in RETIRED and never had a limit"]),
    ],
)
def test_limits_that_rise_or_go_away_are_found(history, limits, retired, found):
    assert broken(history, limits, retired) == found


def test_limits_fall_and_never_rise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(structure, "LIMITS", tmp_path / "limits.json")
    assert structure.lower({"a": 3, "b": 9.5}) == 0
    assert structure.lower({"a": 4, "b": 9.25, "c": 0}) == 1
    assert structure.read_limits() == {"a": 3, "b": 9.25, "c": 0}
    said = capsys.readouterr().out
    assert "b: 9.5 -> 9.25" in said and "a: 4, above its limit 3, which stays" in said
    assert structure.lower({"a": 3}) == 0 and structure.read_limits() == {"a": 3}


@pytest.mark.thorough
def test_a_step_enters_few_files():
    for name, figure in zip(structure.OF_A_STEP, structure.step_entries(ROOT)):
        assert 0 < figure <= LIMITS[name], name


# ---- what the figures see ------------------------------------------------------------------------


def made_of(folder, **files):
    """A package whose files have these texts; in__wing is the file `in` of the folder `wing`."""
    for name, text in {"__init__": "", **files}.items():
        file, _, wing = name.partition("__") if name != "__init__" else (name, "", "")
        path = folder / "room" / wing / f"{file}.py" if wing else folder / f"{file}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        for above in path.relative_to(folder).parents:
            (folder / above / "__init__.py").touch()
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


@pytest.mark.parametrize(
    "one, other, third, found",
    [
        ("from ..wing.b import x", "from ..other.a import y", "", 2),
        ("from ..wing.b import x", "def late():\n    from ..other import a", "", 2),
        ("from ..wing import b", "from ..last.c import x", "import {room}.other.a", 3),  # round
        ("import importlib\nimportlib.import_module('..wing.b', __package__)", "{back}", "", 2),
        ("from ..wing.b import x", "", "from ..wing.b import x", 0),
        ("from ..wing.b import x", "from ... import top", "", 0),
    ],
)
def test_wings_that_import_each_other_are_found(tmp_path, one, other, third, found):
    third = third.format(room=f"{tmp_path.name}.room")
    other = other.format(back=f"__import__('{tmp_path.name}.room.other.a')")
    package = made_of(tmp_path, top="", a__other=one, b__wing=other, c__last=third)
    assert len(structure.mutual_wings(package)) == found


def test_a_tower_of_classes_is_measured(tmp_path):
    body = "class A:\n    def f(self): pass\n\nclass B(A):\n    def g(self): self.x = 1\n"
    found = made_of(
        tmp_path,
        a=body,
        b="from .a import B\n\nclass C(B):\n    y: int\n    def f(self): self._z = 1\n    h = f",
    )
    assert found.deepest_class == (3, "C")
    assert found.methods("C") == {"f", "g"} and found.attributes("C") == {"x", "y", "_z"}
    assert found.public_members("C") == {"f", "g", "h", "x", "y"}


def test_what_a_class_has_too_many_of_counts_once_in_its_family(tmp_path):
    methods = "\n".join(
        f"    def f{number}(self): pass" for number in range(structure.MOST_METHODS)
    )
    text = f"class A:\n{methods}\n    def g(self): pass\nclass B(A): pass\nclass C(A):\n"
    found = made_of(tmp_path, a=f"{text}    def h(self): pass")
    assert structure.methods_of_large_classes(found) == {"A": 1}
    assert structure.methods_of_large_families(found) == {"A": 1, "C": 1}


def test_what_a_class_promises_is_no_choice_of_its_code(tmp_path, monkeypatch):
    methods = "\n".join(f"    def f{number}(self): pass" for number in range(27))
    package = made_of(tmp_path, a=f"class A:\n{methods}\nclass B(A):\n    def g(self): pass")
    page = tmp_path / "models.md"
    monkeypatch.setattr(structure, "CONTRACTS", page)
    page.write_text("## Members of `B`\n\n| for | members |\n|---|---|\n| x | `g` |\n")
    assert structure.methods_of_large_families(package) == {"A": 2}
    page.write_text("## Members of `A`\n\n| for | members |\n|---|---|\n| x | `f1`, `f2` |\n\n:::")
    assert structure.methods_of_large_families(package) == {"B": 1}
    assert structure.members_promised("A") == {"f1", "f2"}


def test_channels_have_no_verb_of_their_own(package):
    """They plan any verb (comm/channel.py), so that one around another forwards one member."""
    channels = [name for name in package.classes if name.endswith("Channel")]
    verbs = {"barrier", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"}
    assert {"WrappedChannel", "LevelsChannel", "MPIChannel"} <= set(channels)
    for name in channels:
        assert not package.methods(name) & (verbs | {f"i{verb}" for verb in verbs}), name


def test_methods_that_are_installed_are_those_of_a_class(package):
    assert {"exp", "max", "__add__"} <= package.methods("Tensor") <= package.methods("Parameter")


@pytest.mark.parametrize(
    "code, found",
    [
        ("import sys\nsys._getframe()", 1),
        ("from sys import _getframe\n_getframe().f_back", 1),
        ("from sys import _getframe as here\nhere(1)\nhere(2)", 2),
        ("import sys as system\nsystem._getframe(1)", 1),
        ("import sys\nlook = getattr(sys, '_getframe')", 1),
        ("import inspect\ninspect.currentframe()\ninspect.stack()", 2),
        ("import numpy\nnumpy.stack([])", 0),
        ("from numpy import stack\nstack([])", 0),
        ("from sys import _getframe", 0),
        ("import sys\ns = sys\ns._getframe()", 1),
        ("import sys\nsys.modules['sys']._getframe()", 1),
        ("__import__('sys')._getframe()", 1),
        ("import sys\nsys.__dict__['_getframe']()", 1),
        ("from sys import *\n_getframe()", 1),
        ("from operator import attrgetter\nattrgetter('modules.sys._getframe')", 1),
        ("import traceback as t\nt.walk_stack(None)", 1),
        ("def f():\n    'See sys._getframe.'\n    return '_get_frames'", 0),
        ("import inspect\nlook = inspect\nlook.stack()", 1),
        ("from inspect import *\nstack()", 1),
        ("__import__('inspect').stack()", 1),
        ("import inspect\ngetattr(inspect, 'stack')()", 1),
        ("import inspect, numpy\ngetattr(numpy, 'stack')([inspect])", 0),
    ],
)
def test_frames_are_counted_however_they_are_reached(tmp_path, code, found):
    assert len(foreign.frames(made_of(tmp_path, a=code))) == found


@pytest.mark.parametrize(
    "body, found, on_parts",
    [
        ("self.x = 1", 0, 0),
        ("cls.x += 1", 0, 0),
        ("self.part.x = 1", 1, 0),
        ("self._group.owner.quick = 1", 1, 1),
        ("other.x = 1", 1, 0),
        ("other.part.x: int = 1", 1, 1),
        ("other[0].x, self.y = 1, 2", 1, 0),
        ("for other.x in y: pass", 1, 0),
        ("with y as other.x: pass", 1, 0),
        ("del other.x", 1, 0),
        ("setattr(other, 'x', 1)", 1, 0),
        ("object.__setattr__(self.part, 'x', 1)", 1, 0),
        ("object.__setattr__(self, 'x', 1)", 0, 0),
        ("super().__setattr__('x', 1)", 0, 0),
        ("vars(other)['x'] = 1", 1, 0),
        ("other.part.__dict__['x'] = 1", 1, 1),
        ("self.part.__dict__.update(x=1)", 1, 0),
        ("self.__dict__.update(x=1); vars(self)['y'] = 1", 0, 0),
        ("made = cls.__new__(cls)\n    made.x = 1", 0, 0),
        ("made = Thing()\n    made.x = 1", 0, 0),
        ("made = find()\n    made.x = 1", 1, 0),
        ("self = other\n    self.x = 1", 1, 0),
        ("for self in other: self.x = 1", 1, 0),
        ("for cls in y: cls.x = 1", 1, 0),
        ("self, y = y, self\n    self.x = 1", 1, 0),
        ("with y as self: self.x = 1", 1, 0),
        ("import numpy as self\n    self.x = 1", 1, 0),
        ("(self := other).y\n    self.x = 1", 1, 0),
        ("made = Thing()\n    made = other\n    made.x = 1", 1, 0),
        ("made = Thing()\n    for made in y: made.x = 1", 1, 0),
        ("made = None\n    made = Thing()\n    made.x = 1", 0, 0),
        ("made = {} if y else Thing()\n    made.x = 1", 0, 0),
        ("made = y if y else Thing()\n    made.x = 1", 1, 0),
        ("made: Thing = Thing()\n    made.x = 1", 0, 0),
        ("other = other or y\n    other = Thing()\n    other.x = 1", 1, 0),
        ("made = Thing()\n    def late(made): made.x = 1", 1, 0),
        ("made = Thing()\n    def late(): made.x = self.x = 1", 0, 0),
        ("def late(self): self = other; self.x = 1", 1, 0),
        ("pass\nself = 1\nself.x = 1", 1, 0),  # in no function
        ("array.flags.writeable = False", 0, 0),
    ],
)
def test_attributes_set_on_other_objects_are_found(tmp_path, body, found, on_parts):
    package = made_of(tmp_path, a=f"def act(self, cls, other, array, y):\n    {body}")
    assert len(foreign.set_elsewhere(package)) == found
    assert len(foreign.set_on_parts_of_others(package)) == on_parts


def test_what_hides_from_the_figures_is_found(tmp_path):
    walks = "def up(frame): return getattr(frame, 'f_back')\ndef here(frame): return frame.f_code"
    hides = "class A:\n    def __getattr__(self, name): return 1\nclass B:\n    pass"
    package = made_of(tmp_path, a=walks, b=hides)
    assert len(structure.walks_of_frames(package)) == 1
    assert len(structure.answers_for_others(package)) == 1


COPIED = """
def total(rows, weight):
    found = {}
    for row in rows:
        if row.name not in found:
            found[row.name] = 0.0
        found[row.name] += weight * row.value
    return {name: value / len(rows) for name, value in found.items()}
"""


@pytest.mark.parametrize(
    "other, found",
    [
        (COPIED, 1),
        (re.sub(r"\b(row|weight|found)\b", r"my_\1", COPIED), 1),
        (COPIED.replace("0.0", "1"), 1),
        (COPIED.replace("    for", "    # why\n\n    for"), 1),
        (COPIED.replace("+=", "-="), 0),
        ("", 0),
    ],
)
def test_near_duplicates_are_found(tmp_path, other, found):
    assert len(repeats(made_of(tmp_path, a=COPIED, b=other))) == found


def test_a_copy_in_the_same_file_is_one_and_a_common_form_is_none(tmp_path):
    assert len(repeats(made_of(tmp_path, a=f"{COPIED}\n{COPIED}"))) == 1
    fields = "class A:\n" + "".join(f"    {name}: int\n" for name in "abcdefgh")
    others = "class B:\n" + "".join(f"    {name}: str\n" for name in "ijklmnop")
    assert not repeats(made_of(tmp_path, a=fields, b=others))
    many = {f"f{number}": COPIED for number in range(9)}
    assert not repeats(made_of(tmp_path, a="", b="", **many))


def test_a_road_costs_what_a_reader_opens(tmp_path):
    folder = tmp_path / "shardkit"
    folder.mkdir()
    package = made_of(folder, a="TABLE = {1: 2}\nclass A:\n    def f(self): pass")
    page = tmp_path / "hops.md"
    page.write_text(
        "- `shardkit/a.py`: `B`\n\n**The road.**\n\n- `shardkit/a.py`: `TABLE`, `A.f`\n"
    )
    (title, road), *others = roads.read_roads(page).items()
    assert title == "The road" and not others
    assert road.measured(package) == {"files": 1, "definitions": 2, "nodes": 6 + 4}
    whole = roads.Road({"shardkit/a.py": ("TABLE", "A", "A.f")})
    assert whole.measured(package)["nodes"] == 6 + 5  # A.f stands in A
    with pytest.raises(LookupError, match="A.g is not defined"):
        roads.Road({"shardkit/a.py": ("A.g",)}).measured(package)


def test_a_dense_line_is_one_on_which_many_nodes_begin(tmp_path):
    dense = f"x = [{', '.join('a' * 13)}]"  # 5 nodes, and 2 for each name
    sparse = "x = [\n" + "    a,\n" * 40 + "]"
    package = made_of(tmp_path, a=f"{sparse}\n\n{dense}\n", b=dense.replace("a, ", "", 1))
    assert structure.dense_lines(package) == ["a.py:44"]


def test_the_flags_of_keepers_are_those_that_they_have(package):
    flags = structure.flags_of(package)
    assert {"in_groups", "updates_all"} <= flags
    for name in structure.KEEPERS:
        assert (ROOT / "shardkit" / name).exists()


# ---- what tests know of the inside ---------------------------------------------------------------

PUBLIC = ("shardkit", "shardkit.nn", "shardkit.nn.ops")
# How often a file of tests goes past the public names and the doors of shardkit.testing.
PAST_THE_DOORS = {
    "pure/test_imports.py": 8,  # which files and rooms are imported, and by which name
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
        monkeypatch.setattr(comm, "NO_ROOM_NAME", "other")
    monkeypatch.setattr("shardkit.testing.comm.ledger.NO_ROOM_NAME", "other")
    assert comm.NO_ROOM_NAME == comm.ledger.NO_ROOM_NAME == "other"


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
