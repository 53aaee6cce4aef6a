"""Whose code runs: what a checkpoint or a run folder names is imported only if the caller's program
has done so, or allows it; and nothing of it runs before that is known.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy
import pytest
from e2e.in_folders_rank import said_in

import shardkit as sk
from shardkit import ConfigurationError, nn
from shardkit.testing.cli import Given, main, trust_in
from shardkit.testing.files import Trust, import_file, is_class_of, known
from shardkit.testing.task import TableMLP
from shardkit.testing.train import TrainedRun, stored_settings, task_of_run, train_run

ROOT = Path(__file__).parents[2]
IN_FOLDERS = ROOT / "tests" / "e2e" / "in_folders_rank.py"
X = numpy.random.default_rng(0).standard_normal((4, 3)).astype("float32")
NET = """
open({mark!r}, "a").write("run ")
from shardkit import nn

class Net(nn.Linear):
    def __init__(self, width=2):
        super().__init__(3, width)
        self.width = width

    def configuration(self):
        return {{"width": self.width}}

class Outer:
    Inner = Net
"""


class Net(nn.Linear):
    """What is stored under whatever name a test gives it."""

    def __init__(self):
        super().__init__(3, 2)

    def configuration(self):
        return {"width": 2}


def image_of(path: str) -> bytes:
    """The image of a model that is said to be of this class, "module:Class"."""
    module, _, name = path.partition(":")
    described = type(name or "x", (Net,), {"__module__": module, "__qualname__": name})

    def run(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.MeanSquaredError())
        return sk.DDPModel(described().finish(0), config).serialize()

    return sk.run_ranks(1, run)[0]


@pytest.fixture
def theirs(tmp_path, request, monkeypatch):
    """(name of a module that nobody has imported, its file, the mark that it leaves)"""
    name = f"theirs_{abs(hash(request.node.nodeid))}"
    mark = tmp_path / "mark"
    folder = tmp_path / "code" / "package_of_theirs"
    folder.mkdir(parents=True)
    file = folder / f"{name}.py"
    file.write_text(NET.format(mark=str(mark)))
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])  # import would find it
    yield name, file, mark
    sys.modules.pop(name, None)


# ---- models --------------------------------------------------------------------------------------


def test_a_module_that_nobody_has_imported_is_named_and_not_run(theirs):
    name, file, mark = theirs
    image = image_of(f"{name}:Net")
    with pytest.raises(sk.CheckpointError, match=f"{name}:Net .*has not imported.*trust="):
        sk.load(image)
    assert not mark.exists() and name not in sys.modules
    __import__(name)
    assert type(sk.load(image)).__name__ == "Net" and mark.read_text() == "run "


def test_each_form_of_trust_allows_it_and_others_do_not(theirs, tmp_path, monkeypatch):
    name, file, mark = theirs
    image = image_of(f"{name}:Outer.Inner")
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("")
    for wrong in (None, [], other, other / "a.py", sk.nn.Linear, sk.nn, [str(other), json]):
        with pytest.raises(sk.CheckpointError, match="has not imported"):
            sk.load(image, trust=wrong)
    assert not mark.exists()
    for right in (file, str(file), file.parent, file.parents[1], [other, file]):
        monkeypatch.setattr(sys, "path", list(sys.path))
        assert sk.load(image, trust=right).predict(X).shape == (4, 2)
        sys.modules.pop(name)
    assert mark.read_text() == "run " * 5
    module = __import__(name)
    sys.modules.pop(name)
    own = type("Inner", (module.Net,), {"__module__": name, "__qualname__": "Outer.Inner"})
    assert type(sk.load(image, trust=own)) is own
    assert sk.load(image, trust=[module]).predict(X).shape == (4, 2)


def test_a_module_of_a_package_is_found_by_each_path_that_holds_it(theirs, tmp_path, monkeypatch):
    name, file, mark = theirs
    package = tmp_path / "elsewhere" / f"p{name}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(file.read_text())
    image = image_of(f"p{name}.nets:Net")
    with pytest.raises(sk.CheckpointError, match="has not imported"):
        sk.load(image, trust=file.parent)
    for right in (package.parent, package, package / "nets.py", tmp_path):
        path = [*sys.path, *([str(package.parent)] if right == tmp_path else [])]
        monkeypatch.setattr(sys, "path", path)
        assert sk.load(image, trust=right).predict(X).shape == (4, 2)
        monkeypatch.undo()
        for module in (f"p{name}", f"p{name}.nets"):
            sys.modules.pop(module)
    assert mark.read_text() == "run " * 4


def test_a_trusted_folder_lends_its_trust_to_no_module_of_the_same_name(theirs, tmp_path):
    """Their file comes first in sys.path; the trusted one is another."""
    name, file, mark = theirs
    mine = tmp_path / "mine" / f"{name}.py"
    mine.parent.mkdir()
    mine.write_text(NET.format(mark=str(tmp_path / "own mark")))
    with pytest.raises(sk.CheckpointError, match="would run .*package_of_theirs"):
        sk.load(image_of(f"{name}:Net"), trust=mine)
    assert not mark.exists() and not (tmp_path / "own mark").exists()


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:exec",
        "builtins:type",
        "sys:exit",
        "shardkit.cli:main",
        "shardkit.nn:ops.gelu",
        "shardkit.nn:Module.__subclasses__",
        "shardkit.nn.nothing:Net",
        "shardkit.__main__:main",
        "shardkit.gpu.transports.trials:main",
        "this:Net",
        "antigravity:Net",
        "..:Net",
        "a/b:Net",
        ":Net",
        "",
        "numpy:ndarray",
        "numpy:float128.__class__",
    ],
)
def test_what_is_no_class_of_modules_is_refused_before_anything_is_called(path, capfd):
    before = set(sys.modules)
    with pytest.raises(sk.CheckpointError):
        sk.load(image_of(path or "x:"))
    new = {name for name in sys.modules if name not in before}
    assert not new & {"this", "antigravity", "shardkit.__main__", "shardkit.gpu.transports.trials"}
    assert capfd.readouterr().out == ""


def test_looking_up_a_name_runs_no_getattr_no_property_and_no_metaclass(monkeypatch):
    called = []

    class Meta(type):
        def __getattribute__(cls, name):
            called.append(name)
            return super().__getattribute__(name)

        def __instancecheck__(cls, instance):
            called.append("instance")
            return True

        def __subclasscheck__(cls, other):
            called.append("subclass")
            return True

    Lying = type.__new__(Meta, "Lying", (), {})
    module = type(sys)("lying_module")
    module.__getattr__ = lambda name: called.append(name)
    module.Lying = Lying
    module.thing = type("Thing", (), {"__class__": property(lambda self: called.append("class"))})()
    monkeypatch.setitem(sys.modules, "lying_module", module)
    called.clear()
    assert known("lying_module", ["nothing"]) is None
    assert known("lying_module", ["thing", "x"]) is None
    assert not is_class_of(known("lying_module", ["Lying"]), nn.Module)
    assert not is_class_of(known("lying_module", ["thing"]), nn.Module)
    assert not called


@pytest.mark.thorough
def test_sizes_that_a_file_invents_end_early(monkeypatch):
    def run(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.MeanSquaredError())
        return sk.DDPModel(sk.models.MLP([3, 2]), config).serialize()

    for sizes in ([3] + [1] * 10**5 + [2], [3, 10**15, 2], [3, -1, 2], [3, "x", 2], "abc", None, 1):
        monkeypatch.setattr(sk.models.MLP, "configuration", lambda self: {"sizes": sizes})  # noqa: B023
        image = sk.run_ranks(1, run)[0]
        with pytest.raises(sk.CheckpointError):
            sk.load(image)


@pytest.mark.parametrize("wrong", [3, b"x", {"a": 1}, "nowhere.py", [None, 2.5], "/dev/null"])
def test_a_trust_that_is_nothing_of_these_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="trust.*wanted"):
        sk.load(b"", trust=wrong)


# ---- tasks ---------------------------------------------------------------------------------------

TASK = """
open({mark!r}, "a").write("run ")
import shardkit as sk
import beside_{name}
from shardkit.testing.task import TableMLP

