"""On a machine where nothing was compiled, ranks compile for each other, and say so once."""

from pathlib import Path

import pytest
from mpi_jobs import LIBRARIES, run_job

SCRIPT = Path(__file__).with_name("cold_rank.py")


@pytest.mark.timeout(900)  # it compiles, which takes minutes on a busy machine
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_loop_is_compiled_once_by_one_of_the_ranks(library, tmp_path):
    done = run_job(library, SCRIPT, num_ranks=4, time_limit=800, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "compiled 3, of 3; 0 ranks have loaded Numba" in done.stdout
    assert "sums 1" in done.stdout
    assert done.stderr.count("compiling kernels for this kind of CPU, once") == 1
    assert len(list(tmp_path.glob("shardkit/*.kernel"))) >= 3
    assert not list(tmp_path.glob("shardkit/*.claim"))


def test_where_the_code_is_in_files_nothing_is_said(tmp_path):
    for said in (1, 0):
        done = run_job("MPICH", SCRIPT, num_ranks=1, time_limit=800, NUMBA_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0 and done.stderr.count("compiling kernels") == said
