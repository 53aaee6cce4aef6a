"""Common runs find their code in a pack, and then neither Numba nor LLVM is loaded."""

import pytest
from mpi_jobs import ROOT, run_job

from shardkit.testing.array import common, target

SCRIPT = ROOT / "tests" / "common_runs.py"


@pytest.mark.timeout(1500)  # nothing may be compiled yet
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_table_of_common_loops_is_what_common_runs_ask_for(num_ranks):
    """After a change of loops: python tests/common_runs.py --write."""
    for _ in range(2):  # the second finds all code in files
        done = run_job("MPICH", SCRIPT, num_ranks=num_ranks, time_limit=700)
        assert done.returncode == 0, done.stderr
        *lines, loaded = done.stdout.splitlines()
        if loaded == "loaded:":
            break
    assert loaded == "loaded:"
    missing = set(lines) - set(common(target().has_pairs))
    assert not missing and len(lines) > 40
