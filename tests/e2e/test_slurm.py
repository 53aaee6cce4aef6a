"""Rendered job scripts on a real SLURM: they train on two nodes, are queued again when time ends,
and lose nothing.

The cluster is made for these tests (slurm_cluster.py). It needs root and Debian's slurm-wlm and
munge; else they are skipped.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.mpi_jobs import python_of
from slurm_cluster import ENDED, SlurmCluster, why_not

from shardkit.testing.checkpoint import compare, find_checkpoint

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SMALL = [
    "--model.width=16",
    "--model.layers=2",
    "--model.heads=2",
    "--model.sequence_length=32",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--run.report_every=1",
    "--run.validate_every=100000",
    "--run.validation_batches=1",
    "--run.checkpoint_every=100000",
    "--sample.tokens=0",
    "--optimizer.decay_steps=100000",
    "--data.path=text.txt",
]
SLOW = f"""
import os, sys, time
sys.path.insert(0, "{ROOT}/examples")
import surrogate

class Residual(surrogate.Residual):
    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().forward(x)

surrogate.Residual = Residual

class Surrogate(surrogate.Surrogate):
    pass
"""
OWN = [  # a task of the user's own, whose validation takes most of a step
    "--task=slow.py:Surrogate",
    "--data.path=table.h5",
    "--data.features=x",
    "--data.target=y",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--run.report_every=1",
    "--run.validate_every=1",
    "--run.validation_batches=20",
    "--run.checkpoint_every=100000",
    "--optimizer.decay_steps=100000",
]
ENDLESS = "--run.steps=100000"
TRIES = 3  # of a job that SLURM may warn before the first line of its script

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module")
def own_cluster():
    python_of("MPICH")  # whose ranks srun --mpi=pmi2 starts; else a skip
    with SlurmCluster(num_nodes=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(own_cluster):
    """Idle nodes; whatever the test leaves there is ended after it."""
    yield own_cluster
    own_cluster.clear()


@pytest.fixture
def folder(tmp_path):
    """With a text, and with the site's env.sh as this machine needs it."""
    (tmp_path / "text.txt").write_text(
        "".join(f"line {i} with the number {i * i}\n" for i in range(600))
    )
    (tmp_path / "env.sh").write_text(
        f"export PYTHONPATH={ROOT}\nPYTHON=({sys.executable})\nLAUNCH_SECONDS=5\n"
        f'SRUN=(srun --mpi=pmi2)\nMPIEXEC=({BIN}/mpiexec -ppn "$RANKS_PER_NODE")\n'
    )
    return tmp_path


