"""Environments that jobs meet: in each a run is trained, resumed, measured, reported and continued
as text, on one rank and two, with the figures that it has everywhere.

    run                 what the commands do, in one folder of its own
    ENVIRONMENTS        {name: what is other there}

One run of a language model, made once, is what `generate` reads in all of them.
"""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pytest
from builders import TINY_RUN
from e2e.commands_rank import ENDED
from e2e.mpi_jobs import python_of

BEHIND_EACH_OTHER = Path(__file__).with_name("commands_rank.py")

SECONDS = 300.0  # of one job, on a busy machine
TABLE = {
    "run.task": "table",
    "run.steps": 4,
    "run.validate_every": 2,
    "run.checkpoint_every": 2,
    "run.patience": 9,
    "run.report_every": 2,
    "data.target": "größe",
    "model.hidden": "[8]",
    "batch.sequences": 8,
    "batch.micro_batch": 2,
}
ALL_IN_ONE = pytest.mark.xdist_group("environments")  # they share what is usual
CAN_MOUNT = (
    os.geteuid() == 0
    and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
)
ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SMALL = "mkdir -p small && mount -t tmpfs -o size=4k none small && "


@dataclass(frozen=True)
class Environment:
    """What is other than usual.

    variables   {name: value}; None: not set. FOLDER in a value is the folder of the job
    options     of the interpreter
    before      of a shell, before the command
    folder      its name
    home        what run.folder begins with: "~/" for a path from the home folder
    """

    variables: dict = field(default_factory=dict)
    options: str = ""
    before: str = ""
    folder: str = "job"
    home: str = ""
    needs_mount: bool = False


TELL = """
import sys
from shardkit.testing.cli import main

for command in sys.argv[1:]:
    try:
        main([*command.split(), "--help"])
    except SystemExit as end:
        if end.code:
            raise
"""
QUIET = "-W error -W ignore::ResourceWarning"  # what the end of the process closes
ENVIRONMENTS = {  # those that do not hide each other share a run
    "as usual": Environment(),
    "-OO, output ascii, home read-only, TMPDIR missing": Environment(
        {
            "PYTHONOPTIMIZE": "2",
            "PYTHONIOENCODING": "ascii",
            "HOME": "/proc",
            "TMPDIR": "/nowhere/at/all",
        },
        options="-OO",
        folder="日本",
    ),
    "LANG=C, TMPDIR tiny, few files, safe path": Environment(
        {
            "LC_ALL": None,
            "LANG": "C",
            "TMPDIR": "FOLDER/small",
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "1",
        },
        before=f"ulimit -n 64; {SMALL}",
        folder="größe",
        needs_mount=True,
    ),
    "ascii throughout": Environment(ASCII, folder="mit leer und größe"),
    "output latin-1, home unset, TMPDIR long": Environment(
        {
            "PYTHONIOENCODING": "latin-1:strict",
            "HOME": None,
            "XDG_CACHE_HOME": None,
            "TMPDIR": f"FOLDER/{'long/' * 40}",
        },
        before="mkdir -p $TMPDIR; ",
        folder="∂",
    ),
    "warnings are errors, home in paths, umask 077, spaces and quotes": Environment(
        {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "FOLDER/my home"},
        options=QUIET,
        before="umask 077; ",
        folder="a 'b' \"c\" $d ; e",
        home="~/",
    ),
}


