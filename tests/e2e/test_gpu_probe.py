"""The probe of an MPI library that may take GPU memory: real processes under the mpiexec at hand,
on the stand-in for CuPy.
"""

import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest
from e2e.mpi_jobs import ROOT

from shardkit.testing.gpu import SIZE_CLASSES, VERBS, Verdict, _session_members, _try_all, probe
from shardkit.testing.gpu import gpu_probe as probes

STAND_IN = ROOT / "tests" / "stand_in"
MPIEXEC = Path(sys.executable).with_name("mpiexec")
LIMIT_SECONDS = 400.0  # of the probe: a busy machine takes its time
SABOTAGE = """
import os, signal, sys, time
from shardkit.testing.gpu import MPITransport
broadcast = MPITransport.broadcast
def wrong(self, port, root):
    if port.num_bytes > 1 << 20:
        {deed}
    return broadcast(self, port, root)
MPITransport.broadcast = wrong
"""


@pytest.fixture
def pretended(monkeypatch):
    """Processes of the probe find the stand-in for CuPy, and this one believes in a GPU."""
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside this Python")
    monkeypatch.setattr(sys, "path", [str(STAND_IN), *sys.path])
    monkeypatch.setattr(probes, "gpu_seat", lambda local_rank: None)


class OfTheProbe(subprocess.Popen):
    """A process whose time is over when its ranks say that they hang, and no sooner: what does not
    hang has all the time that a busy machine takes.
    """

    all = []
    hangs = None  # the file by which a rank says so

    def __init__(self, *arguments, **more):
        self.hangs.unlink(missing_ok=True)  # of those before, which have ended
        super().__init__(*arguments, **more)
        self.all.append(self)

    def communicate(self, input=None, timeout=None):
        while timeout is not None and self.poll() is None:
            if self.hangs.exists():
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return super().communicate(input, timeout)


def test_a_library_that_takes_the_memory_passes_every_verb_at_every_size(pretended):
    # The stand-in's GPU memory is ordinary memory, which any MPI takes.
    assert probe(LIMIT_SECONDS) == Verdict.everything()


@pytest.mark.parametrize(
    "deed, reason",
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "broadcast of 16777216 bytes "),
        (
            "open({hangs!r}, 'w').close(); time.sleep(1000)",
            f"broadcast of 16777216 bytes did not end within {LIMIT_SECONDS:g} s",
        ),
        (
            "port._copies._runtime.memset(port.address, 1, 5); port.num_bytes = 0",
            "broadcast of 16777216 bytes ended with exit code",
        ),
    ],
)
def test_a_crash_a_hang_or_wrong_bytes_end_one_verb_at_one_size_and_nothing_else(
    pretended, monkeypatch, tmp_path, deed, reason
):
    hangs = tmp_path / "hangs"
    deed = deed.format(hangs=str(hangs))
    monkeypatch.setattr(probes, "_RUN_TRIALS", SABOTAGE.format(deed=deed) + probes._RUN_TRIALS)
    monkeypatch.setattr(OfTheProbe, "hangs", hangs)
    monkeypatch.setattr(OfTheProbe, "all", [])
    monkeypatch.setattr(subprocess, "Popen", OfTheProbe)
    verdict = probe(LIMIT_SECONDS)
    assert dict(verdict.limits) == {**dict.fromkeys(VERBS, inf), "broadcast": 4 << 20}
    assert verdict.reason.startswith(
        reason
    ) and "yes, send, broadcast up to 4096 KiB, all_gather, all_to_all" in str(verdict)
    started = OfTheProbe.all
    left = [pid for process in started for pid in _session_members(process.pid)]
    assert len(started) == 2 and not left, "processes of the probe are still there"


def test_without_cupy_the_processes_of_the_probe_end_at_once_and_the_answer_is_no(monkeypatch):
    """As with an MPI that cannot do it at all: the least of all trials fails, and no other is
    made.
    """
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside this Python")
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(probes, "gpu_seat", lambda local_rank: None)
    without = [folder for folder in sys.path if folder != str(STAND_IN)]
    monkeypatch.setattr(sys, "path", without)
    runs = []
    run = probes._run
    monkeypatch.setattr(probes, "_run", lambda *arguments: runs.append(run(*arguments)) or runs[-1])
    verdict = probe(LIMIT_SECONDS)
    assert not verdict.takes_anything and len(runs) == 1
    assert str(verdict).startswith("no: send of 1024 bytes ended with exit code")


def test_without_a_gpu_or_an_mpiexec_no_process_is_started(monkeypatch):
    monkeypatch.setattr(probes, "_run", None)
    assert str(probe()).startswith('no: no GPU: device "cuda" needs')
    monkeypatch.setattr(probes, "gpu_seat", lambda local_rank: None)
    monkeypatch.setattr(probes, "find_mpiexec", lambda: None)
    assert "SHARDKIT_GPU_AWARE_MPI=yes if the site says" in str(probe())


def test_a_verb_that_fails_is_not_tried_at_larger_sizes_and_the_others_go_on():
    tried = []

    def run(trials):
        tried.append(trials)
        bad = [trial for trial in trials if trial in (("all_gather", 1 << 10), ("send", 256 << 10))]
        return (trials.index(bad[0]), "crashed") if bad else (len(trials), "")

    verdict = _try_all(run)
    assert verdict == Verdict(
        (("send", 8 << 10), ("broadcast", inf), ("all_gather", 0), ("all_to_all", inf)),
        "all_gather of 1024 bytes crashed; send of 262144 bytes crashed",
    )
    assert len(tried) == 3 and not verdict.takes("all_gather", 1)
    assert verdict.takes("send", 8192) and not verdict.takes("send", 8193)
    assert tried[2][0][0] != "send" and sum(map(len, tried)) < 3 * len(VERBS) * len(SIZE_CLASSES)
