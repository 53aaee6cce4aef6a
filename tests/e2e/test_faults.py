"""One of four ranks leaves while the others wait for it: the job ends within seconds, and one
message names the rank.

test_fault_table.py has the ways in which a rank of a training run goes wrong.
"""

from pathlib import Path

import pytest
from e2e.mpi_jobs import LIBRARIES, fair_seconds, run_job, seconds_since, words_of_shardkit

SCRIPT = Path(__file__).with_name("failing_rank.py")
END_SECONDS = 10.0  # from the fault to the end of the job


MPICH, OPEN_MPI = LIBRARIES


@pytest.fixture
def launch(library, tmp_path):
    """function (how) -> (the finished process, seconds from the fault to its end); a job that hangs
    fails the test.
    """
    mark = tmp_path / "struck"

    def run(how, num_ranks=4):
        done = run_job(library, SCRIPT, how, mark, num_ranks=num_ranks)
        return done, seconds_since(mark) if mark.exists() else 0.0

    return run


both_libraries = pytest.mark.parametrize("library", LIBRARIES)


@pytest.mark.parametrize(
    "how, library, message",
    [
        ("raise", MPICH, "rank 1 failed: RuntimeError: the data is gone"),
        ("raise", OPEN_MPI, "rank 1 failed: RuntimeError: the data is gone"),
        ("exit", MPICH, "rank 1 left the program (sys.exit, or the end of its script) while rank"),
        (
            "return",
            OPEN_MPI,
            "rank 1 left the program (sys.exit, or the end of its script) while rank",
        ),
        ("abort", MPICH, "rank 1 gives up"),
    ],
    ids=lambda text: text.split()[0],
)
def test_a_rank_that_goes_ends_the_job_with_one_message_that_names_it(launch, how, message):
    done, seconds = launch(how)
    words = words_of_shardkit(done)
    assert done.returncode != 0 and seconds < fair_seconds(END_SECONDS)
    assert len(words) == 1 and words[0].startswith(f"shardkit: {message}"), done.stderr
    assert "reached its end" not in done.stdout or how == "return"


@pytest.mark.parametrize(
    "how, library", [("_exit", MPICH), ("_exit", OPEN_MPI), ("segfault", MPICH)]
)
def test_a_rank_that_dies_without_a_word_ends_the_job_and_its_neighbor_names_it(launch, how):
    """The neighbor races with the launcher, which kills it too: it wins 23 of 24 times on a busy
    machine; 3 tries here.
    """
    for _ in range(3):
        done, seconds = launch(how)
        words = words_of_shardkit(done)
        assert done.returncode != 0 and seconds < fair_seconds(END_SECONDS) and len(words) <= 1, (
            done.stderr
        )
        if words:
            break
    assert words and words[0].startswith(
        "shardkit: rank 1 died: its process ended without a word"
    ), done.stderr


@both_libraries
def test_an_error_of_all_ranks_alike_is_one_message_and_its_own_exit_code(launch):
    done, _ = launch("all-guarded")
    assert words_of_shardkit(done) == [
        "shardkit: ConfigurationError: batch of 3 does not divide (on all 4 ranks)"
    ]
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("how, library", [("clean", OPEN_MPI), ("work", MPICH)])
def test_ranks_that_end_without_needing_each_other_are_left_alone(launch, how):
    done, _ = launch(how)
    assert done.returncode == 0 and done.stdout.count("reached its end") == 4
    assert words_of_shardkit(done) == []


@pytest.mark.parametrize("library", [MPICH])
def test_one_rank_fails_like_any_other_number_of_ranks(launch):
    done, _ = launch("all-guarded", num_ranks=1)
    assert words_of_shardkit(done) == [
        "shardkit: ConfigurationError: batch of 3 does not divide (on rank 0)"
    ]
    assert done.returncode == 2
