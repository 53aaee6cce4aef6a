"""`shardkit render`."""

import shlex
import sys
from functools import partial

from ..files.writing import write_whole
from ..slurm.render import SCHEDULERS, TEMPLATES, JobPlan, render
from .arguments import local_path, option
from .settings import configuration

_RENDER = """write a job script

Fill in a job template (jobs/README.md):
  shardkit render --template multi_node --nodes 2 --ranks-per-node 32 --output job.sh
    [settings.toml] [--section.key=value ...]
  shardkit render ... -- python my_script.py     (a script with sk.Training)
  shardkit render --template coupled_shared --trainers 4 --solver "./solver input"
    ... -- python train.py                       (both with sk.coupled)"""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    parser = add_command("render", _render, _RENDER, takes_settings=True)
    add = partial(option, parser)
    add("settings", "TOML file, as for `shardkit train`", nargs="?", type=local_path)
    add("--template", "template to fill in", choices=TEMPLATES, required=True)
    add("--scheduler", "", choices=SCHEDULERS, default="slurm")
    add("--nodes", "nodes of one job", type=int, default=1)
    add("--ranks-per-node", "MPI ranks on each node", type=int, required=True)
    add("--time", "limit of one job, [D-]HH:MM:SS", default="01:00:00")
    add("--launcher", "default: srun for slurm, else mpiexec", choices=("srun", "mpiexec"))
    add("--name NAME", "name of the job; default: that of the run folder")
    add("--gpus-per-node", "for gpu_node (default: one for each rank), coupled_split", type=int)
    add(
        "--sweep SECTION.KEY=VALUE,VALUE",
        "for array: one run for each value; given several times: for each combination",
        action="append",
        default=[],
    )
    add("--at-once", "most runs of a sweep at the same time", type=int, default=4)
    add("--restarts", "most requeues of a job", type=int, default=20)
    add("--notice-seconds", "how long before its limit a job is warned", type=int, default=120)
    add("--env FILE", "settings of the site; default: env.sh beside the templates")
    add(
        "--stage FOLDER",
        "folder of each node's own, such as /dev/shm: the files of Python are copied there "
        "before the ranks start, for jobs of many ranks (SLURM)",
    )
    add("--solver COMMAND", "for coupled_*: what the first ranks run, beside what trains")
    add("--trainers", "for coupled_*: ranks of each node, or trainer node, that train", type=int)
    add("--trainer-nodes", "for coupled_split: nodes beside those of the solver", type=int)
    add("--output FILE", "file to write; default: standard output")
    parser.set_defaults(takes_command=True)


def _render(known, arguments) -> int:
    settings = configuration(known.settings, arguments)
    split = [text.partition("=") for text in known.sweep]
    plan = JobPlan(
        known.template,
        known.nodes,
        known.ranks_per_node,
        known.scheduler,
        known.time,
        known.launcher or ("srun" if known.scheduler == "slurm" else "mpiexec"),
        known.name,
        known.gpus_per_node,
        tuple((key, tuple(values.split(","))) for key, _, values in split),
        known.at_once,
        known.restarts,
        known.notice_seconds,
        known.env,
        tuple(known.own_command),
        known.stage,
        tuple(shlex.split(known.solver or "")),
        known.trainers,
        known.trainer_nodes,
    )
    given = [known.settings] * bool(known.settings) + arguments
    script = render(plan, settings, given, known.output)
    if plan.template == "gpu_node":
        from ..gpu.transports.choice import planned_text

        gpus = plan.gpus_per_node or plan.ranks_per_node
        name = settings.parallel.gpu_transport
        way = planned_text(name, plan.nodes, plan.ranks_per_node, gpus)
        if way:
            print(way, file=sys.stderr)
    if known.output is None:
        print(script, end="")
    else:
        write_whole(known.output, script.encode(), mode=0o777)
    return 0