class Job:
    """Commands in one environment, in a folder of their own."""

    def __init__(self, above, environment):
        self.folder = above / environment.folder
        self.folder.mkdir()
        (self.folder / "my home").mkdir()
        self._how = environment
        self._python = python_of("MPICH")
        self._variables = dict(os.environ)
        for name, value in environment.variables.items():
            self._variables.pop(name, None)
            if value is not None:
                self._variables[name] = value.replace("FOLDER", str(self.folder))

    def run(self, *commands, ranks=1):
        """Return what each of these commands wrote to standard output, in one job, as bytes."""
        *shown, rest = self._run(commands, ranks).split(f"{ENDED}\n".encode())
        assert len(shown) == len(commands) and not rest
        return shown

    def _run(self, commands, ranks):
        words = [str(BEHIND_EACH_OTHER), json.dumps(commands, ensure_ascii=False)]
        own = f"{self._python} {self._how.options} {shlex.join(words)}"
        mpiexec = shlex.quote(str(self._python.with_name("mpiexec")))
        command = f"{mpiexec} -n {ranks} {own}" if ranks > 1 else own
        shell = ["bash", "-c", f"{self._how.before}{command}"]
        if self._how.needs_mount:
            shell = ["unshare", "--mount", *shell]
        done = subprocess.run(
            shell, cwd=self.folder, env=self._variables, capture_output=True, timeout=SECONDS
        )
        error = done.stderr.decode("utf-8", "replace")
        assert done.returncode == 0, f"{commands}: {done.returncode}\n{error}\n{done.stdout!r}"
        assert "Traceback" not in error and "Warning" not in error, f"{commands}: {error}"
        done.stdout.decode(self.encoding)
        return done.stdout

    @property
    def encoding(self):
        if "PYTHONIOENCODING" in self._how.variables:
            return self._how.variables["PYTHONIOENCODING"].partition(":")[0]
        return "ascii" if self._how.variables is ASCII else "utf-8"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A table of rows and the run of a language model, made as usual."""
    folder = tmp_path_factory.mktemp("given")
    rows = numpy.random.default_rng(0).normal(size=(64, 3))
    lines = ["a,b,größe", *(",".join(map(str, row)) for row in rows.tolist())]
    (folder / "zeilen é.csv").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "text.txt").write_text("".join(f"ein ∂ {i} größer\n" for i in range(80)), "utf-8")
    settings = {**TINY_RUN, "run.steps": 2, "run.folder": "gpt", "data.path": "text.txt"}
    words = [f"--{name}={value}" for name, value in settings.items()]
    job = Job(folder, Environment())
    job.folder = folder
    job.run(["train", *words])
    return folder


@pytest.fixture(scope="module")
def usual(given, tmp_path_factory):
    """The figures of the run as usual."""
    return figures_in(Job(tmp_path_factory.mktemp("usual"), Environment()), given)


def figures_in(job, given):
    """Do everything in the environment of a job; return what it measured."""
    settings = {**TABLE, "run.folder": f"{job._how.home}run", "data.path": given / "zeilen é.csv"}
    words = [f"--{name}={value}" for name, value in settings.items()]
    run = Path(job._variables["HOME"], "run") if job._how.home else job.folder / "run"
    place = f"{job._how.home}run"
    output = ["--data", str(given / "zeilen é.csv"), "--output", "out.h5"]
    _, predicted = job.run(
        ["train", *words], ["predict", place, *output, "--checkpoint", "newest"], ranks=2
    )
    _, *shown = job.run(
        ["train", "--resume", f"--run.folder={place}", "--run.steps=6"],
        ["evaluate", place, "--json", f"{job._how.home}figures.json"],
        ["report", place],
        ["inspect", place, "--verify"],
        ["generate", str(given / "gpt"), "--tokens", "8", "--prompt", "größer ∂"],
    )
    assert b", the best, validation loss" in shown[0] and b"best checkpoint" in shown[2]
    assert b"step 4, the newest" in predicted
    assert (run / "report.html").stat().st_size > 1000 and (job.folder / "out.h5").is_file()
    assert not list(job.folder.glob("~*"))
    curve = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [each["validation_loss"] for each in curve if "validation_loss" in each]
    return json.loads((run.parent / "figures.json").read_text("utf-8")), losses


@ALL_IN_ONE
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_run_does_all_that_it_does_everywhere(given, usual, tmp_path, name):
    environment = ENVIRONMENTS[name]
    if environment.needs_mount and not CAN_MOUNT:
        pytest.skip("mounting a file system takes root")
    if name == "as usual":
        assert len(usual[1]) == 3 and usual[0]["samples"] > 0
        return
    job = Job(tmp_path, environment)
    assert figures_in(job, given) == usual
    if "umask 077" in name:
        modes = {path.stat().st_mode & 0o077 for path in job.folder.rglob("*") if path.is_file()}
        assert modes == {0}


@pytest.mark.timeout(1200)
def test_suites_hold_without_asserts_and_docstrings():
    """-OO leaves out what -O does, and docstrings. Not run: what PyTorch says, whose thousands of
    files would be compiled anew for that, and what is read from the source alone.
    """
    names = "test_plain test_paths test_order test_stop_clock test_layers test_reading"
    root = Path(__file__).parents[2]
    files = [f"tests/pure/{name}.py" for name in names.split()]
    words = [sys.executable, "-OO", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        [*words, "-k", "not of_torch and not one_door"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=3 * SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_every_command_tells_of_itself_without_docstrings(tmp_path):
    commands = ["", "train", "plan", "render", "bench", "doctor", "convert"]
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    words = [sys.executable, "-OO", str(script), *commands]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and done.stdout.count("usage: shardkit") == len(commands), (
        done.stderr
    )
