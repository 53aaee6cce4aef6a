"""What an import, a construction and a command read: which libraries, how many files, and when.

A job of 4,096 ranks starts as many Pythons on one file system, so each file that a rank asks for
in vain or too early is asked for 4,096 times.
"""

import ast
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

import pytest
from file_calls import file_calls_in, needs_strace, traced
from sources import files

import shardkit as sk
from shardkit.testing.comm import same

PACKAGE = Path(sk.__file__).parent
HEAVY = "cupy email h5py importlib.metadata llvmlite mpi4py numba rich scipy".split()


def rooms_with(call):
    """Return the rooms whose names stand in a table, read by this function of public.py."""
    return [
        ".".join(["shardkit", *path.parent.relative_to(PACKAGE).parts])
        for path in sorted(PACKAGE.rglob("__init__.py"))
        if f"{call}(" in path.read_text(encoding="utf-8")
    ]


ROOMS = rooms_with("public_names")  # with late names
EARLY = rooms_with("import_names")


def _script():
    spec = importlib.util.spec_from_file_location("stubs", PACKAGE.parent / "packaging/stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stubs = _script()
WRITTEN = stubs.stubs()

# (what is done, libraries that it may read, most file calls beyond those of Python alone)
TABLE = {
    "import": ("import shardkit", "", 600),
    "names": ("import shardkit as sk; [getattr(sk, name) for name in sk.__all__]", "", 5500),
    "model": (
        "import shardkit as sk; sk.models.GPT(64, 16, width=32, layers=2, heads=2)",
        "",
        2600,
    ),
    "backend": ("import shardkit as sk; sk.MPICommunicationBackend()", "mpi4py", 4500),
    "lines": (
        "import os, sys; os.environ['SHARDKIT_PROGRESS'] = 'lines'; "
        "from shardkit.testing.train import console_of; console_of(sys.stdout).print('a line')",
        "",
        4200,
    ),
    "help": (
        "from shardkit.testing.cli import make_parser; make_parser()",
        "email importlib.metadata",
        6500,
    ),
    "train": ("from shardkit.testing.cli import make_parser; make_parser('train')", "", 5200),
    "plan": ("from shardkit.testing.cli import make_parser; make_parser('plan')", "", 4200),
    "render": ("from shardkit.testing.cli import make_parser; make_parser('render')", "", 4200),
}

pytestmark = pytest.mark.xdist_group("sources")


def python(statement, *before):
    """Run a statement in a Python of its own; return what it prints."""
    done = subprocess.run(
        [*before, sys.executable, "-P", "-c", statement],
        cwd=PACKAGE.parent,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def file_calls(statement, folder):
    """Return the number of system calls that name a file or look at an open one."""
    loaded_by(statement)  # the files of compiled modules are there
    uncovered = ("env", "-u", "COVERAGE_PROCESS_CONFIG")  # coverage.py reads each file it traces
    python(statement, *uncovered, *traced(folder))
    return file_calls_in(folder)


@cache
def loaded_by(statement):
    """Return the names of the modules that are there after a statement."""
    said = python(f"{statement}\nimport json, sys; print(json.dumps(list(sys.modules)))")
    return json.loads(said.strip().splitlines()[-1])


@cache
def file_calls_of_python():
    """Return those of a Python that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        return file_calls("pass", Path(folder))


@pytest.mark.parametrize("what", TABLE)
@pytest.mark.thorough(but=3)
def test_nothing_is_imported_before_it_is_needed(what):
    statement, allowed, _ = TABLE[what]
    assert set(HEAVY) & set(loaded_by(statement)) <= set(allowed.split())


@needs_strace
@pytest.mark.parametrize("what", TABLE)
@pytest.mark.thorough(but=2)
def test_few_files_are_asked_for(what, tmp_path):
    statement, _, most = TABLE[what]
    found = file_calls(statement, tmp_path) - file_calls_of_python()
    assert 0 < found <= most


def test_an_import_of_shardkit_opens_few_of_its_files():
    opened = json.loads(
        python(
            "import json, sys\n"
            "names = []\n"
            "sys.addaudithook(lambda event, given: names.append(str(given[0])) "
            "if event == 'open' else None)\n"
            "import shardkit\n"
            "print(json.dumps(names))"
        )
    )
    own = [name for name in opened if name.startswith(str(PACKAGE))]
    assert 0 < len(own) <= 8 and len(opened) < 100


START = """
import json, sys
import numpy
import shardkit as sk
config = sk.ShardingConfiguration(
    sk.InMemoryCommunicationBackend(0, 1, environment_id="one"), optimizer=sk.AdamW(lr=1e-3)
)
model = sk.FSDPModel(sk.models.GPT(64, 16, width=32, layers=2, heads=2), config)
tokens = numpy.random.default_rng(0).integers(0, 64, (4, 17))
new = []
for step in range(3):
    before = set(sys.modules)
    model.train(tokens[:, :-1], tokens[:, 1:])
    new.append(sorted(set(sys.modules) - before))
print(json.dumps(new))
"""


def test_the_collector_rests_while_names_are_imported_and_does_not_walk_what_was_made():
    found = python(
        "import gc, shardkit as sk\n"
        "rounds = []\n"
        "gc.callbacks.append(lambda phase, about: rounds.append(phase))\n"
        "sk.FSDPModel, sk.Training\n"
        "print(rounds.count('start'), gc.isenabled(), len(gc.get_objects(2)) > 20_000)\n"
        "gc.disable()\n"
        "sk.TableTask\n"
        "print(gc.isenabled(), gc.get_freeze_count())"
    )
    assert found.split() == ["0", "True", "True", "False", "0"]


def test_what_a_program_has_frozen_stays_so_when_names_are_imported():
    found = python(
        "import gc, shardkit as sk\n"
        "gc.freeze()\n"
        "before = gc.get_freeze_count()\n"
        "sk.FSDPModel\n"
        "print(gc.get_freeze_count() == before)"
    )
    assert found == "True\n"


@pytest.mark.parametrize(("given", "is_ours"), [("", True), ("['--version']", False)])
def test_a_command_leaves_its_modules_out_of_collections_of_its_own_process(given, is_ours):
    found = python(
        "import gc, sys\n"
        "from shardkit.testing.cli import main\n"
        "sys.argv = ['shardkit', '--version']\n"
        "try:\n"
        f"    main({given})\n"
        "except SystemExit:\n"
        "    print(gc.get_freeze_count(), gc.isenabled())"
    )
    frozen, is_enabled = found.splitlines()[-1].split()
    assert (int(frozen) > 10_000, is_enabled) == (is_ours, "True")


def test_a_step_imports_nothing_but_kernels():
    """An import in the middle of a step would let all other ranks wait."""
    first, *others = json.loads(python(START).strip().splitlines()[-1])
    own = {name for name in first if name.startswith("shardkit.")}
    assert others == [[], []]
    # who may have written machine code that is read, which rank compiles it, and in which process
    assert not {name for name in own if not name.startswith("shardkit.array.cpu")} - {
        "shardkit.files.claims",
        "shardkit.files.programs",
        "shardkit.files.writers",
    }


# ---- the names of rooms --------------------------------------------------------------------------


@cache
def listed(room):
    """Return {name: (file, name there)} of the table of a room."""
    path = PACKAGE.joinpath(*room.split(".")[1:], "__init__.py")
    return stubs.places_of(stubs.table_of(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("room", [*ROOMS, *EARLY])
def test_a_room_has_what_its_table_lists(room):
    module, table = import_module(room), listed(room)
    assert table and module.__all__ == sorted(table) and set(table) <= set(dir(module))
    for name, (file, there) in table.items():
        home = import_module(room if file == "." else f".{file}", room)
        found = getattr(module, name)  # operations have doors
        behind = getattr(found, "__wrapped__", None)
        assert getattr(home, there) in (found, behind), name


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.parent.name)
def test_type_checkers_read_what_a_table_lists(path):
    assert path.read_text(encoding="utf-8") == WRITTEN[path], "run python packaging/stubs.py"


def test_no_stub_of_a_room_is_left_over():
    assert set(PACKAGE.rglob("__init__.pyi")) == set(WRITTEN)


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_is_that_of_a_file(room):
    """An import of the file would put itself in the place of the name."""
    folder = PACKAGE.joinpath(*room.split(".")[1:])
    files = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    own = {name for name, (file, _) in listed(room).items() if file != "."}
    assert not files & own


def test_files_import_from_files_and_not_from_rooms_with_late_names():
    """Such an import would wait for the lock of public.py while it holds those of modules."""
    early = {("shardkit.nn", "ops")}  # which is imported before there are late names
    wrong = []
    for path, module in files():
        parts = ["shardkit", *path.with_suffix("").parts]
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.level and path.name != "__init__.py":
                room = ".".join([*parts[: len(parts) - node.level], *filter(None, [node.module])])
                late = set(listed(room)) if room in ROOMS else set()
                wrong += [
                    f"{path} imports {alias.name} from {room}"
                    for alias in node.names
                    if alias.name in late and (room, alias.name) not in early
                ]
    assert not wrong, "\n".join(wrong)


def test_the_rooms_with_late_names_are_those_that_are_large():
    assert {"shardkit", "shardkit.comm", "shardkit.nn", "shardkit.parallel"} <= set(ROOMS)


def test_a_star_imports_all_names():
    rooms = [*ROOMS, *EARLY]
    told = python(
        f"for room in {rooms}:\n"
        "    names = {}\n"
        "    exec(f'from {room} import *', names)\n"
        "    print(*sorted(names))"
    ).splitlines()
    for room, names in zip(rooms, told, strict=True):
        assert set(import_module(room).__all__) <= set(names.split()), room


def test_a_name_that_is_not_there_is_an_attribute_error():
    for module, name in ((sk, "Nothing"), (sk.nn, "nothing"), (sk.comm, "_private")):
        assert not hasattr(module, name)
        with pytest.raises(AttributeError, match=f"{module.__name__}.*{name}"):
            getattr(module, name)
    with pytest.raises(ImportError, match="nothing"):
        exec("from shardkit import nothing")


def test_files_and_folders_are_attributes_without_an_import():
    out = python("import shardkit as sk; print(sk.checkpoint.find.__name__, sk.nn.Linear)")
    assert out.startswith("shardkit.checkpoint.find <class")


def test_a_library_that_is_missing_is_not_taken_for_a_missing_name():
    out = python(
        "import sys; sys.modules['numpy'] = None\n"
        "import shardkit as sk\n"
        "for name in ('FSDPModel', 'nn', 'AdamW'):\n"
        "    try: hasattr(sk, name)\n"
        "    except ImportError as error: print(error)\n"
        "    else: print('hidden')"
    )
    assert out.count("numpy") == 3 and "hidden" not in out


THREADS = """
import threading
import shardkit as sk

start = threading.Barrier(8)
found = []

def ask(first):
    names = sk.__all__[first * 8 :] + sk.__all__[: first * 8]
    start.wait()
    found.append({name: getattr(sk, name) for name in names})

threads = [threading.Thread(target=ask, args=(first,)) for first in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), all(each == found[0] for each in found), set(found[0]) == set(sk.__all__))
"""


def test_threads_may_ask_for_their_first_names_at_once():
    assert python(THREADS).split() == ["8", "True", "True"]


def test_what_was_pickled_is_read_where_nothing_was_imported():
    pickled = pickle.dumps((sk.AdamW(lr=1e-3), sk.FSDPModel, sk.nn.Linear)).hex()
    out = python(f"import pickle; print(*pickle.loads(bytes.fromhex('{pickled}')))")
    assert "AdamW" in out and "FSDPModel" in out and "Linear" in out


def test_a_module_of_ones_own_comes_from_a_checkpoint_before_any_was_imported(tmp_path):
    out = python(
        "import shardkit as sk\n"
        "class Own(sk.nn.Module): pass\n"
        f"try: Own.from_checkpoint({str(tmp_path)!r})\n"
        "except sk.CheckpointError as error: print('asked', error)\n"
        "print(Own.from_checkpoint.__doc__ == sk.nn.Module.from_checkpoint.__doc__ != None)"
    )
    assert out.startswith("asked") and out.endswith("True\n")


def test_a_checkpoint_may_name_a_model_by_its_room():
    """As those did that were written before classes had a path."""
    out = python(
        "from shardkit.testing.checkpoint import CodeNames\n"
        "from shardkit.testing.files import Trust\n"
        "names = CodeNames('here', Trust.of(None))\n"
        "for path in ('shardkit.nn.models:FNO', 'shardkit.nn:LSTM', 'shardkit.nn.models:MLP'):\n"
        "    print(names.module_class(path).__name__)"
    )
    assert out.split() == ["FNO", "LSTM", "MLP"]


def test_the_version_of_a_package_is_that_of_its_record(tmp_path, monkeypatch):
    for package in ("numba", "numpy", "h5py"):
        assert same._version_of(package) == metadata.version(package)
    assert same._version_of("no-such-package") == "unknown"
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("Numba-9.0.1.post2.dist-info", "numba_extra-1.0.dist-info", "numba-10.txt"):
        (tmp_path / name).mkdir()
    assert same._version_of("numba") == "9.0.1.post2"
    (tmp_path / "Numba-9.0.1.post2.dist-info").rename(tmp_path / "numba-0.7-py3.11.egg-info")
    assert same._version_of("numba") == "0.7"


def test_a_run_compares_versions_without_the_library_that_reads_them():
    out = python(
        "import sys\nfrom shardkit.testing.comm import versions\n"
        "print('the version of numba' in versions(), 'importlib.metadata' in sys.modules)"
    )
    assert out.split() == ["True", "False"]
