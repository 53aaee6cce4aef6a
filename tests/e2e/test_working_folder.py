"""Every command in a folder of traps: a file for each module of the standard library and of the
libraries in use, and programs of the names that shardkit asks for. None of them is run, and each
command does what it does elsewhere.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy
import pytest
from e2e.commands_rank import ENDED
from e2e.mpi_jobs import ROOT, python_of

from shardkit.testing.cli import make_parser
from shardkit.testing.comm import own_warden
from shardkit.testing.files import find_program, import_folders, python_command

BIN = Path(sys.executable).parent
BEHIND_EACH_OTHER = Path(__file__).with_name("commands_rank.py")
LIBRARIES = {"cupy", "h5py", "mpi4py", "numba", "numpy", "rich", "shardkit", "threadpoolctl"}
LIBRARIES |= {"pyarrow", "scipy", "tokenizers", "torch", "transformers", "xxhash", "yaml"}
LIBRARIES |= {"sitecustomize", "usercustomize"}
PROGRAMS = ("mpiexec", "squeue", "scontrol", "sinfo", "git", "gcc", "ldconfig", "nvidia-smi", "sh")
# what `python -m` imports before it comes to the package, by way of runpy
PYTHONS_OWN = {"importlib", "collections", "keyword", "operator", "reprlib", "functools", "types"}
PYTHONS_OWN |= {"warnings", "contextlib"}
TRAP = """import os
os.close(os.open({marks!r} + "/{name}", os.O_CREAT | os.O_WRONLY))
raise SystemError("the file {name}.py of the working folder was run")
"""
SMALL = [
    *("--run.steps=2", "--run.checkpoint_every=2", "--run.report_every=1"),
    *("--batch.sequences=4", "--batch.micro_batch=2", "--optimizer.decay_steps=9"),
]
TABLE = ["--task=table", "--data.path={at}/t.h5", "--data.target=y", "--data.features=x"]
TEXT = [
    *("--model.width=16", "--model.layers=1", "--model.heads=2", "--model.sequence_length=16"),
    *("--data.path={at}/text.txt", "--sample.tokens=0"),
]
ARGUMENTS = {  # of each command; {at}: a folder with runs, {out}: an empty one
    "train": [*TABLE, *SMALL, "--run.folder={out}/run"],
    "sweep": ["{at}/sweep.toml", *TABLE, *SMALL, "--sweep.folder={out}/sweep"],
    "prepare": ["{at}/text.txt", "--tokenizer=bytes", "--output={out}/tokens.h5"],
    "evaluate": ["{at}/table"],
    "predict": ["{at}/table", "--output={out}/out.h5"],
    "bench": ["--steps=2", *TEXT, *SMALL],
    "bench hardware": ["--help"],
    "inspect": ["{at}/text", "--verify"],
    "inspect schedule": ["--svg={out}/x.svg"],
    "inspect hang": ["{at}/table"],
    "diff": ["{at}/text", "{at}/text"],
    "convert": ["--to=safetensors", "{at}/text", "{out}/folder"],
    "render": ["--template=single_node", "--ranks-per-node=2", *TEXT, *SMALL],
    "plan": ["{at}/plan.toml", "cpu-node", "--devices=4"],
    "doctor": [],
    "compile": ["--help"],
    "flags": ["--fortran"],
    "generate": ["{at}/text", "--tokens=3", "--prompt=a"],
    "report": ["{at}/table", "--output={out}/report.html"],
}
ON_RANKS = ("train", "prepare", "evaluate", "predict", "sweep", "bench", "doctor", "generate")
ALONE = [command for command in ARGUMENTS if command not in ON_RANKS[1:6]]  # by the entry point


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A folder with data, two runs, and a file of settings."""
    folder = tmp_path_factory.mktemp("made")
    with h5py.File(folder / "t.h5", "w") as file:
        file["x"] = numpy.random.default_rng(0).random((60, 4)).astype("f4")
        file["y"] = file["x"][:, 0]
    (folder / "text.txt").write_text("".join(f"line {i} of a text\n" for i in range(300)))
    (folder / "sweep.toml").write_text("[try.run]\nseed = [0, 1]\n")
    (folder / "plan.toml").write_text("[model]\nwidth = 256\nlayers = 4\nheads = 4\n")
    for name, more in (("table", TABLE), ("text", TEXT)):
        words = [word.format(at=folder) for word in more]
        run([BIN / "shardkit", "train", *words, *SMALL, f"--run.folder={folder / name}"], folder)
    return folder


