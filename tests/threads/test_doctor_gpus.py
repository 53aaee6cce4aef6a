"""What `shardkit doctor` says of GPUs, on the stand-in for CuPy."""

import platform

import pytest
from stand_in import fake_ipc, fake_nccl, pretended_gpu

from shardkit import run_ranks
from shardkit.testing.doctor import check_gpus

HOST = platform.node()


def findings_of(num_ranks, **machine):
    """Of rank 0, with NCCL and shared memory between processes as good as they get."""
    with pretended_gpu(**machine), fake_nccl.installed(), fake_ipc.installed():
        return run_ranks(num_ranks, check_gpus, timeout=500)[0]


def test_each_gpu_is_a_line_with_its_ranks_and_what_may_connect_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    first, second, mpi, ipc, nccl, arrays = findings_of(2, num_devices=2, capacity_bytes=3 << 30)
    assert first.level == second.level == "ok"
    assert first.found == (
        f"{HOST}: GPU 0 of 2, stand-in at 0000:01:00.0, 3.0 GiB, 3.0 free: rank 0 (on its node 0); "
        "CUDA_VISIBLE_DEVICES 4,5"
    )
    assert (
        "GPU 1 of 2, stand-in at 0000:02:00.0" in second.found
        and "rank 1 (on its node 1)" in second.found
    )
    assert mpi.found == "MPI takes GPU memory: no: these ranks are no MPI processes"
    assert (
        ipc.found.startswith("yes, ranks of a node")
        and nccl.found == "yes, version 2.27.3: gpu_transport nccl"
    )
    assert arrays.found == 'gpu_transport "nccl": NCCL, since each rank has a GPU of its own'


def test_ranks_that_share_a_gpu_are_named_with_what_follows(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first, second, _, _, nccl, arrays = findings_of(3, num_devices=2)
    assert (first.level, second.level) == ("warning", "ok") and "2 ranks share it" in first.advice
    assert "rank 0, 2 (on its node 0, 2); CUDA_VISIBLE_DEVICES unset" in first.found
    assert nccl.found == "no: version 2.27.3 wants a GPU for each rank"
    assert arrays.found == (
        'gpu_transport "staged": through page-locked host memory; quicker would be NCCL, but '
        f"ranks 0, 2 share GPU 0000:01:00.0 on {HOST}; start as many ranks per node as there are "
        "GPUs"
    )


@pytest.mark.thorough
def test_many_gpus_do_not_fill_the_screen():
    findings = findings_of(20, num_devices=19)
    gpus = [finding for finding in findings if finding.topic == "GPU"]
    assert len(gpus) == 17 and gpus[-1].found == "and 3 GPUs more" and gpus[0].level == "warning"


@pytest.mark.parametrize(
    "missing, words", [(None, 'device "cuda" needs CuPy, which is not installed'), (0, "GPU")]
)
def test_without_cupy_or_a_gpu_one_line_says_so_and_what_is_missing(monkeypatch, missing, words):
    import sys

    if missing is None:
        monkeypatch.setitem(sys.modules, "cupy", None)
        findings = run_ranks(2, check_gpus, timeout=500)[0]
    else:
        findings = findings_of(2, num_devices=0)
    assert [(finding.level, finding.topic) for finding in findings] == [("ok", "GPU")]
    assert findings[0].found.startswith("none, so device is cpu: ") and words in findings[0].found


def test_without_nccl_or_shared_memory_the_reasons_are_given():
    with pretended_gpu(num_devices=2), fake_ipc.installed(refuses=True):
        findings = {
            finding.topic: finding.found for finding in run_ranks(2, check_gpus, timeout=500)[0]
        }
    assert (
        findings["NCCL"].startswith("no: rank 0: CuPy finds no NCCL")
        and "cannot be opened" in findings["GPU-IPC"]
    )
