"""The command line as a user meets it: real processes under mpiexec, on a small text."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.commands_rank import ENDED
from e2e.in_folders_rank import said_in

from shardkit.testing.cli import main

BEHIND_EACH_OTHER = Path(__file__).with_name("commands_rank.py")
IN_FOLDERS = Path(__file__).with_name("in_folders_rank.py")
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
SMALL = [
    "--model.width=16",
    "--model.layers=2",
    "--model.heads=2",
    "--model.sequence_length=32",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--run.report_every=2",
    "--run.validate_every=4",
    "--run.validation_batches=2",
    "--run.checkpoint_every=4",
    "--sample.tokens=20",
    "--optimizer.warmup_steps=2",
]


@pytest.fixture
def folder(tmp_path):
    text = "".join(
        f"line {i} of a text that repeats itself, with the number {i * i}\n" for i in range(600)
    )
    (tmp_path / "text.txt").write_text(text)
    return tmp_path


def shardkit(folder, *arguments, ranks=None):
    return python(folder, "-m", "shardkit", *arguments, ranks=ranks)


def python(folder, *words, ranks=None):
    command = [sys.executable, *words]
    if ranks:
        command = [MPIEXEC, "-n", str(ranks), *command]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def in_one_job(folder, *commands, ranks=2):
    """Return what each of some commands, which must all end well, wrote in one job."""
    done = python(folder, BEHIND_EACH_OTHER, json.dumps(commands), ranks=ranks)
    assert done.returncode == 0, done.stderr
    *shown, rest = done.stdout.split(f"{ENDED}\n")
    assert len(shown) == len(commands) and not rest
    return shown


def refusals(folder, commands, ranks=2):
    """Return (exit codes, all that the ranks said) of commands, {name: words}, each refused in a
    folder of its own, which is a copy of this one, in one job.
    """
    places = {name: folder / f"refused {number}" for number, name in enumerate(commands)}
    for place in places.values():
        shutil.copytree(folder, place, ignore=shutil.ignore_patterns("refused*"))
    words = {str(places[name]): commands[name] for name in commands}
    done = python(folder, IN_FOLDERS, json.dumps(words), ranks=ranks)
    assert done.returncode == 0, done.stderr
    said = {name: said_in(place, ranks) for name, place in places.items()}
    return {name: (codes, "".join(out + err)) for name, (out, err, codes) in said.items()}


def train(folder, *arguments, ranks=2, **run):
    return shardkit(folder, *train_words(*arguments, **run), ranks=ranks)


def train_words(*arguments, run="run", steps=8):
    own = ("--data.path=text.txt", f"--run.folder={run}", f"--run.steps={steps}")
    return ("train", *SMALL, *own, *arguments)


def metrics(folder, run="run"):
    return [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]


def curve(folder, run="run"):
    return [
        (r["step"], r.get("train_loss"), r.get("validation_loss"))
        for r in metrics(folder, run)
        if "train_loss" in r or "validation_loss" in r
    ]


def check_start(shown, most_seconds):
    """Look at what a run says of its start: where the time up to its first step went."""
    (line,) = re.findall("^first step (.*) s after rank 0 was launched: (.*)$", shown, re.M)
    parts = [part.split()[0] for part in line[1].split(", ")]
    assert parts == ["imports", "kernels", "MPI", "data", "weights", "step"]
    assert 0.1 < float(line[0]) < most_seconds


def test_a_run_reports_a_falling_loss_and_leaves_checkpoint_curve_and_sample(
    folder, monkeypatch, capsys
):
    began = time.monotonic()
    done = train(folder, steps=20)
    assert done.returncode == 0, done.stderr
    check_start(done.stdout, time.monotonic() - began)
    losses = [r["train_loss"] for r in metrics(folder) if "train_loss" in r]
    assert losses[-1] < losses[0]
    assert "tokens/s" in done.stdout and "left" in done.stdout and "bits per byte" in done.stdout
    assert "peak memory per rank" in done.stdout and "sample of generated text" in done.stdout
    assert done.stdout.count("step 20/20  loss") == 1, "every rank reports"
    monkeypatch.chdir(folder)

    def printed(*arguments):
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    inspected = printed("inspect", "run", "--verify")
    assert "step-00000020" in inspected and "checksums hold" in inspected
    one = printed("inspect", "run/checkpoints/step-00000020")
    assert re.search(r"^        up.weight +40x16 ", one, re.M)
    assert "run/report.html" in printed("report", "run")
    assert "</html>" in (folder / "run" / "report.html").read_text()
    assert printed("generate", "run", "--prompt", "line 1", "--tokens", "10").startswith("line 1")
    how = "--prompt=line", "--prompt=a", "--tokens=9", "--temperature=0", "--repetition-penalty=9"
    texts = printed("generate", "run", *how)
    assert texts == printed("generate", "run", *how, "--together=1")
    assert texts != printed("generate", "run", *how[:-1]) and len(texts) > 20


def test_a_resumed_run_continues_the_curve_bit_for_bit_also_on_another_mesh_and_policy(folder):
    resume = ("train", "--resume", "--run.folder=parts")
    *_, resumed = in_one_job(
        folder,
        train_words(run="whole", steps=12),
        train_words("--optimizer.decay_steps=12", run="parts", steps=4),
        (*resume, "--run.steps=8"),
    )
    assert "resumed at step 4" in resumed
    assert curve(folder, "parts") == [point for point in curve(folder, "whole") if point[0] <= 8]
    other = ("--parallel.policy=ddp", "--mesh.pipeline=2")
    began = time.monotonic()
    resumed = shardkit(folder, *resume, "--run.steps=12", *other, ranks=4)
    assert resumed.returncode == 0, resumed.stderr
    check_start(resumed.stdout, time.monotonic() - began)
    assert "pipeline 2 x data 2" in resumed.stdout
    losses = [[c[:2] for c in curve(folder, run) if c[1] is not None] for run in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_checkpoints_are_written_beside_the_training_or_at_once_and_every_nth_is_kept(folder):
    runs = {"beside": [], "at-once": ["--run.asynchronous_checkpoints=false"]}
    keep = ("--run.checkpoint_every=2", "--run.keep_checkpoints=1", "--run.keep_every=4")
    shown = in_one_job(
        folder, *(train_words(*keep, *more, run=name) for name, more in runs.items())
    )
    for run, text in zip(runs, shown):
        kept = sorted(path.name for path in (folder / run / "checkpoints").iterdir())
        assert kept == ["newest", "step-00000004", "step-00000008"]
        assert text.count("  checkpoint ") == 4
        assert text.count("training stood still") == 4 * (run == "beside")
        pauses = [
            r["checkpoint_pause_seconds"]
            for r in metrics(folder, run)
            if "checkpoint_pause_seconds" in r
        ]
        assert len(pauses) == 4 and min(pauses) > 0
    assert curve(folder, "beside") == curve(folder, "at-once")
    assert main(["diff", str(folder / "beside"), str(folder / "at-once")]) == 0


def test_a_run_with_tensor_and_pipeline_ranks_goes_on_without_them(folder):
    first = train(folder, "--mesh.pipeline=2", "--mesh.tensor=2", steps=4, ranks=4)
    assert first.returncode == 0 and "pipeline 2 x data 1 x tensor 2" in first.stdout, first.stderr
    resumed = train(folder, "--resume", "--mesh.pipeline=1", "--mesh.tensor=1", steps=6, ranks=1)
    assert resumed.returncode == 0 and "resumed at step 4" in resumed.stdout, resumed.stderr


def test_a_run_begins_with_the_weights_of_another_and_goes_on(folder):
    weights = [
        "--model.start=run",
        "--data.path=other.txt",
        "--run.folder=tuned",
        "--optimizer.name=sgd",
        "--sample.tokens=0",
    ]
    (folder / "other.txt").write_text("".join(f"another line {i} with {i}\n" for i in range(600)))
    _, tuned, more = in_one_job(
        folder,
        train_words(steps=4),
        ("train", *weights, "--run.steps=2"),
        ("train", "--resume", *weights, "--run.steps=3"),
    )
    assert "/run at step 4; optimizer state is fresh" in tuned
    assert "resumed at step 2" in more


# One of each place where a run is refused: by rank 0 alone, by the settings of all ranks, by their
# number, by the folder, by the machine. What else is refused there: tests/pure/test_config.py and
# tests/threads/test_runs.py.
BAD = {
    "a missing text": (["--data.path=missing.txt"], 2, "missing.txt does not exist"),
    "an unknown key": (["--model.widht=3"], 2, "did you mean model.width"),
    "stages that do not divide the ranks": (["--mesh.pipeline=3"], 2, "pipeline 3"),
    "a resume without a run": (["--resume"], 2, "start without --resume"),
    "a device that is not there": (["--parallel.device=cuda"], 1, "cuda"),
}


def test_bad_input_is_one_sentence_and_an_exit_code(folder):
    """All of them in one job, and two as jobs of their own, with its end."""
    found = refusals(folder, {case: train_words(*BAD[case][0]) for case in BAD})
    for case, (_, code, words) in BAD.items():
        codes, said = found[case]
        assert codes == [str(code)] * 2 and words in said, f"{case}: {codes} {said}"
        assert "Traceback" not in said and said.count("shardkit: ") == 1, said
    assert not list(folder.rglob("*.tmp")) and not list(folder.rglob("checkpoints"))


@pytest.mark.parametrize("case", ["a missing text", "a device that is not there"])
def test_a_job_of_bad_input_ends_with_one_sentence_and_an_exit_code(folder, case):
    arguments, code, words = BAD[case]
    done = train(folder, *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len([line for line in done.stderr.splitlines() if line.startswith("shardkit:")]) == 1, (
        done.stderr
    )
    assert not list(folder.rglob("*.tmp")) and not list(folder.rglob("checkpoints"))


def test_a_run_that_is_there_another_model_and_damaged_checkpoints_are_refused(folder):
    assert train(folder, steps=4).returncode == 0
    before = (folder / "run" / "metrics.jsonl").read_text()
    width, path = (
        train_words("--resume", setting, steps=8)
        for setting in ("--model.width=32", "--data.path=/nonexistent")
    )
    shutil.copytree(folder / "run", folder / "hurt")
    part = folder / "hurt" / "checkpoints" / "step-00000004" / "rank-00001.h5"
    part.write_bytes(part.read_bytes()[:-7])
    hurt = ("train", "--resume", "--run.folder=hurt", "--run.steps=8")
    commands = {"again": train_words(steps=4), "width": width, "path": path, "damaged": hurt}
    found = refusals(folder, commands)
    codes = {name: set(codes) for name, (codes, _) in found.items()}
    assert codes == {"again": {"2"}, "width": {"2"}, "path": {"2"}, "damaged": {"1"}}, found
    assert "--resume" in found["again"][1]
    again = folder / "refused 0" / "run" / "metrics.jsonl"
    assert again.read_text() == before
    assert "model.width = 32, but this run goes on with 16" in found["width"][1]
    assert "data.path = ['/nonexistent'], but" in found["path"][1]
    damaged = found["damaged"][1]
    assert "no valid checkpoint" in damaged and "Traceback" not in damaged


def test_help_shows_every_setting_with_its_default():
    done = shardkit(".", "train", "--help")
    assert (
        done.returncode == 0
        and "--optimizer.learning_rate" in done.stdout
        and "300 steps" in done.stdout
    )


def test_importing_shardkit_starts_neither_mpi_nor_cuda():
    code = (
        "import sys, shardkit; "
        "assert 'cupy' not in sys.modules and 'torch' not in sys.modules; "
        "assert 'mpi4py.MPI' not in sys.modules, 'MPI was initialized by an import'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
