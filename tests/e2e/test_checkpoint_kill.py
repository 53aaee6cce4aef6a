"""Ranks are killed while they save, at random moments: the newest valid checkpoint opens, verifies
and has the right numbers.

Five kills here; 200 with  python -m pytest -m sweep tests/e2e/test_checkpoint_kill.py -s
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy
import pytest
from builders import token_batch, train

import shardkit as sk
from shardkit.testing.checkpoint import Candidates

SCRIPT = Path(__file__).with_name("saving_rank.py")
ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
MOST_SECONDS = 0.25  # of saving before the kill: some 5 to 20 saves
KILL_SECONDS = 30  # limit for one kill: a start of the job, its end, and a look at what it left


def ranks_of(launcher):
    """The process ids of the Python ranks that a launcher started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if (
            str(SCRIPT).encode() in words
            and words[0] == sys.executable.encode()
            and launcher in (parent, parent_of(parent))
        ):
            found.append(int(folder.name))
    return sorted(found)


def parent_of(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def killed_job(folder, num_ranks, way, rng):
    """Start a job, kill one rank or all of them at some moment, and wait for its end; the last step
    that it said it saved.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests"))),
        "OMP_NUM_THREADS": "1",
    }
    job = subprocess.Popen(
        [MPIEXEC, "-n", str(num_ranks), sys.executable, SCRIPT, folder, way],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        for line in job.stdout:  # the job is saving
            if line.startswith("committed"):
                break
        time.sleep(rng.uniform(0, MOST_SECONDS))
        ranks = ranks_of(job.pid)
        assert len(ranks) == num_ranks, job.communicate(timeout=500)
        for rank in ranks if rng.random() < 0.4 else [rng.choice(ranks)]:
            os.kill(rank, signal.SIGKILL)
        out, err = job.communicate(timeout=KILL_SECONDS)
    finally:
        job.kill()
    assert job.returncode != 0 and "Traceback" not in err, err
    return [
        int(line.split()[1]) for line in (line + out).splitlines() if line.startswith("committed")
    ][-1]


@pytest.fixture(scope="module")
def parameters():
    """function (ranks, step) -> the parameters that the job has then, to the bit."""
    known = {}

    def train_to(num_ranks, last):
        def on_rank(backend):
            model, every = train("FSDP", backend, 0, max_gradient_norm=None)[0], [None]
            for number in range(last):
                model.train(*sk.split_batch(model.mesh, *token_batch(number)))
                every.append(model.gather_full_parameters())
            return every

        return sk.run_ranks(num_ranks, on_rank)[0]

    def of_step(num_ranks, step):
        if len(known.get(num_ranks, ())) <= step:
            known[num_ranks] = train_to(num_ranks, 2 * step)
        return known[num_ranks][step]

    return of_step


def check(folder, committed, parameters_of, seen):
    """What a new job finds: no exception, a checkpoint that is whole and not older than what was
    committed.
    """

    def on_rank(backend):
        candidates = Candidates.at(folder)
        checkpoint = candidates.first_valid(backend)
        model, _ = train("DDP", backend, 0)
        manifest = model.load_model(folder)
        assert manifest["step"] == checkpoint.manifest["step"] >= committed
        return candidates.skipped, manifest["step"], model.gather_full_parameters()

    ((skipped, step, found),) = sk.run_ranks(1, on_rank)
    numpy.testing.assert_array_equal(found, parameters_of(step))
    leftovers = [path.name for path in folder.glob("step-*[0-9].tmp")]
    for name in leftovers:
        assert (
            any(name in reason for reason in skipped)
            or (folder / name.replace(".tmp", ".old")).exists()
        )
    seen["half-written checkpoints"] += bool(leftovers)
    seen["replacements cut short"] += bool(list(folder.glob("*.old")))
    seen["deletions cut short"] += bool(list(folder.glob("*.deleted.tmp")))


def kill(tmp_path, number, num_folders, parameters, seen):
    """One job of many; with few folders, jobs go on from what killed ones left."""
    rng, folder = random.Random(number), number % num_folders
    num_ranks = 2 + (folder % 3 == 2)
    committed = killed_job(tmp_path / str(folder), num_ranks, rng.choice(("sync", "async")), rng)
    check(tmp_path / str(folder), committed, lambda step: parameters(num_ranks, step), seen)


@pytest.mark.timeout(30 * KILL_SECONDS)
def test_kills_while_saving_lose_nothing_that_was_committed(tmp_path, parameters):
    """Five, and more on a machine on which none of them met a rank that was writing."""
    seen = Counter()
    for number in range(30):
        kill(tmp_path, number, 4, parameters, seen)
        if number >= 4 and seen["half-written checkpoints"]:
            return
    raise AssertionError("none of 30 kills met a rank that was writing")


@pytest.mark.sweep
@pytest.mark.timeout(200 * KILL_SECONDS)
def test_two_hundred_kills(tmp_path, parameters):
    seen = Counter()
    for number in range(1000, 1200):
        kill(tmp_path, number, 20, parameters, seen)
    print(dict(seen))
    assert seen["half-written checkpoints"] >= 30