def render(folder, template, *options, settings=SMALL):
    """The name of a script for two ranks, one on each of two nodes."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "shardkit",
            "render",
            "--template",
            template,
            "--nodes=2",
            "--ranks-per-node=1",
            "--time=00:05:00",
            "--env=env.sh",
            "--output=job.sh",
            *settings,
            "--run.folder=run",
            *options,
        ],
        cwd=folder,
        check=True,
        timeout=500,
    )
    return "job.sh"


def steps_done(folder, run="run"):
    path = folder / run / "metrics.jsonl"
    lines = (
        [line for line in path.read_text().splitlines() if line.endswith("}")]
        if path.exists()
        else []
    )
    return json.loads(lines[-1])["step"] if lines else 0


def saved_steps(folder, run="run"):
    return sorted(
        int(path.name[5:])
        for path in (folder / run / "checkpoints").glob("step-*")
        if path.suffix == ""
    )


def bits_equal(one, other):
    return compare(
        find_checkpoint(one)[0], find_checkpoint(other)[0], tolerance=0.0, model_only=False
    ).is_equal


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_rendered_job_trains_on_two_nodes(cluster, folder, launcher):
    job = cluster.submit(
        render(folder, "multi_node", f"--launcher={launcher}", "--run.steps=5"), cwd=folder
    )
    cluster.wait(job, "COMPLETED")
    assert steps_done(folder) == 5 and "step 5/5  loss" in cluster.output_of(job)
    logs = [(folder / "run" / "logs" / f"rank-{rank:05d}.log").read_text() for rank in (0, 1)]
    assert sorted(re.search(r"SLURM node (\w+)", log)[1] for log in logs) == ["node1", "node2"]


def staged_lines(cluster, folder, *options):
    """Run a rendered job whose ranks say where their modules lie; return its lines."""
    (folder / "where.py").write_text(
        "import os, json, numpy, _json, shardkit as sk\n"
        "backend = sk.MPICommunicationBackend()\n"
        "places = [module.__file__ for module in (json, numpy, _json, sk)]\n"
        "print('rank', backend.rank, os.environ['SLURMD_NODENAME'], *places, flush=True)\n"
        "backend.shutdown()\n"
    )
    own = ("--", "python", "where.py")
    job = cluster.submit(render(folder, "multi_node", *options, *own, settings=()), cwd=folder)
    cluster.wait(job, "COMPLETED", 240)
    return cluster.output_of(job).splitlines()


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_the_files_of_python_are_staged_to_the_memory_of_each_node(cluster, folder, launcher):
    if not cluster.has_own_memory:
        pytest.skip("no folder of a node's own can be mounted here")
    lines = staged_lines(cluster, folder, f"--launcher={launcher}", f"--stage={cluster.memory}")
    ranks = [line.split() for line in lines if line.startswith("rank ")]
    assert sorted(rank[1:3] for rank in ranks) == [["0", "node1"], ["1", "node2"]], lines
    for rank in ranks:
        assert all(place.startswith(f"{cluster.memory}/shardkit-") for place in rank[3:]), lines
    assert not any(cluster.memory.iterdir())  # of this machine: only nodes had something there


def test_ranks_start_where_nothing_can_be_staged(cluster, folder):
    lines = staged_lines(cluster, folder, "--launcher=srun", f"--stage={folder}/missing")
    ranks = [line.split() for line in lines if line.startswith("rank ")]
    assert len(ranks) == 2 and all(str(ROOT / "shardkit") in rank[-1] for rank in ranks)
    assert any("could not be copied" in line for line in lines)


def test_a_job_is_warned_saves_is_queued_again_and_ends_with_the_bits_of_one_that_was_not(
    cluster, folder
):
    """A task of the user's own, whose steps are slow in the job: what it does until it is warned is
    done again by one that is not. SLURM itself sends the warning, 150 to 180 seconds before the
    limit of three minutes: at any time of the start, too.

    With less between the warning and the limit, a busy machine starts the ranks too late to hear of
    it. The second start must not be warned again before the test is done with it: it has a later
    limit.
    """
    table = ROOT / "examples" / "surrogate_table.py"
    subprocess.run([sys.executable, table, "table.h5"], cwd=folder, check=True)
    (folder / "slow.py").write_text(SLOW)
    with open(folder / "env.sh", "a") as env:
        env.write("export PAUSE=0.002\n")
    script = render(
        folder, "multi_node", "--time=00:03:00", "--notice-seconds=150", ENDLESS, settings=OWN
    )
    jobs = [cluster.submit(script, cwd=folder)]

    def is_queued_again():
        state, output = cluster.state(jobs[-1]), cluster.output_of(jobs[-1])
        if state == "FAILED" and not output and len(jobs) < TRIES:
            jobs.append(cluster.submit(script, cwd=folder))  # warned before its first line
            return False
        assert state not in ENDED, output
        return cluster.detail(jobs[-1], "Restarts") == "1"

    cluster.wait_until(is_queued_again, 240)
    job = jobs[-1]
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=00:30:00")
    (first,) = saved_steps(folder)
    assert first == steps_done(folder), "a step was lost"
    cluster.wait_until(lambda: steps_done(folder) >= first + 4)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    output, last = cluster.output_of(job), saved_steps(folder)[-1]
    assert (
        output.count("stopping: SIGUSR1 on rank") == 1
        and output.count(f"resumed at step {first}") == 1
    ), output
    assert "exit code 75" in output and last >= first + 4
    whole = [
        BIN / "mpiexec",
        "-n",
        "2",
        sys.executable,
        "-m",
        "shardkit",
        "train",
        *OWN,
        f"--run.steps={last}",
        "--run.folder=whole",
    ]
    subprocess.run(whole, cwd=folder, check=True, timeout=500, capture_output=True)
    assert bits_equal(folder / "run", folder / "whole")


@pytest.mark.parametrize("launcher, seconds", [("srun", 0.0), ("mpiexec", 0.5)])
def test_a_warning_to_a_job_whose_ranks_do_not_listen_yet_is_heard_later(
    cluster, folder, launcher, seconds
):
    with open(folder / "env.sh", "a") as env:
        env.write("echo begun\n")
    job = cluster.submit(
        render(folder, "multi_node", f"--launcher={launcher}", ENDLESS), cwd=folder
    )
    cluster.wait_until(lambda: cluster.output_of(job))
    time.sleep(seconds)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.wait_until(lambda: cluster.detail(job, "Restarts") == "1")
    output = cluster.output_of(job)
    assert (
        "stopping: SIGUSR1 on rank" in output and "the ranks ended with exit code 75" in output
    ), output


def test_a_job_ends_in_time_when_no_signal_comes(cluster, folder):
    """The run wants all but ten seconds of ten minutes to spare. SLURM warns from half a minute
    before the notice on: minutes later, so that a slow start of the ranks does not hand them the
    signal first.
    """
    job = cluster.submit(
        render(
            folder,
            "multi_node",
            "--time=00:10:00",
            "--notice-seconds=5",
            "--restarts=1",
            ENDLESS,
            "--run.stop_margin_seconds=590",
        ),
        cwd=folder,
    )
    cluster.wait_until(lambda: cluster.detail(job, "Restarts") == "1", 120)
    cluster.run("scancel", job)
    output = cluster.output_of(job)
    assert (
        re.search(r"stopping: \d+m\d\ds of the allocation left", output) and "SIGUSR1" not in output
    ), output
    assert saved_steps(folder) == [steps_done(folder)]


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_scancel_loses_no_step_and_the_job_does_not_come_back(cluster, folder, launcher):
    job = cluster.submit(
        render(folder, "multi_node", f"--launcher={launcher}", ENDLESS), cwd=folder
    )
    cluster.wait_until(lambda: steps_done(folder) >= 3)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    assert saved_steps(folder) == [steps_done(folder)] and cluster.detail(job, "Restarts") == "0"
    assert "stopping: SIGTERM on rank" in cluster.output_of(job)


def test_a_chain_submits_its_next_link_until_the_run_is_done(cluster, folder):
    job = cluster.submit(render(folder, "chain", "--restarts=1", ENDLESS), cwd=folder)
    cluster.wait_until(lambda: steps_done(folder) >= 3)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    submitted = cluster.wait_until(lambda: _match(cluster, job, "Submitted batch job \\d+\n"))
    link = re.search(r"Submitted batch job (\d+)", submitted)[1]
    (first,) = saved_steps(folder)
    cluster.wait_until(lambda: steps_done(folder) > first)
    cluster.run("scancel", "--batch", "--signal=USR1", link)
    cluster.wait_until(lambda: _match(cluster, link, "not done after 1 restarts"))
    assert f"resumed at step {first}" in cluster.output_of(link)
    # The link itself may still be completing; one more would be there for ever.
    cluster.wait_until(lambda: not cluster.run("squeue", "-h").stdout)


def _match(cluster, job, pattern):
    found = re.search(pattern, cluster.output_of(job))
    return found and found[0]


def test_an_array_is_one_run_for_each_setting(cluster, folder):
    job = cluster.submit(
        render(
            folder,
            "array",
            "--nodes=1",
            "--sweep=optimizer.learning_rate=1e-3,2e-3",
            "--run.steps=3",
        ),
        cwd=folder,
    )
    cluster.wait_until(lambda: cluster.run("squeue", "-h", "-j", job).stdout == "")
    rates = [
        json.loads((folder / "run" / run / "configuration.json").read_text())["optimizer"][
            "learning_rate"
        ]
        for run in "01"
    ]
    assert rates == [1e-3, 2e-3] and [steps_done(folder, f"run/{run}") for run in "01"] == [3, 3]


def test_what_a_test_leaves_on_the_cluster_is_gone_before_the_next(own_cluster, folder):
    """Two jobs: one that no signal but KILL ends, as in an MPI_Init that hangs, and one that waits
    for its nodes.
    """
    (folder / "deaf.sh").write_text(
        "#!/bin/bash\ntrap '' TERM USR1\necho deaf\n"
        "srun -N 2 bash -c 'trap \"\" TERM USR1; for i in $(seq 1000); do sleep 0.1; done'\n"
    )
    deaf, waiting = (
        own_cluster.submit("deaf.sh", "--nodes=2", "--exclusive", cwd=folder) for _ in range(2)
    )
    own_cluster.wait_until(lambda: "deaf" in own_cluster.output_of(deaf))
    own_cluster.clear()
    assert {own_cluster.state(job) for job in (deaf, waiting)} == {"CANCELLED"}
    assert (
        own_cluster.run("squeue", "-h").stdout == ""
        and own_cluster.run("sinfo", "-h", "-o", "%t").stdout == "idle\n"
    )


def test_srun_without_a_protocol_for_mpi_is_refused_with_the_fix(cluster, folder):
    done = cluster.run(
        "srun",
        "--nodes=2",
        "--ntasks=2",
        sys.executable,
        "-m",
        "shardkit",
        "train",
        *SMALL,
        cwd=folder,
    )
    assert done.returncode == 1 and not (folder / "runs").exists()
    assert (
        "the launcher started 2 ranks, but MPI sees a world of 1" in done.stderr
        and "srun --mpi=pmi2" in done.stderr
    )


PLACES = """
import os, sys
from mpi4py import MPI
node, numbers = os.environ["SLURMD_NODENAME"], MPI.COMM_WORLD.allgather(os.getpid())
print(f"rank {MPI.COMM_WORLD.rank} of {len(set(numbers))} {sys.argv[1]} on {node}", flush=True)
"""
COUPLING = """
import numpy
import shardkit as sk
with sk.coupled(trainers=1) as c:
    if c.is_solver:
        for put in range(8):
            c.put(x=numpy.ones(4, "float32"), y=numpy.ones(1, "float32"))
    else:
        model = sk.FSDPModel(sk.models.MLP([4, 1]), sk.ShardingConfiguration(c.backend))
        print(len([model.train(*part) for part in c.batches(model, 4)]), "steps", flush=True)
"""
OF_BOTH = {
    "coupled_shared": (
        PLACES,
        ("--ranks-per-node=3",),
        ["solver on node1", "solver on node1", "solver on node2", "solver on node2"]
        + ["trains! on node1", "trains! on node2"],
    ),
    "coupled_split": (
        PLACES + COUPLING,
        ("--nodes=1", "--trainer-nodes=1"),
        ["solver on node1", "trains! on node2"],
    ),
}


@pytest.mark.parametrize("template", OF_BOTH)
def test_a_solver_and_its_training_are_one_job(cluster, folder, template):
    program, options, places = OF_BOTH[template]
    (folder / "both.py").write_text(program)
    own = ("--solver=python both.py solver", "--trainers=1", *options)
    script = render(folder, template, *own, "--", "python", "both.py", "trains!", settings=())
    job = cluster.submit(script, cwd=folder)
    cluster.wait(job, "COMPLETED", 240)
    output = cluster.output_of(job)
    ranks = dict(re.findall(r"rank (\d) of \d (.*)", output))
    assert [ranks[rank] for rank in sorted(ranks)] == places, output
    assert output.count(f"of {len(places)} ") == len(places)
    assert template == "coupled_shared" or "2 steps" in output, output
