"""Ranks of one job that were started differently are refused before the first step, and end."""

import json
from pathlib import Path

import pytest
from e2e.in_folders_rank import said_in
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


ENDING = ["elastic on one rank", "elastic training on one rank"]  # the ranks cannot meet: it aborts
# As a job of its own, with its end; all that do not abort also one behind the other in one job.
ALONE = ["elastic: a folder", "training: rows", *ENDING]
TOGETHER = [what for what in DIFFERENCES if what not in ENDING]
WORLDS = [(2, 0), (3, 2)]  # ranks, the odd one


def texts_in(folder):
    for name in ("text.txt", "other.txt"):
        (folder / name).write_text(f"some text of {name}\n" * 60)


def check_refusal(what, odd, folder, said, shown):
    assert DIFFERENCES[what][2] in said and f"on rank {odd}" in said, f"{what}: {said}"
    assert "a step was trained" not in shown and "step 1" not in shown
    assert not list(folder.glob("*/checkpoints/*")) and not list(folder.glob("*.h5"))


def given(table, names):
    return json.dumps({name: dict(zip(("usual", "odd"), table[name])) for name in names})


@pytest.mark.parametrize("what", ALONE)
def test_a_job_whose_ranks_were_started_differently_ends(what, tmp_path):
    num_ranks, odd = WORLDS[ALONE.index(what) % 2]
    texts_in(tmp_path)
    done = run_job(
        "MPICH", SCRIPT, odd, given(DIFFERENCES, [what]), num_ranks=num_ranks, folder=tmp_path
    )
    assert done.returncode == 1, done.stderr
    check_refusal(what, odd, tmp_path, done.stderr, done.stdout)


@pytest.mark.parametrize("num_ranks, odd", WORLDS)
def test_ranks_that_were_started_differently_are_refused_together(num_ranks, odd, tmp_path):
    for what in TOGETHER:
        (tmp_path / what).mkdir()
        texts_in(tmp_path / what)
    done = run_job(
        "MPICH", SCRIPT, odd, given(DIFFERENCES, TOGETHER), num_ranks=num_ranks, folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for what in TOGETHER:
        folder = tmp_path / what
        shown, said, codes = said_in(folder, num_ranks)
        assert codes == ["1"] * num_ranks, f"{what}: {codes} {said}"
        check_refusal(what, odd, folder, "".join(said), "".join(shown))


WRONG = "run.stepz=3"

# {what one rank is started with: (usual arguments, those of the odd rank)}
RAISED = {
    "training": (["training"], ["training", WRONG]),
    "elastic train": ([*TRAIN, f"--{ELASTIC}"], [*TRAIN, f"--{ELASTIC}", f"--{WRONG}"]),
}


@pytest.mark.parametrize("what", RAISED)
def test_what_one_rank_raises_before_the_comparison_ends_all(what, tmp_path):
    num_ranks, odd = WORLDS[list(RAISED).index(what)]
    texts_in(tmp_path)
    done = run_job(
        "MPICH", SCRIPT, odd, given(RAISED, [what]), num_ranks=num_ranks, folder=tmp_path
    )
    assert done.returncode == 2 and f"rank {odd}" in done.stderr, done.stderr
    assert "unknown configuration key run.stepz" in done.stderr
