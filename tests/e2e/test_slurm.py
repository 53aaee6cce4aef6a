"""Rendered job scripts on a real SLURM: they train on two nodes, are queued again when time ends, and lose nothing.

The cluster is made for these tests (slurm_cluster.py). It needs root and Debian's slurm-wlm and munge; else they are skipped.
"""
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, why_not

from shardkit.checkpoint.diff import compare
from shardkit.checkpoint.find import find_checkpoint

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SMALL = ["--model.width=16", "--model.layers=2", "--model.heads=2", "--model.sequence_length=32", "--batch.sequences=8",
         "--batch.micro_batch=2", "--run.report_every=1", "--run.validate_every=100000", "--run.validation_batches=1",
         "--run.checkpoint_every=100000", "--sample.tokens=0", "--optimizer.decay_steps=100000", "--data.path=text.txt"]
ENDLESS = "--run.steps=100000"

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def cluster():
    with SlurmCluster(num_nodes=2) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path):
    """With a text, and with the site's env.sh as this machine needs it."""
    (tmp_path / "text.txt").write_text("".join(f"line {i} with the number {i * i}\n" for i in range(600)))
    (tmp_path / "env.sh").write_text(f"export PYTHONPATH={ROOT}\nPYTHON=({sys.executable})\n"
                                     f'SRUN=(srun --mpi=pmi2)\nMPIEXEC=({BIN}/mpiexec -ppn "$RANKS_PER_NODE")\n')
    return tmp_path


def render(folder, template, *options):
    """The name of a script for two ranks, one on each of two nodes."""
    subprocess.run([sys.executable, "-m", "shardkit", "render", "--template", template, "--nodes=2", "--ranks-per-node=1",
                    "--time=00:05:00", "--env=env.sh", "--output=job.sh", *SMALL, "--run.folder=run", *options],
                   cwd=folder, check=True, timeout=30)
    return "job.sh"


def steps_done(folder, run="run"):
    path = folder / run / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def wait_until(holds, seconds=40):
    """What holds() returns as soon as it is true; fails when the time is over."""
    deadline = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < deadline, f"nothing came of it within {seconds} s"
        time.sleep(0.1)
    return result


def saved_steps(folder, run="run"):
    return sorted(int(path.name[5:]) for path in (folder / run / "checkpoints").glob("step-*") if path.suffix == "")


def bits_equal(one, other):
    return compare(find_checkpoint(one)[0], find_checkpoint(other)[0], tolerance=0.0, model_only=False).is_equal


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_rendered_job_trains_on_two_nodes(cluster, folder, launcher):
    job = cluster.submit(render(folder, "multi_node", f"--launcher={launcher}", "--run.steps=5"), cwd=folder)
    cluster.wait(job, "COMPLETED")
    assert steps_done(folder) == 5 and "step 5/5  loss" in cluster.output_of(job)
    logs = [(folder / "run" / "logs" / f"rank-{rank:05d}.log").read_text() for rank in (0, 1)]
    assert sorted(re.search(r"SLURM node (\w+)", log)[1] for log in logs) == ["node1", "node2"]


def test_a_job_is_warned_saves_is_queued_again_and_ends_with_the_bits_of_one_that_was_not(cluster, folder):
    """SLURM itself sends the warning, 30 to 60 seconds before the limit of one minute."""
    slow = ["--run.validate_every=1", "--run.validation_batches=20"]        # keeps a step busy, and changes no bits
    script = render(folder, "multi_node", "--time=00:01:00", "--notice-seconds=30", ENDLESS, *slow)
    job = cluster.submit(script, cwd=folder)
    wait_until(lambda: cluster.detail(job, "Restarts") == "1", 60)
    first, = saved_steps(folder)
    assert first == steps_done(folder), "a step was lost"
    wait_until(lambda: steps_done(folder) >= first + 4, 30)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    output, last = cluster.output_of(job), saved_steps(folder)[-1]
    assert output.count("stopping: SIGUSR1 on rank") == 1 and output.count(f"resumed at step {first}") == 1, output
    assert "exit code 75" in output and last >= first + 4
    whole = [BIN / "mpiexec", "-n", "2", sys.executable, "-m", "shardkit", "train", *SMALL, f"--run.steps={last}",
             "--run.folder=whole"]
    subprocess.run(whole, cwd=folder, check=True, timeout=60, capture_output=True)
    assert bits_equal(folder / "run", folder / "whole")


def test_a_job_ends_in_time_when_no_signal_comes(cluster, folder):
    """The limit is one minute, and the run wants 50 seconds of it to spare."""
    job = cluster.submit(render(folder, "multi_node", "--time=00:01:00", "--notice-seconds=5", "--restarts=1", ENDLESS,
                                "--run.stop_margin_seconds=50"), cwd=folder)
    wait_until(lambda: cluster.detail(job, "Restarts") == "1", 30)
    cluster.run("scancel", job)
    output = cluster.output_of(job)
    assert re.search(r"stopping: \d\ds of the allocation left", output) and "SIGUSR1" not in output, output
    assert saved_steps(folder) == [steps_done(folder)]


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_scancel_loses_no_step_and_the_job_does_not_come_back(cluster, folder, launcher):
    job = cluster.submit(render(folder, "multi_node", f"--launcher={launcher}", ENDLESS), cwd=folder)
    wait_until(lambda: steps_done(folder) >= 3)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    assert saved_steps(folder) == [steps_done(folder)] and cluster.detail(job, "Restarts") == "0"
    assert "stopping: SIGTERM on rank" in cluster.output_of(job)


def test_a_chain_submits_its_next_link_until_the_run_is_done(cluster, folder):
    job = cluster.submit(render(folder, "chain", "--restarts=1", ENDLESS), cwd=folder)
    wait_until(lambda: steps_done(folder) >= 3)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    link = re.search(r"Submitted batch job (\d+)", wait_until(lambda: _match(cluster, job, "Submitted batch job \\d+\n")))[1]
    first, = saved_steps(folder)
    wait_until(lambda: steps_done(folder) > first)
    cluster.run("scancel", "--batch", "--signal=USR1", link)
    wait_until(lambda: _match(cluster, link, "not done after 1 restarts"))
    assert f"resumed at step {first}" in cluster.output_of(link) and cluster.run("squeue", "-h").stdout == ""


def _match(cluster, job, pattern):
    found = re.search(pattern, cluster.output_of(job))
    return found and found[0]


def test_an_array_is_one_run_for_each_setting(cluster, folder):
    job = cluster.submit(render(folder, "array", "--nodes=1", "--sweep=optimizer.learning_rate=1e-3,2e-3", "--run.steps=3"),
                         cwd=folder)
    wait_until(lambda: cluster.run("squeue", "-h", "-j", job).stdout == "")
    rates = [json.loads((folder / "run" / run / "configuration.json").read_text())["optimizer"]["learning_rate"] for run in "01"]
    assert rates == [1e-3, 2e-3] and [steps_done(folder, f"run/{run}") for run in "01"] == [3, 3]


def test_srun_without_a_protocol_for_mpi_is_refused_with_the_fix(cluster, folder):
    done = cluster.run("srun", "--nodes=2", "--ntasks=2", sys.executable, "-m", "shardkit", "train", *SMALL, cwd=folder)
    assert done.returncode == 1 and not (folder / "runs").exists()
    assert "the launcher started 2 ranks, but MPI sees a world of 1" in done.stderr and "srun --mpi=pmi2" in done.stderr
