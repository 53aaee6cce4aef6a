"""Where nothing was compiled before, one process compiles for all ranks; that is said once.

A start of many ranks asks for hardly more files than so many starts of one.
"""

import shutil
from pathlib import Path

import pytest
from file_calls import file_calls_in, needs_strace, traced
from mpi_jobs import LIBRARIES, python_of, run_job, run_programs

import shardkit

SCRIPT = Path(__file__).with_name("cold_rank.py")


def machine_code(folder, names):
    """Return what holds code of kernels, and nothing of what Python has compiled."""
    in_cache = Path(folder).name == "__pycache__"
    held = {name for name in names if in_cache and not name.endswith(".pyc")}
    return held | {name for name in names if name.endswith(".kernels")}


@pytest.fixture
def fresh(tmp_path):
    """The environment of a machine that has no code: what ran before left it beside the package."""
    package = tmp_path / "installed" / "shardkit"
    shutil.copytree(Path(shardkit.__file__).parent, package, ignore=machine_code)
    own = {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(tmp_path / "code")}
    return own | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}


@pytest.mark.timeout(900)  # it compiles, which takes minutes on a busy machine
@pytest.mark.parametrize("library", LIBRARIES)
def test_one_process_of_the_node_compiles_for_all_ranks(library, fresh, tmp_path):
    done = run_job(library, SCRIPT, num_ranks=4, time_limit=800, **fresh)
    assert done.returncode == 0, done.stderr
    assert "1 started to compile; 0 ranks have loaded Numba" in done.stdout
    assert "sums 1" in done.stdout
    assert done.stderr.count("compiling kernels for this kind of CPU, once") == 1
    assert len(list(tmp_path.glob("code/shardkit/*.kernel"))) >= 3
    assert not list(tmp_path.glob("code/shardkit/*.claim"))


def test_where_the_code_is_in_files_nothing_is_said(fresh):
    for said in (1, 0):
        done = run_job("MPICH", SCRIPT, num_ranks=1, time_limit=800, **fresh)
        assert done.returncode == 0 and done.stderr.count("compiling kernels") == said


START = """
import shardkit as sk
backend = sk.MPICommunicationBackend()
backend.initialize()
backend.barrier()
backend.shutdown()
"""
MOST_FILE_CALLS = 4500  # of a rank, and as many as tests/pure/test_imports.py allows a backend


@needs_strace
def test_a_start_of_four_ranks_asks_for_few_more_files_than_four_starts_of_one(tmp_path):
    of_ranks = {}
    for num_ranks in (1, 4):
        folder = tmp_path / str(num_ranks)
        folder.mkdir()
        program = [*traced(folder), python_of("MPICH"), "-P", "-c", START]
        done = run_programs("MPICH", [(num_ranks, program)])
        assert done.returncode == 0, done.stderr
        of_ranks[num_ranks] = file_calls_in(folder) / num_ranks
    assert 0 < of_ranks[1] <= MOST_FILE_CALLS
    assert of_ranks[4] <= 1.25 * of_ranks[1]  # one has no neighbors whose memory it sees
