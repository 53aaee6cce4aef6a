"""`shardkit doctor`: alone, under mpiexec, and what it says when something is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.mpi_jobs import OPEN_MPI_SETTINGS, ROOT, mpi_of, python_of, words_of_shardkit

from shardkit import run_ranks
from shardkit.testing.doctor import (
    Finding,
    _judge,
    _judge_trial,
    as_json,
    as_text,
    check_folder,
    check_python_files,
    exit_code,
)
from shardkit.testing.doctor import files as doctor_files

MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
TOPICS = [
    "versions",
    "HDF5",
    "MPI",
    "threads",
    "elastic",
    "launcher",
    "nodes",
    "cores",
    "BLAS",
    "mkl",
    "onednn",
    "GPU",
    "time",
    "folder",
    "rename",
    "locks",
    "speed",
    "network",
]


def doctor(*options, ranks=None, mpiexec=MPIEXEC, python=sys.executable, cwd=None, **environment):
    command = [python, "-m", "shardkit", "doctor", *options]
    command = [mpiexec, "-n", str(ranks), *command] if ranks else command
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
    )


def test_alone_it_looks_at_everything_and_tries_mpiexec(tmp_path):
    done = doctor("--folder=runs/new", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    topics = [line.split()[1] for line in lines[:-1] if not line.startswith(" ")]
    assert [topic for topic in topics if topic != "GPU-MPI"] == TOPICS
    reason = (
        "this Open MPI was started without"
        if mpi_of(sys.executable) == "Open MPI"
        else "MPICH ends the job"
    )
    assert (
        f"the job script starts again after a death, from the newest checkpoint, since {reason}"
        in done.stdout
    )
    assert "mpiexec -n 2 makes a world of 2 ranks" in done.stdout and lines[-1].endswith("error 0")
    assert ", 1 threads, set by the environment" in done.stdout
    assert list(tmp_path.iterdir()) == []  # its files are gone, and no folder was made


def test_under_mpiexec_one_rank_reports_for_all_with_each_axis_of_the_mesh(tmp_path):
    """And the ranks share the cores of their node, as the environment does not set the threads."""
    unset = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), ""
    )
    done = doctor("--json", "--mesh.tensor=2", ranks=4, cwd=tmp_path, **unset)
    report = json.loads(done.stdout)
    findings = {finding["found"]: finding for finding in report["findings"]}
    assert done.returncode == report["exit_code"] == 0, done.stdout
    assert {
        "PMI started 4 ranks, and MPI sees 4",
        "Open MPI started 4 ranks, and MPI sees 4",
    } & set(findings)
    assert (
        sum(
            text.startswith(("data axis of 2: all-reduce of 8 bytes", "tensor axis of 2"))
            for text in findings
        )
        == 2
    )
    share = max(1, len(os.sched_getaffinity(0)) // 4)
    assert any(f", {share} threads, set by nobody" in text for text in findings)
    assert any(text.startswith("ranks by host: ") and text.endswith(": 0-3") for text in findings)
    assert all(finding["advice"] for finding in findings.values() if finding["level"] != "ok")


def test_a_folder_that_cannot_be_written_is_an_error_and_exit_code_1():
    done = doctor("--folder=/proc/sys")
    assert (
        done.returncode == 1 and "error    folder       /proc/sys cannot be written" in done.stdout
    ), done.stdout


def test_a_mesh_that_does_not_fit_is_one_sentence():
    done = doctor("--mesh.tensor=3", ranks=2)
    assert done.returncode == 2 and ["tensor 3" in words for words in words_of_shardkit(done)] == [
        True
    ]
    assert "Traceback" not in done.stderr


def test_ranks_without_mpi_are_told_to_install_it():
    code = (
        "import sys; sys.modules['mpi4py'] = None; from shardkit.testing.cli import main; "
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1 and "error    MPI          MPI is not available" in done.stdout, (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize(
    "launching, loaded, command",
    [("MPICH", "Open MPI", "doctor"), ("Open MPI", "MPICH", "train")],
)
def test_an_mpiexec_of_another_mpi_is_named_once(launching, loaded, command, tmp_path):
    python, mpiexec = python_of(loaded), python_of(launching).with_name("mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", "2", python, "-m", "shardkit", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **OPEN_MPI_SETTINGS, "PYTHONPATH": str(ROOT)},
    )
    output = done.stdout + done.stderr
    fix = f"but mpi4py loads {loaded}; start with {python.with_name('mpiexec')}"
    assert done.returncode != 0 and output.count(fix) == 1, output
    assert not list(tmp_path.iterdir()), "somebody trained alone"


# ---- judgements ----------------------------------------------------------------------------------


def test_the_report_counts_and_an_error_decides_the_exit_code():
    findings = [
        Finding("ok", "a", "fine"),
        Finding("warning", "b", "slow", "do this"),
        Finding("error", "c", "broken", "do that"),
    ]
    assert as_text(findings).splitlines() == [
        "ok       a            fine",
        "warning  b            slow",
        " " * 22 + "-> do this",
        "error    c            broken",
        " " * 22 + "-> do that",
        "ok 1, warning 1, error 1",
    ]
    assert (
        exit_code(findings) == 1 == json.loads(as_json(findings))["exit_code"]
        and exit_code(findings[:2]) == 0
    )


@pytest.mark.parametrize(
    "code, printed, level, words",
    [
        (0, "world of 2;world of 2;", "ok", "makes a world of 2"),
        (0, "world of 1;world of 1;", "error", "not the mpiexec of MPICH"),
        (1, "", "error", "ended with exit code 1: no slots"),
        (0, "world of 2;", "error", "exit code 0"),
    ],
)
def test_a_trial_of_mpiexec_is_judged_by_the_worlds_it_makes(code, printed, level, words):
    done = subprocess.CompletedProcess([], code, printed, "sorry\nno slots\n")
    (finding,) = _judge_trial("mpiexec", "MPICH", done)
    assert finding.level == level and words in finding.found


@pytest.mark.parametrize(
    "latency, bandwidth, level", [(5e-6, 5e9, "ok"), (2e-3, 5e9, "warning"), (5e-6, 1e8, "warning")]
)
def test_a_slow_network_is_a_warning(latency, bandwidth, level):
    (finding,) = _judge("data", 4, latency, bandwidth)
    assert finding.level == level


def test_ranks_that_do_not_see_the_same_folder_are_named(tmp_path):
    """Rank 2 looks at a folder of its own, as on a disk that each node has for itself."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()

    class Elsewhere(type(here)):
        def is_dir(self):
            return (there / self.name).is_dir()

    def run(backend):
        if backend.rank == 2:
            share = backend.broadcast_object

            def broadcast_object(value, root):
                first, *rest = share(value, root)
                return Elsewhere(first), *rest

            backend.broadcast_object = broadcast_object
        return check_folder(backend, here)

    for findings in run_ranks(3, run):
        assert [finding.level for finding in findings] == [
            "error"
        ] and "not the folder of rank 2" in findings[0].found
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "options, words",
    [
        (
            (),
            "this Open MPI was started without fault tolerance; start with its own mpiexec "
            "--with-ft ulfm",
        ),
        (
            ("--with-ft", "ulfm"),
            "a rank may die: with run.elastic=true the others go on in the same job",
        ),
    ],
)
def test_it_says_which_way_an_elastic_run_takes(tmp_path, options, words):
    python = python_of("Open MPI")
    done = subprocess.run(
        [python.with_name("mpiexec"), *options, "-n", "2", python, "-m", "shardkit", "doctor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **OPEN_MPI_SETTINGS, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and done.stdout.count(words) == 1, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "ext4", "tmpfs", "overlay"])
def test_files_of_python_on_what_nodes_share_are_a_warning_with_its_cure(monkeypatch, kind):
    monkeypatch.setattr(doctor_files, "_file_system", lambda folder: kind)
    found = check_python_files()
    assert bool(found) == (kind in ("nfs4", "lustre", "gpfs"))
    assert all(kind in each.found and "--stage /dev/shm" in each.advice for each in found)