class Mine(TableMLP):
    pass

def mine(settings):
    return Mine(settings)
"""


@pytest.fixture
def run_folder(tmp_path, request):
    """(folder of a run of a table, the file of a task that nobody has imported, its mark)"""
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"] = numpy.random.default_rng(0).random((60, 4)).astype("f4")
        file["y"] = file["x"][:, 0]
    values = [f"--run.folder={tmp_path / 'run'}", f"--data.path={tmp_path / 't.h5'}"]
    values += ["--data.target=y", "--data.features=x", "--run.steps=2", "--run.checkpoint_every=1"]
    values += ["--batch.sequences=4", "--batch.micro_batch=2"]
    settings = Given.read(None, ["--run.task=table", *values]).settings()
    sk.run_ranks(1, lambda backend: train_run(settings, backend))
    name = f"task_{abs(hash(request.node.nodeid))}"
    mark, file = tmp_path / "mark", tmp_path / f"{name}.py"
    file.write_text(TASK.format(mark=str(mark), name=name))
    (tmp_path / f"beside_{name}.py").write_text("")
    return tmp_path / "run", file, mark


def names_task(folder: Path, task) -> None:
    path = folder / "configuration.json"
    tables = json.loads(path.read_text())
    tables["run"]["task"] = task
    path.write_text(json.dumps(tables))


@pytest.mark.parametrize("attribute", ["Mine", "mine"])
def test_the_task_of_a_run_folder_is_not_run_unless_it_is_named(run_folder, attribute):
    folder, file, mark = run_folder
    task = f"{file}:{attribute}"
    names_task(folder, task)
    words = [f"--run.folder={folder}", "--run.steps=3"]
    for resume in ((True, False), (False, True)):
        with pytest.raises(ConfigurationError, match=r"nothing of it was run.*--trust .*\.py"):
            Given.read(None, words).of_run(*resume, bool)
    with pytest.raises(ConfigurationError, match="nothing of it was run"):
        stored_settings(folder)
    with pytest.raises(ConfigurationError, match="nothing of it was run"):
        sk.run_ranks(1, lambda backend: TrainedRun(folder, {}, backend))
    for other in ("table", f"{folder}/other.py:Mine", "language", f"{file}:Other"):
        with pytest.raises(
            ConfigurationError, match="run.task = .*goes on with|no file|has no Other"
        ):
            Given.read(None, [f"--run.task={other}", *words]).of_run(True, False, bool)
        if not other.startswith(str(file)):
            assert not mark.exists()
    sys.modules.pop(file.stem, None)
    mark.unlink(missing_ok=True)
    for trust in (Trust.of(file), Trust.of(file.parent), trust_in([], task)):
        assert task_of_run(folder, trust).__name__ == attribute
        sys.modules.pop(file.stem)
    assert mark.read_text() == "run " * 3
    if attribute == "Mine":  # what the function makes has other settings than are stored
        found, resumes = Given.read(None, [f"--run.task={task}", *words]).of_run(False, True, bool)
        assert resumes and found.run.task == task


def test_a_class_that_the_program_has_imported_is_the_task(run_folder, monkeypatch):
    folder, file, mark = run_folder
    monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
    for task in (f"{file}:Mine", f"{file.stem}:Mine"):
        names_task(folder, task)
        with pytest.raises(ConfigurationError, match="nothing of it was run"):
            task_of_run(folder)
    module = __import__(file.stem)
    assert task_of_run(folder) is module.Mine
    for other in ("mine", "sk", "Missing"):
        names_task(folder, f"{file.stem}:{other}")
        with pytest.raises(ConfigurationError, match="nothing of it was run"):
            task_of_run(folder)
    elsewhere = folder / file.name
    elsewhere.write_text(file.read_text())
    names_task(folder, f"{elsewhere}:Mine")
    with pytest.raises(ConfigurationError, match="nothing of it was run"):
        task_of_run(folder)


@pytest.mark.parametrize(
    "task",
    ["os:system", "subprocess:Popen", "this:x", "x.py:y", "../x.py:y", "/dev/null:x", "a.b.c:d"]
    + [":", "", ".py:x", "script", "languag", "a b:c", 3, None, [], {}, True, "\x1b]0;x\x07:x"],
)
@pytest.mark.thorough(but=6)
def test_whatever_stands_there_is_a_typed_error(run_folder, task, capfd):
    folder, _, _ = run_folder
    names_task(folder, task)
    with pytest.raises(ConfigurationError):
        task_of_run(folder)
    assert main(["train", "--resume", f"--run.folder={folder}", "--print-settings"]) == 2
    assert "\x1b" not in capfd.readouterr().err


def test_a_training_of_a_script_goes_on_with_its_own_task_and_imports_none(run_folder):
    folder, file, mark = run_folder
    names_task(folder, f"{file}:Mine")

    class Own(TableMLP):
        pass

    def run(backend):
        settings = {"data.path": str(folder.parent / "t.h5"), "data.target": "y"}
        sk.Training(Own, folder=folder, settings=settings, backend=backend).run()

    with pytest.raises(ConfigurationError, match="run.task = 'script', but this run goes on with"):
        sk.run_ranks(1, run)
    assert not mark.exists()


# ---- commands ------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_command_that_takes_a_run_folder_runs_nothing_of_it(run_folder, tmp_path):
    folder, file, mark = run_folder
    names_task(folder, f"{file}:Mine")
    runs = {
        "evaluate": [folder],
        "predict": [folder, "--output", folder / "out.h5"],
        "train": ["--resume", f"--run.folder={folder}", "--run.steps=3"],
        "inspect": [folder],
        "report": [folder],
        "diff": [folder, folder],
        "generate": [folder],
        "convert": ["--to", "safetensors", folder, folder / "new"],
        "inspect hang": [folder],
    }
    said = one_behind_the_other(tmp_path, runs)
    assert not mark.exists(), said
    assert "Traceback" not in "".join(said.values())
    refused = [command for command, error in said.items() if "--trust" in error]
    assert refused == ["evaluate", "predict", "train"]
    for command in refused:
        done = command_of(command, [*runs[command], "--trust", file])
        assert done.returncode == 0, done.stderr
    assert mark.read_text() == "run " * 3


def one_behind_the_other(above, runs):
    """Run commands in one process; return what each wrote to standard error."""
    folders = {command: above / f"of {command}" for command in runs}
    for folder in folders.values():
        folder.mkdir()
    words = {str(folders[name]): [*name.split(), *map(str, runs[name])] for name in runs}
    program = [sys.executable, "-P", IN_FOLDERS, json.dumps(words)]
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return {command: said_in(folder)[1][0] for command, folder in folders.items()}


def command_of(command, words):
    program = [sys.executable, "-P", "-m", "shardkit", *command.split(), *map(str, words)]
    return subprocess.run(program, capture_output=True, text=True, timeout=500)


def test_ranks_that_are_threads_get_the_whole_of_a_file(tmp_path):
    path = tmp_path / "slowly_made.py"
    path.write_text("import time; time.sleep(0.3)\nclass Surrogate:\n    pass\n")
    try:
        found = sk.run_ranks(3, lambda backend: import_file(path).Surrogate)
    finally:
        sys.modules.pop("slowly_made", None)
    assert len(set(found)) == 1