@pytest.fixture
def traps(tmp_path):
    """(working folder, folder of the marks that traps leave)"""
    folder, marks = tmp_path / "work", tmp_path / "marks"
    folder.mkdir()
    marks.mkdir()
    for name in sys.stdlib_module_names | LIBRARIES:
        (folder / f"{name}.py").write_text(TRAP.format(marks=str(marks), name=name))
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\n: > {marks}/{name}\nexit 1\n")
        (folder / name).chmod(0o755)
    (folder / ".numba_config.yaml").write_text(f"cache_dir: {folder}\ndisable_jit: 0\n")
    return folder, marks


def run(command, folder, **environment):
    path = {"PATH": f":.:{os.environ['PATH']}:"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "1", **path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


def words_of(command, at, out):
    return [*command.split(), *(word.format(at=at, out=out) for word in ARGUMENTS[command])]


def test_every_command_is_in_the_table():
    assert ARGUMENTS.keys() == make_parser()[1].keys()


@pytest.mark.parametrize("command", ALONE)
def test_no_file_of_the_working_folder_is_run(at, traps, tmp_path, command):
    folder, marks = traps
    done = run([BIN / "shardkit", *words_of(command, at, tmp_path)], folder)
    assert not list(marks.iterdir())
    assert done.returncode == 0, done.stderr
    assert "watches over a rank" not in done.stderr
    if command == "doctor":
        assert "error 0" in done.stdout


def test_none_is_run_on_two_ranks_by_any_of_the_commands_of_a_job(at, traps, tmp_path):
    folder, marks = traps
    commands = [words_of(command, at, tmp_path) for command in ON_RANKS]
    launcher = [BIN / "mpiexec", "-n", 2, python_of("MPICH")]
    done = run([*launcher, BEHIND_EACH_OTHER, json.dumps(commands)], folder)
    assert not list(marks.iterdir())
    assert done.returncode == 0 and done.stdout.count(ENDED) == len(commands), done.stderr
    assert "watches over a rank" not in done.stderr and "error 0" in done.stdout


@pytest.mark.parametrize("task", ["own_task.py:Own", "own_task:Own"])
def test_a_task_in_a_folder_of_traps_imports_what_is_beside_it_and_no_trap(
    at, traps, tmp_path, task
):
    folder, marks = traps
    (folder / "besides.py").write_text("NAME = 1\n")
    (folder / "own_task.py").write_text(
        "import json, subprocess, mpi4py, h5py, numpy, shardkit, besides\n"
        "from shardkit.testing.task import TableMLP\nclass Own(TableMLP):\n    pass\n"
    )
    python_of("MPICH")
    words = words_of("train", at, tmp_path)
    words[1] = f"--task={task}"
    done = run([BIN / "mpiexec", "-n", 2, BIN / "shardkit", *words], folder)
    assert done.returncode == 0 and not list(marks.iterdir()), done.stderr
    for allowed in ("--trust=.", f"--task={task}"):
        done = run([BIN / "shardkit", "evaluate", tmp_path / "run", allowed], folder)
        assert done.returncode == 0 and not list(marks.iterdir()), done.stderr


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_python_m_runs_none_either_but_for_what_python_itself_imports_before(
    at, traps, tmp_path, command
):
    folder, marks = traps
    words = words_of(command, at, tmp_path)
    program = [sys.executable, "-P", "-m", "shardkit"]
    done = run([*program, *words], folder)
    assert done.returncode == 0 and not list(marks.iterdir()), done.stderr
    for name in (*PYTHONS_OWN, "shardkit"):
        (folder / f"{name}.py").unlink()
    out = tmp_path / "second"
    out.mkdir()
    done = run([sys.executable, "-m", "shardkit", *words_of(command, at, out)], folder)
    assert done.returncode == 0 and not list(marks.iterdir()), done.stderr


# ---- a program of the user's own -----------------------------------------------------------------

PROGRAM = """
import sys
import shardkit as sk
sys.path.append({traps!r})         # files of the user's, behind the libraries
backend = sk.MPICommunicationBackend(timeout=60.0)
backend.initialize()
{deed}
backend.shutdown()
"""


def job(tmp_path, deed, work, before=""):
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(before + PROGRAM.format(traps=str(work), deed=deed))
    return run([BIN / "mpiexec", "-n", 2, python_of("MPICH"), script], work)


def test_a_warden_of_another_program_runs_none_either(traps, tmp_path):
    done = job(tmp_path, "", traps[0])
    assert done.returncode == 0 and not list(traps[1].iterdir()) and not done.stderr


KILL = """
import time
from shardkit.testing.comm import attendance
if backend.rank == 1:
    attendance().warden.process.kill()
    while attendance().warden.ended is None:
        time.sleep(0.05)
"""


def test_a_warden_that_ends_early_is_said_once_with_its_rank(tmp_path):
    done = job(tmp_path, KILL, tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("has ended early (rank 1: killed by signal 9)") == 1, done.stderr


def test_a_warden_that_cannot_begin_is_said_on_all_ranks_with_its_reason(tmp_path):
    before = (
        "import os\nfrom pathlib import Path\nfrom shardkit.testing.comm import own_warden\n"
        "if os.environ['PMI_RANK'] == '0':\n"
        "    own_warden._PACKAGE = Path('/nowhere')\n"
    )
    done = job(tmp_path, "", tmp_path, before)
    assert done.returncode == 0
    reason = f"rank 0: ModuleNotFoundError: No module named {own_warden.__package__!r}"
    assert done.stderr.count(reason) == 3, done.stderr  # at once by rank 0, then by each rank


# ---- what is started -----------------------------------------------------------------------------


def test_an_isolated_python_imports_what_this_one_does_and_nothing_of_the_folder(traps, tmp_path):
    folder, marks = traps
    statement = "import sys, json, numpy, shardkit; print(sys.argv[1:], shardkit.__file__)"
    done = run(python_command(statement, "a", "b c"), folder, PYTHONPATH=str(folder))
    assert done.stdout == f"['a', 'b c'] {ROOT / 'shardkit/__init__.py'}\n", done.stderr
    assert not list(marks.iterdir())


def test_folders_of_pythonpath_go_along_and_the_working_folder_does_not(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/opt/lib", ".", "relative"])
    assert import_folders() == ["/opt/lib"]


def test_programs_are_found_in_folders_named_from_the_root_alone(monkeypatch, tmp_path):
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", f":{tmp_path.name}:", "./:.."):
        monkeypatch.setenv("PATH", path)
        assert find_program("squeue") is None
    monkeypatch.setenv("PATH", f".:{tmp_path}")
    assert find_program("squeue") == str(tmp_path / "squeue")


def test_every_process_of_the_package_is_started_by_these_roads():
    """A new subprocess must be isolated: it is named here once it is."""
    starts = {
        str(path.relative_to(ROOT / "shardkit"))
        for path in (ROOT / "shardkit").rglob("*.py")
        if any(word in path.read_text() for word in ("subprocess.run(", "subprocess.Popen("))
    }
    assert starts == {
        "array/cpu/building.py",  # python_command
        "array/cpu/workshop.py",  # python_command
        "gpu/transports/probe.py",  # python_command
        "comm/watch/own_warden.py",  # -I -S
        "doctor/mpi.py",  # python_command
        "train/stopping.py",  # find_program
    }
    words = ("os.system(", "os.popen(", "os.exec", "os.spawn", "import multiprocessing")
    words += ("create_subprocess", "ProcessPool", "pty.spawn")
    for path in (ROOT / "shardkit").rglob("*.py"):
        assert not any(word in path.read_text() for word in words), path
