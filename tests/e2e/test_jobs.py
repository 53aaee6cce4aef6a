"""Job scripts: what `shardkit render` fills in and refuses, and what the scripts do with exit codes
and signals.

No batch system is needed: where a script calls one, a stand-in writes down what it was asked.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.mpi_jobs import hear_ctrl_c

from shardkit import ConfigurationError, MeshError
from shardkit.testing.slurm import TEMPLATES, JobPlan, render
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of

RunConfiguration = configuration_of(Language)

JOBS = Path(__file__).parents[2] / "jobs"
KINDS = [("slurm", template) for template in TEMPLATES] + [
    ("pbs", "multi_node"),
    ("lsf", "multi_node"),
]

ELASTIC = [kind for kind in KINDS if kind[1] not in ("array", "coupled_shared", "coupled_split")]
SHARED = {"solver": ("./solver", "a $b"), "trainers": 1, "command": ("python", "train.py")}
COUPLED = {"coupled_shared": SHARED, "coupled_split": {**SHARED, "trainer_nodes": 1}}


def rendered(scheduler="slurm", template="multi_node", settings=(), **changes):
    """A script for 1 node x 2 ranks, unless something else is said."""
    sweep = (("run.seed", ("0", "1")),) if template == "array" else ()
    plan = {
        "template": template,
        "nodes": 1,
        "ranks_per_node": 2,
        "scheduler": scheduler,
        "sweep": sweep,
        "launcher": "srun" if scheduler == "slurm" else "mpiexec",
        **COUPLED.get(template, {}),
        **changes,
    }
    configuration = RunConfiguration().replace({"run.folder": "runs/a b", **dict(settings)})
    return render(
        JobPlan(**plan),
        configuration,
        [f"--{key}={value}" for key, value in dict(settings).items()],
        "job.sh",
    )


# ---- rendering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler, template", KINDS)
def test_every_placeholder_is_filled(scheduler, template):
    script = rendered(scheduler, template)
    assert "@{" not in script and script.startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=500)


def test_the_script_asks_for_what_the_configuration_needs():
    script = rendered(
        nodes=2,
        ranks_per_node=4,
        time="1-02:03:04",
        name="mine",
        notice_seconds=90,
        settings={"run.threads": 3, "batch.sequences": 64, "mesh.pipeline": 2},
    )
    for line in (
        "--job-name=mine",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=3",
        "--time=26:03:04",
        "--signal=B:USR1@90",
        "--requeue",
        "--open-mode=append",
    ):
        assert f"#SBATCH {line}\n" in script
    assert 'THREADS="3"' in script and '"--mesh.pipeline=2" "--run.folder=runs/a b"' in script


@pytest.mark.parametrize("scheduler, template", KINDS)
def test_a_script_of_ones_own_takes_the_place_of_the_command(scheduler, template):
    command = ("python", "my script.py", "--data=$HOME/a b")
    if template == "array":
        with pytest.raises(ConfigurationError, match="render a job for each script"):
            rendered(scheduler, template, command=command)
        return
    script = rendered(scheduler, template, ranks_per_node=7, command=command)
    assert r'run_ranks "${PYTHON[@]}" "my script.py" "--data=\$HOME/a b"' + "\n" in script
    assert "my script" in script and "shardkit train" not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=500)
    with pytest.raises(ConfigurationError, match="--mesh.pipeline with a command of one's own"):
        rendered(scheduler, template, {"mesh.pipeline": 2}, command=command)


def test_a_sweep_is_every_combination():
    script = rendered(
        template="array",
        sweep=(("run.seed", ("0", "1")), ("optimizer.name", ("sgd", "adam"))),
        at_once=3,
    )
    assert "--array=0-3%3" in script
    assert re.findall(r'^    "(--run.seed.*)"$', script, re.M) == [
        f"--run.seed={seed} --optimizer.name={name}"
        for seed, name in itertools.product("01", ("sgd", "adam"))
    ]


@pytest.mark.parametrize(
    "changes, settings, error, words",
    [
        (
            {"nodes": 2},
            {"mesh.pipeline": 3},
            MeshError,
            "2 nodes x 2 ranks per node = 4 ranks do not fit: pipeline 3 x tensor 1",
        ),
        (
            {"ranks_per_node": 8},
            {},
            ConfigurationError,
            "8 ranks do not fit: batch.sequences = 16 does not divide",
        ),
        ({"template": "single_node", "nodes": 2}, {}, ConfigurationError, "--template multi_node"),
        ({"template": "array", "sweep": ()}, {}, ConfigurationError, "--sweep"),
        (
            {"template": "array", "sweep": (("run.sede", ("1",)),)},
            {},
            ConfigurationError,
            "did you mean run.seed",
        ),
        (
            {"template": "array", "sweep": (("mesh.pipeline", ("1", "3")),)},
            {},
            MeshError,
            "pipeline 3",
        ),
        (
            {"template": "array", "sweep": (("data.path", ("a b",)),)},
            {},
            ConfigurationError,
            "no spaces",
        ),
        ({"time": "90"}, {}, ConfigurationError, r"\[D-\]HH:MM:SS"),
        (
            {"time": "00:01:00", "notice_seconds": 60},
            {},
            ConfigurationError,
            "not less than --time",
        ),
        ({"ranks_per_node": 0}, {}, ConfigurationError, "--ranks-per-node 0; wanted at least 1"),
        ({"scheduler": "pbs", "template": "array"}, {}, ConfigurationError, "for pbs there is"),
        ({}, {"parallel.device": "cuda"}, ConfigurationError, "gpu_node"),
        ({"solver": ("a",)}, {}, ConfigurationError, "multi_node takes no --solver"),
        (
            {"template": "coupled_split", "trainer_nodes": None},
            {},
            ConfigurationError,
            "needs --trainer-nodes",
        ),
        (
            {"template": "coupled_shared", "trainer_nodes": 1},
            {},
            ConfigurationError,
            "takes no --trainer-nodes",
        ),
        ({"template": "coupled_shared", "trainers": 2}, {}, ConfigurationError, "left to solve"),
        ({"template": "coupled_shared", "trainers": 0}, {}, ConfigurationError, "--trainers 0;"),
        ({"template": "coupled_split", "trainer_nodes": 0}, {}, ConfigurationError, "nodes 0;"),
        ({"template": "coupled_shared", "gpus_per_node": 1}, {}, ConfigurationError, "all alike"),
        ({"template": "coupled_shared", "command": ()}, {}, ConfigurationError, "add -- python"),
        (
            {"template": "coupled_split", "launcher": "mpiexec"},
            {},
            ConfigurationError,
            "leave --launcher",
        ),
        (
            {"template": "coupled_shared", "launcher": "mpiexec", "solver": (":",)},
            {},
            ConfigurationError,
            "the word ':'",
        ),
        (
            {"template": "coupled_shared"},
            {"run.elastic": True},
            ConfigurationError,
            "--run.elastic with a command",
        ),
        ({"stage": "shm"}, {}, ConfigurationError, "--stage shm; wanted a folder"),
        (
            {"scheduler": "pbs", "template": "multi_node", "stage": "/dev/shm"},
            {},
            ConfigurationError,
            "--stage /dev/shm with pbs",
        ),
        ({"stage": "/a\nb"}, {}, ConfigurationError, "line end"),
        ({}, {"run.folder": "a\nb"}, ConfigurationError, "line end"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, (str, dict)) else "",
)
def test_a_job_that_cannot_run_is_refused_on_the_login_node(changes, settings, error, words):
    with pytest.raises(error, match=words):
        rendered(settings=settings, **changes)


def test_a_script_that_submits_itself_must_know_its_name():
    with pytest.raises(ConfigurationError, match="--output"):
        render(JobPlan("chain", 1, 2), RunConfiguration(), [])


def test_the_command_writes_a_script_that_can_be_run(tmp_path):
    command = [
        sys.executable,
        "-m",
        "shardkit",
        "render",
        "--template=gpu_node",
        "--ranks-per-node=2",
        "--output=job.sh",
        "--run.folder=it's a $RUN",
        "--run.seed",
        "3",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert done.stderr.startswith(
        'gpu_transport "nccl": NCCL, since each rank has a GPU of its own'
    )
    script = (tmp_path / "job.sh").read_text()
    assert os.access(tmp_path / "job.sh", os.X_OK) and "#SBATCH --gpus-per-node=2\n" in script
    assert '"--run.seed=3" "--run.folder=it\'s a \\$RUN" "--parallel.device=cuda"' in script
    refused = subprocess.run(
        [*command, "--mesh.tensor=3"], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1


@pytest.mark.skipif(
    shutil.which("shellcheck") is None,
    reason="shellcheck is not installed; apt-get install shellcheck",
)
def test_templates_and_rendered_scripts_are_shellcheck_clean(tmp_path):
    scripts = [*JOBS.rglob("*.sh")]
    for scheduler, template in KINDS:
        scripts.append(tmp_path / f"{scheduler}-{template}.sh")
        scripts[-1].write_text(rendered(scheduler, template))
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and len(scripts) > 15, done.stdout


# ---- running -------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path):
    """A folder with stand-ins for the batch system, and an env.sh whose mpiexec runs `ranks.sh`."""
    for name in ("qsub", "sbatch", "scontrol"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\n[ "$1" = show ] || echo {name} "LINK=$LINK" "$@" >> {tmp_path}/asked\n'
        )
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 2033-05-18T03:33:20\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    (tmp_path / "env.sh").write_text(
        f"PATH={tmp_path}:$PATH\nPYTHON=(python)\nSRUN=(bash ranks.sh)\nMPIEXEC=(bash ranks.sh)\n"
        "LAUNCH_SECONDS=${LAUNCH_SECONDS_OF_TEST:-0}\n"
    )
    return tmp_path


def start(site, scheduler, template, ranks, settings=(), **environment):
    """The rendered script with `ranks` (shell commands) in place of mpiexec or srun, running."""
    (site / "ranks.sh").write_text(ranks)
    script = rendered(
        scheduler, template, settings=settings, env_file=str(site / "env.sh"), restarts=3
    )
    (site / "job.sh").write_text(script)
    here = {
        "SLURM_JOB_ID": "7",
        "PBS_JOBID": "7",
        "PBS_O_WORKDIR": str(site),
        "LSB_JOBID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
    }
    return subprocess.Popen(
        ["bash", "job.sh"],
        cwd=site,
        env={**os.environ, **here, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=hear_ctrl_c,
    )


def asked(site):
    return (site / "asked").read_text().strip() if (site / "asked").exists() else ""


AGAIN = {
    ("slurm", "chain"): r"sbatch LINK=2 --dependency=afterany:7 --export=ALL \S*/job.sh",
    ("pbs", "multi_node"): r"qsub LINK=1 -W depend=afterany:7 -v LINK=2 \S*/job.sh",
    ("lsf", "multi_node"): "",
}


@pytest.mark.parametrize("scheduler, template", KINDS)
@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_job_is_queued_again_on_exit_code_75_alone(site, scheduler, template, code):
    with start(site, scheduler, template, f"exit {code}", LINK="1") as job:
        output = job.communicate(timeout=500)[0]
    assert job.returncode == code, output
    again = AGAIN.get((scheduler, template), "scontrol LINK=1 requeue 7") if code == 75 else ""
    assert re.fullmatch(again, asked(site)), asked(site)


@pytest.mark.parametrize("scheduler, template", [kind for kind in KINDS if kind[0] != "lsf"])
def test_a_job_that_never_gets_done_stops_after_its_restarts(site, scheduler, template):
    with start(site, scheduler, template, "exit 75", LINK="3", SLURM_RESTART_COUNT="3") as job:
        output = job.communicate(timeout=500)[0]
    assert job.returncode == 75 and "not done after 3 restarts" in output and asked(site) == ""


# Read before the signal comes: bash may run a trap while it reads $(...), and stumble.
RANKS = """train() { for _ in {1..100}; do sleep 0.1; done; }
trap 'echo ranks got USR1; exit 75' USR1
trap : TERM
echo ready
train
"""


@pytest.mark.parametrize("scheduler, template", KINDS)
def test_a_warning_reaches_the_ranks(site, scheduler, template):
    with start(site, scheduler, template, RANKS) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGUSR1)
        output = job.communicate(timeout=500)[0]
    assert job.returncode == 75 and output.count("ranks got USR1") == 1, output


def test_a_warning_is_repeated_until_the_ranks_listen(site):
    with start(site, "slurm", "multi_node", "trap '' USR1\necho deaf\nsleep 1\n" + RANKS) as job:
        assert job.stdout.readline() == "deaf\n"
        job.send_signal(signal.SIGUSR1)
        output = job.communicate(timeout=500)[0]
    assert job.returncode == 75 and output.count("ranks got USR1") == 1, output


def test_a_warning_waits_until_the_launcher_is_no_longer_young(site):
    with start(
        site,
        "slurm",
        "multi_node",
        RANKS.replace("got", "of $SECONDS s got"),
        LAUNCH_SECONDS_OF_TEST="3",
    ) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGUSR1)
        output = job.communicate(timeout=500)[0]
    assert job.returncode == 75 and int(re.search(r"ranks of (\d+) s got USR1", output)[1]) >= 2, (
        output
    )


def test_ctrl_c_in_a_script_that_runs_by_hand_lets_the_ranks_save_and_queues_nothing(site):
    with start(site, "slurm", "multi_node", RANKS) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGINT)
        output = job.communicate(timeout=500)[0]
    assert job.returncode == 75 and output.count("ranks got USR1") == 1 and asked(site) == "", (
        output
    )


def test_a_cancelled_job_waits_for_its_ranks_and_is_not_queued_again(site):
    slow = "trap : TERM\necho ready\nsleep 1\nsleep 1\necho ranks saved\nexit 75\n"
    with start(site, "slurm", "multi_node", slow) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        output = job.communicate(timeout=500)[0]
    assert (
        job.returncode == 75
        and "ranks saved" in output
        and "the job was cancelled" in output
        and asked(site) == ""
    )


DIES = """echo "start: $*" | sed 's/ python.*//' >> starts
mkdir -p 'runs/a b/checkpoints'
[ "$(wc -l < starts)" -gt 3 ] && exit 0
[ -e stuck ] || wc -l < starts > 'runs/a b/checkpoints/newest'
exit 137
"""


@pytest.mark.parametrize("scheduler, template", ELASTIC)
def test_an_elastic_run_is_started_again_as_long_as_it_comes_on(site, scheduler, template):
    with start(site, scheduler, template, DIES, settings={"run.elastic": True}) as job:
        output = job.communicate(timeout=500)[0]
    assert job.returncode == 0 and len((site / "starts").read_text().splitlines()) == 4, output
    assert output.count("starting again with ") == 3 and asked(site) == ""


@pytest.mark.parametrize(
    "is_elastic, words", [(True, "no checkpoint was written since the last start"), (False, "")]
)
def test_a_run_that_dies_without_progress_or_is_not_elastic_is_not_started_again(
    site, is_elastic, words
):
    (site / "stuck").touch()
    with start(site, "slurm", "multi_node", DIES, settings={"run.elastic": is_elastic}) as job:
        output = job.communicate(timeout=500)[0]
    assert (
        job.returncode == 137
        and len((site / "starts").read_text().splitlines()) == 1
        and words in output
    ), output


@pytest.mark.parametrize("code", [0, 2, 75])
def test_an_elastic_run_that_is_done_or_wrong_is_not_started_again(site, code):
    with start(
        site,
        "slurm",
        "multi_node",
        f"{DIES.splitlines()[0]}\nexit {code}\n",
        settings={"run.elastic": True},
    ) as job:
        assert job.wait(500) == code
    assert len((site / "starts").read_text().splitlines()) == 1


def test_an_elastic_run_leaves_the_nodes_that_were_lost(site):
    (site / "sinfo").write_text("#!/bin/sh\necho node1 alloc\necho node2 down*\necho node3 mix\n")
    (site / "sinfo").chmod(0o755)
    (site / "ranks.sh").write_text(DIES)
    script = rendered(
        nodes=3,
        env_file=str(site / "env.sh"),
        settings={"run.elastic": True, "batch.sequences": 24},
    )
    (site / "job.sh").write_text(script)
    here = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]"}
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=site,
        env={**os.environ, **here},
        text=True,
        capture_output=True,
        timeout=500,
    )
    assert done.returncode == 0 and "#SBATCH --no-kill\n" in script, done.stderr
    first, *others = (site / "starts").read_text().splitlines()
    assert first.startswith("start: --nodes=3 --ntasks=6 ") and "nodelist" not in first
    assert (
        all("--nodes=2 --ntasks=4 " in line and "--nodelist=node1,node3" in line for line in others)
        and len(others) == 3
    )


@pytest.mark.parametrize("scheduler, end", [("slurm", "2000000000"), ("pbs", None), ("lsf", None)])
def test_ranks_know_when_the_job_ends_and_how_many_threads_they_have(site, scheduler, end):
    began = int(time.time())
    with start(
        site,
        scheduler,
        "multi_node",
        "echo end=$SHARDKIT_END_TIME threads=$OMP_NUM_THREADS: $*",
        TZ="UTC",
    ) as job:
        output = job.communicate(timeout=500)[0]
    found, words = re.search(r"end=(\d+) threads=1: (.*)", output).groups()
    assert found == end if end else began <= int(found) - 3600 <= time.time()
    assert words.endswith("python -P -m shardkit train --resume-if-any --run.folder=runs/a b")
