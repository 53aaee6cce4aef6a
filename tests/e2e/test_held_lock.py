"""Native code of a rank keeps the interpreter's lock: no thread of it can say so, and it is named.

Some cases here; thirty of them with
    python -m pytest -m sweep tests/e2e/test_held_lock.py
"""

import random
from pathlib import Path

import pytest
from e2e.locked_rank import LIMIT
from e2e.mpi_jobs import LIBRARIES, fair_seconds, run_job, seconds_since, words_of_shardkit

SCRIPT = Path(__file__).with_name("locked_rank.py")
LATE_SECONDS = 5.0  # beyond the limit


def check(tmp_path, library, num_ranks, who, *rest):
    """Run a job, and compare its first word with who holds a lock."""
    done = run_job(library, SCRIPT, who, *rest, tmp_path / "mark", num_ranks=num_ranks)
    words, seconds = words_of_shardkit(done), seconds_since(tmp_path / "mark")
    print(f"{seconds:.1f} s {words}")
    assert done.returncode != 0 and len(words) == 1, done.stderr
    assert seconds < fair_seconds(LIMIT + LATE_SECONDS)
    named = "rank " if who == "all" else f"rank {who} "
    assert named in words[0], done.stderr
    assert "interpreter" in words[0] and "native code holds its lock" in words[0], done.stderr


def drawn(seed):
    """Return the arguments of a job."""
    draw = random.Random(seed)
    num_ranks = draw.choice((2, 3, 4))
    who = draw.choice((*range(num_ranks), "all"))
    work = draw.choice(("train", "reduce", "late"))
    where = "thread" if who == "all" else draw.choice(("thread", "main"))
    return LIBRARIES[seed % 2], num_ranks, who, where, round(draw.uniform(0.0, 1.5), 3), work


@pytest.mark.parametrize(
    "library, num_ranks, who, where, delay, work",
    [
        ("MPICH", 2, 0, "thread", 0.7, "late"),
        ("Open MPI", 3, 1, "main", 0.4, "train"),
        ("MPICH", 2, "all", "thread", 0.3, "reduce"),
    ],
)
def test_a_rank_whose_lock_is_kept_by_native_code_is_named(
    tmp_path, library, num_ranks, who, where, delay, work
):
    check(tmp_path, library, num_ranks, who, where, delay, work)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(30))
def test_thirty_of_thirty(tmp_path, seed):
    check(tmp_path, *drawn(seed))
