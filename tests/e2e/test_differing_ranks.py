"""Ranks of one job that were started differently are refused before the first step, and end."""

import json
from pathlib import Path

import pytest
from e2e.mpi_jobs import run_job

SCRIPT = Path(__file__).with_name("differing_rank.py")
SMALL = [
    "--model.width=8",
    "--model.layers=1",
    "--model.heads=2",
    "--model.sequence_length=8",
    "--batch.sequences=12",
    "--batch.micro_batch=2",
    "--run.steps=2",
    "--sample.tokens=0",
    "--data.path=text.txt",
]
TRAIN = ["train", *SMALL, "--run.folder=run"]
PREPARE = ["prepare", "text.txt", "--tokenizer=bytes", "--output=tokens.h5"]
ELASTIC = "run.elastic=true"

# {what differs: (usual arguments, those of the odd rank, what is said)}
DIFFERENCES = {
    "train: a folder": (TRAIN, [*TRAIN[:-1], "--run.folder=other"], "run.folder is"),
    "train: a setting": (TRAIN, [*TRAIN, "--run.steps=3"], "run.steps is"),
    "train: resume if any": (TRAIN, [*TRAIN, "--resume-if-any"], "--resume-if-any is"),
    "train: the data": (TRAIN, [*TRAIN, "--data.path=other.txt"], "data.path is"),
    "elastic: a setting": (
        [*TRAIN, "--run.elastic=true"],
        [*TRAIN, "--run.elastic=true", "--run.steps=3"],
        "run.steps is",
    ),
    "elastic: a folder": (
        [*TRAIN, "--run.elastic=true"],
        [*TRAIN[:-1], "--run.folder=other", "--run.elastic=true"],
        "run.folder is",
    ),
    "elastic on one rank": (TRAIN, [*TRAIN, "--run.elastic=true"], "run.elastic is"),
    "training: rows": (["training"], ["training", "rows=40"], "number of training samples is"),
    "training: a folder": (["training"], ["training", "folder=b"], "run.folder is"),
    "elastic training: rows": (
        ["training", ELASTIC],
        ["training", ELASTIC, "rows=40"],
        "number of training samples is",
    ),
    "elastic training: seed": (
        ["training", ELASTIC],
        ["training", ELASTIC, "run.seed=5"],
        "run.seed is",
    ),
    "elastic training on one rank": (["training"], ["training", ELASTIC], "run.elastic is"),
    "prepare: an output": (PREPARE, [*PREPARE[:-1], "--output=b.h5"], "output is"),
    "prepare: an input": (PREPARE, ["prepare", "other.txt", *PREPARE[2:]], "inputs is"),
}


@pytest.mark.parametrize("num_ranks, odd", [(2, 0), (3, 2)])
@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_were_started_differently_are_refused_together(what, num_ranks, odd, tmp_path):
    for name in ("text.txt", "other.txt"):
        (tmp_path / name).write_text(f"some text of {name}\n" * 60)
    usual, other, words = DIFFERENCES[what]
    given = json.dumps({"usual": usual, "odd": other})
    done = run_job("MPICH", SCRIPT, odd, given, num_ranks=num_ranks, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert words in done.stderr and f"on rank {odd}" in done.stderr, done.stderr
    assert "a step was trained" not in done.stdout and "step 1" not in done.stdout
    assert not list(tmp_path.glob("*/checkpoints/*")) and not list(tmp_path.glob("*.h5"))


WRONG = "run.stepz=3"

# {what one rank is started with: (usual arguments, those of the odd rank)}
RAISED = {
    "training": (["training"], ["training", WRONG]),
    "elastic training": (["training", ELASTIC], ["training", ELASTIC, WRONG]),
    "train": (TRAIN, [*TRAIN, f"--{WRONG}"]),
    "elastic train": ([*TRAIN, f"--{ELASTIC}"], [*TRAIN, f"--{ELASTIC}", f"--{WRONG}"]),
}


@pytest.mark.parametrize("num_ranks, odd", [(2, 0), (3, 2)])
@pytest.mark.parametrize("what", RAISED)
def test_what_one_rank_raises_before_the_comparison_ends_all(what, num_ranks, odd, tmp_path):
    (tmp_path / "text.txt").write_text("some text\n" * 60)
    usual, other = RAISED[what]
    given = json.dumps({"usual": usual, "odd": other})
    done = run_job("MPICH", SCRIPT, odd, given, num_ranks=num_ranks, folder=tmp_path)
    assert done.returncode == 2 and f"rank {odd}" in done.stderr, done.stderr
    assert "unknown configuration key run.stepz" in done.stderr
