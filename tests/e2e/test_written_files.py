"""What commands write, where each file is a link to one outside before: that one stays as it is.

Each command runs twice: in a folder where it makes its files, and in another one where a link has
the name of each of them. One process runs them all, one behind the other; a second one all again.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
from e2e.in_folders_rank import said_in
from e2e.mpi_jobs import ROOT, python_of

TEXT = (
    "--model.width=16 --model.layers=1 --model.heads=2 --model.sequence_length=32 "
    "--batch.sequences=8 --batch.micro_batch=4 --sample.tokens=0 --data.path=text.txt "
    "--run.steps=4 --run.checkpoint_every=2 --run.report_every=1 --run.folder=run"
)
TABLE = (
    "--task table --data.path=t.csv --data.target=y --batch.sequences=32 --batch.micro_batch=8 "
    "--model.hidden=[8] --run.steps=4 --run.folder=table"
)
COMMANDS = {
    "train": f"train {TEXT} --run.trace_steps=2..3",
    "train, a table": f"train {TABLE}",
    "train --resume": "train --resume --run.folder=run --run.steps=6",
    "report": "report run",
    "report --output": "report run --output page.html",
    "evaluate": "evaluate run --data other.txt --json figures.json",
    "predict": "predict table --data t.csv --output out.h5",
    "prepare": "prepare text.txt --tokenizer bytes --output tokens.h5",
    "prepare, a vocabulary": "prepare text.txt --train-vocabulary 280 --output tokens.h5",
    "prepare, compressed": "prepare text.txt.gz --tokenizer bytes --output tokens.h5",
    "convert": "convert --to safetensors run back",
    "render": "render --template single_node --ranks-per-node 2 --output job.sh settings.toml",
    "plan": "plan settings.toml cpu-node --devices 2 --explain 1 --svg plan.svg --script plan.sh",
    "inspect schedule": "inspect schedule --svg schedule.svg",
    "bench": f"bench {TEXT} --json bench.json",
    "doctor": "doctor --run.folder=run",
}
SETTINGS = """
[run]
steps = 10
[model]
width = 16
layers = 2
heads = 2
[data]
path = ["text.txt"]
[batch]
sequences = 8
micro_batch = 4
"""
NEEDS = {"train --resume": "run", "report": "run", "report --output": "run", "evaluate": "run"}
NEEDS |= {"convert": "run", "predict": "table"}
MAY_REFUSE = {"prepare", "prepare, a vocabulary", "prepare, compressed", "convert"}  # it is there


IN_FOLDERS = Path(__file__).with_name("in_folders_rank.py")
pytestmark = pytest.mark.xdist_group("written files")  # they share the two processes


def shardkit(**lines):
    """Run a command in each folder, on one rank; return what each said, with its exit code."""
    words = {folder: line.split() for folder, line in lines.items()}
    command = [python_of("MPICH"), IN_FOLDERS, json.dumps(words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return {folder: _said(folder) for folder in words}


def _said(folder):
    (out,), (err,), (code,) = said_in(folder)
    return f"{out}{err}exit code {code}"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with inputs, a run of a text and one of a table."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "text.txt").write_text("".join(f"line {i} of {i * i}\n" for i in range(2000)))
    (folder / "other.txt").write_text("".join(f"line {i} of {i + i}\n" for i in range(900)))
    subprocess.run(["gzip", "-k", "text.txt"], cwd=folder, check=True)
    x = numpy.random.default_rng(0).normal(size=(150, 3))
    rows = numpy.column_stack([x, x.sum(1)])
    numpy.savetxt(folder / "t.csv", rows, delimiter=",", header="a,b,c,y", comments="")
    (folder / "settings.toml").write_text(SETTINGS)
    for line in (COMMANDS["train"], COMMANDS["train, a table"]):
        (said,) = shardkit(**{str(folder): line}).values()
        assert said.endswith("exit code 0"), said
    return folder


def names_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def copy_for(command, begun, folder):
    """Copy what the command needs: inputs, and the run that it reads."""
    shutil.copytree(begun, folder)
    for name in ("run", "table"):
        if NEEDS.get(command) != name:
            shutil.rmtree(folder / name)


@pytest.fixture(scope="module")
def made(begun, tmp_path_factory):
    """{command: (what it said, names of the files that it wrote)} where nothing is a link."""
    above, before, times = tmp_path_factory.mktemp("made"), {}, {}
    for command in COMMANDS:
        folder = above / command
        copy_for(command, begun, folder)
        before[command] = names_of(folder)
        times[command] = {name: (folder / name).stat().st_mtime_ns for name in before[command]}
    said = shardkit(**{str(above / command): line for command, line in COMMANDS.items()})

    def written(command):
        folder, known = above / command, times[command]
        after = names_of(folder)
        changed = {name for name in after if (folder / name).stat().st_mtime_ns != known.get(name)}
        return sorted(name for name in changed if "checkpoints/" not in name)  # test_folders.py

    return {command: (said[str(above / command)], written(command)) for command in COMMANDS}


@pytest.fixture(scope="module")
def linked(begun, made, tmp_path_factory):
    """{command: (its folder, what was said there, {file outside: what was in it})}"""
    above, contents = tmp_path_factory.mktemp("linked"), {}
    for command in COMMANDS:
        copy_for(command, begun, above / command)
        victims = above / f"victims of {command}"
        victims.mkdir()
        for number, name in enumerate(made[command][1]):
            victim, link = victims / str(number), above / command / name
            content = b"precious"
            if link.exists():  # it is read as well
                content = link.read_bytes()
                link.unlink()
            victim.write_bytes(content)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(victim)
        contents[command] = {path: path.read_bytes() for path in victims.iterdir()}
    said = shardkit(**{str(above / command): line for command, line in COMMANDS.items()})
    return {
        command: (above / command, said[str(above / command)], contents[command])
        for command in COMMANDS
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_outside_is_written_through_a_link(made, linked, command):
    said, written = made[command]
    assert said.endswith("exit code 0"), said
    assert written or command == "doctor", said
    folder, said, contents = linked[command]
    assert {path: path.read_bytes() for path in contents} == contents, (written, said)
    is_refused = command in MAY_REFUSE and said.endswith("exit code 2") and "exists already" in said
    assert said.endswith("exit code 0") or is_refused, said
    still = [name for name in written if (folder / name).is_symlink()]
    appended = [name for name in still if name.endswith((".log", "metrics.jsonl"))]
    assert still == appended or is_refused, still
    for name in appended:
        assert f"{name} cannot be written: it is no ordinary file" in said, said


def test_prepare_leaves_alone_what_it_did_not_make(tmp_path):
    """In the folder of parts, behind links in it, and where it is a link itself."""
    (tmp_path / "c.txt").write_text("some text here\n" * 500)
    (tmp_path / "precious" / "claims").mkdir(parents=True)
    (tmp_path / "precious" / "thesis.txt").write_text("x")
    parts = tmp_path / "a.h5.parts"
    parts.mkdir()
    hexadecimal = "0123456789abcdef" * 2
    for name in (f"claims-{hexadecimal}", "claims-x", f"{hexadecimal}.unpacked", "notes"):
        (parts / name).symlink_to(tmp_path / "precious")
    (parts / "notes.txt").write_text("mine")
    (parts / "other.part").write_text("mine")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for name in ("b.h5", "other.h5", "x.part", "y.new", f"claims-{hexadecimal[:8]}"):
        (scratch / name).write_text("mine")
    (tmp_path / "b.h5.parts").symlink_to(scratch)
    (said,) = shardkit(**{str(tmp_path): "prepare c.txt --tokenizer bytes --output a.h5"}).values()
    assert said.endswith("exit code 0"), said
    assert "a.h5.parts stays, for what is in it: a.h5.parts/claims-x: not made by shardkit" in said
    left = {"claims-x", "notes", "notes.txt", "other.part"}
    assert {path.name for path in parts.iterdir()} == left
    (said,) = shardkit(**{str(tmp_path): "prepare c.txt --tokenizer bytes --output b.h5"}).values()
    assert said.endswith("exit code 0") and "b.h5.parts stays, for what is in it: b.h5:" in said
    assert {path.read_text() for path in scratch.iterdir()} == {"mine"}
    assert len(list(scratch.iterdir())) == 5 and (tmp_path / "b.h5.parts").is_symlink()
    assert (tmp_path / "precious" / "thesis.txt").exists()
    assert (tmp_path / "precious" / "claims").is_dir()
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert Path(tmp_path / "a.h5").stat().st_size > 7500
