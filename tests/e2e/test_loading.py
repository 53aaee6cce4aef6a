"""Code that a rank loads or compiles is there before a collective begins, and lets nobody wait."""

import re
from pathlib import Path

import pytest
from mpi_jobs import LIBRARIES, run_job, words_of_shardkit

SCRIPT = Path(__file__).with_name("loading_rank.py")
COLD, WARM = "nothing is compiled yet", "code is in files"


def run(library, how, **environment):
    return run_job(library, SCRIPT, how, num_ranks=2, time_limit=400, **environment)


@pytest.mark.timeout(900)  # it compiles, which takes minutes on a busy machine
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_verb_needs_is_loaded_before_it_begins(library, tmp_path):
    for _ in (COLD, WARM):
        done = run(library, "before", NUMBA_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        found = re.findall(r"rank \d loaded (\d+), late (\[.*?\])", done.stdout)
        assert [late for _, late in found] == ["[]", "[]"], done.stdout
        assert all(int(num) for num, _ in found)


@pytest.mark.parametrize("library", LIBRARIES[:1])
def test_a_rank_that_compiles_for_longer_than_the_limit_is_waited_for(library):
    done = run(library, "slow")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("went on") == 2 and not words_of_shardkit(done)


@pytest.mark.parametrize(
    "library, how, words",
    [
        # or, on a busy machine, that its interpreter has not run for so long
        (LIBRARIES[0], "asleep", "rank 1 is missing"),
        (LIBRARIES[1], "endless", "rank 1 is missing, rank 1 is compiling a slow loop since"),
        # it does not even want a core for that
        (LIBRARIES[0], "stuck", "rank 1 is missing, rank 1 is compiling a slow loop since"),
    ],
)
def test_a_rank_that_does_not_come_is_named_with_what_it_compiles(library, how, words):
    done = run(library, how)
    assert done.returncode != 0 and "went on" not in done.stdout
    (line,) = [line for line in words_of_shardkit(done) if words in line]
    assert ("compiling" in line) == (how != "asleep"), done.stderr
