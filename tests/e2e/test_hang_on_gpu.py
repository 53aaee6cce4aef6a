"""A job in which a GPU waits for a rank that does not come is ended like any other that hangs: MPI
processes with stand-ins for CuPy and NCCL.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.testing.comm import hang_report

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
WORDS = {
    "door": r"no progress in wait for the GPU; last NCCL call \d+, all_reduce of 1 k on data "
    r"\(call \d+ on group world\) within 3 s: rank 1 is missing; the job is ended",
    # the stand-in computes on arrays at once, so that it waits in the midst of a verb already
    "step": r"no progress in .*\(call \d+ on group world/[\d.]+\).* within 3 s: rank 1 is missing; "
    r"the job is ended",
    "get": r"no progress in all_reduce \(call \d+ on group world\), which the GPU is in, while its "
    r"host is in no call within 3 s: rank 1 is missing; the job is ended",
}


@pytest.mark.parametrize("how", WORDS)
@pytest.mark.thorough(but=1)
def test_a_gpu_that_waits_for_a_lost_rank_ends_the_job(tmp_path, how):
    (tmp_path / "nccl").mkdir()
    process = subprocess.Popen(
        [MPIEXEC, "-n", "2", sys.executable, HERE / "waiting_rank.py", tmp_path / "ledgers", how],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "FAKE_NCCL_FOLDER": str(tmp_path / "nccl"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parents[1])]),
        },
    )
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 1, output
    assert len(re.findall(WORDS[how], output)) == output.count("no progress in") == 1, output
    assert output.count("began on rank") == 2 and "not ended" not in output, output
    report = hang_report(tmp_path / "ledgers")
    assert "rank 1 in no call" in report
    if how == "door":
        assert re.search(r"rank 0 in wait for the GPU, in \w+ of [\d,]+ float32 \(call", report)
