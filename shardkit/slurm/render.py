"""Job scripts: fills in a template of the jobs folder, and refuses settings that do not fit it.

    jobs/slurm/multi_node.sh   #SBATCH --nodes=@{nodes}   --render-->   #SBATCH --nodes=2
                               train "@{settings}"                      train "run.toml" \
                                                                            "--mesh.pipeline=2"

An error is reported here, on the login node, and not by a job that waited for a day.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ..errors import ConfigurationError
from ..files.shown import is_plain
from ..train.ranks import check_batch
from ..train.settings import RunConfiguration

COUPLED = ("coupled_shared", "coupled_split")
TEMPLATES = ("single_node", "multi_node", "gpu_node", "array", "chain", *COUPLED)
SCHEDULERS = ("slurm", "pbs", "lsf")
_PYTHONS = ("python", "python3")  # which env.sh may say more about
_OF_JOBS = ("run.threads", "run.folder")
_SUBMITS_ITSELF = (("slurm", "chain"), ("pbs", "multi_node"))
LAUNCHERS = ("srun", "mpiexec")
_JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")  # as all three batch systems take it
_PLACEHOLDER = re.compile(r"@\{(\w+)\}")
_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,3}):(\d\d):(\d\d)", re.ASCII)


@dataclass(frozen=True)
class JobPlan:
    """What the batch system is asked for, beside the settings of the run.

    template          one of TEMPLATES; scheduler: one of SCHEDULERS, of which pbs and lsf have
                      multi_node
    nodes, ranks_per_node   their product is the number of ranks
    time              limit of one job, "[D-]HH:MM:SS"
    launcher          "srun" or "mpiexec"
    name              of the job; None: that of the run folder
    gpus_per_node     None: as many as ranks
    sweep             {key: values}, for array: one run for each combination
    at_once           runs of a sweep that may run at the same time
    restarts          how often a job is queued again at most
    notice_seconds    how long before the limit the job is warned
    command           that every rank runs in place of `shardkit train`: a script with sk.Training;
                      (): shardkit train
    env_file          what is particular to the site; None: env.sh beside the templates
    stage             folder of each node's own, for SLURM: the files of Python are copied there
                      before the ranks start; None: they are read where they are
    solver            for the coupled ones: the command of the first ranks, beside `command`
    trainers          ranks that train: of each node, or of each of the trainer_nodes
    trainer_nodes     of coupled_split, beside the nodes of the solver
    """

    template: str
    nodes: int
    ranks_per_node: int
    scheduler: str = "slurm"
    time: str = "01:00:00"
    launcher: str = "srun"
    name: str | None = None
    gpus_per_node: int | None = None
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    at_once: int = 4
    restarts: int = 20
    notice_seconds: int = 120
    env_file: str | None = None
    command: tuple[str, ...] = ()
    stage: str | None = None
    solver: tuple[str, ...] = ()
    trainers: int | None = None
    trainer_nodes: int | None = None

    @property
    def ranks(self) -> int:
        """The number of ranks of one run."""
        return self.nodes * self.ranks_per_node

    @property
    def seconds(self) -> int:
        """The time limit. Errors: ConfigurationError unless it is [D-]HH:MM:SS."""
        parts = _TIME.fullmatch(self.time)
        if parts is None:
            raise ConfigurationError(
                f"--time {self.time}; wanted [D-]HH:MM:SS, for example 01:30:00"
            )
        days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    def check(self) -> None:
        """Raise ConfigurationError on what no batch system could make a job of."""
        needed = {
            "nodes": self.nodes,
            "ranks-per-node": self.ranks_per_node,
            "at-once": self.at_once,
            "restarts": self.restarts,
            "notice-seconds": self.notice_seconds,
        }
        others = {"gpus-per-node": self.gpus_per_node, "trainers": self.trainers}
        others["trainer-nodes"] = self.trainer_nodes
        needed |= {option: number for option, number in others.items() if number is not None}
        for option, number in needed.items():
            if type(number) is not int or number < 1:
                raise ConfigurationError(f"--{option} {number!r}; wanted at least 1, an integer")
        for option, word, words in (
            ("template", self.template, TEMPLATES),
            ("scheduler", self.scheduler, SCHEDULERS),
            ("launcher", self.launcher, LAUNCHERS),
        ):
            if word not in words:
                raise ConfigurationError(f"--{option} {word!r}; wanted {' or '.join(words)}")
        for refusal in (*self._refusals(), *self._coupled_refusals()):
            raise ConfigurationError(refusal)

    def _refusals(self) -> Iterator[str]:
        """Yield what is told of each thing that does not go together."""
        is_array, is_slurm = self.template == "array", self.scheduler == "slurm"
        if self.name is not None and not _JOB_NAME.fullmatch(self.name):
            yield (
                f"--name {self.name!r}; wanted letters, digits, _ . + and -, up to 200, not "
                "beginning with . + or -: it stands in lines that the batch system reads, and in "
                "the name of the output file"
            )
        if self.launcher == "mpiexec" and ":" in (*self.command, *self.solver):
            yield (
                "a command with the word ':', where mpiexec would begin another program; leave it "
                "out, or take --launcher srun"
            )
        if not is_slurm and (self.template, self.launcher) != ("multi_node", "mpiexec"):
            yield f"for {self.scheduler} there is --template multi_node --launcher mpiexec alone"
        if self.stage is not None and not is_slurm:
            yield (
                f"--stage {self.stage} with {self.scheduler}: files are handed on by sbcast, which "
                "is SLURM's; leave it out"
            )
        if self.stage is not None and not Path(self.stage).is_absolute():
            yield (
                f"--stage {self.stage}; wanted a folder that each node has, from the root, such as "
                "/dev/shm"
            )
        if self.template == "single_node" and self.nodes != 1:
            yield (
                f"--template single_node with --nodes {self.nodes}; wanted 1, or --template "
                "multi_node"
            )
        if is_array and self.command:
            yield (
                f"--template array with {shlex.quote(self.command[0])}: a sweep changes settings "
                "of `shardkit train`; render a job for each script, or leave the command out"
            )
        if is_array != bool(self.sweep):
            yield "--template array and --sweep section.key=value,value go together"
        if self.notice_seconds >= self.seconds:
            yield (
                f"--notice-seconds {self.notice_seconds} is not less than --time {self.time}, "
                f"{self.seconds} seconds"
            )

    def _coupled_refusals(self) -> Iterator[str]:
        is_coupled, is_split = self.template in COUPLED, self.template == "coupled_split"
        for option, has, is_wanted in (
            ("--solver", bool(self.solver), is_coupled),
            ("--trainers", self.trainers is not None, is_coupled),
            ("--trainer-nodes", self.trainer_nodes is not None, is_split),
        ):
            if has != is_wanted:
                yield (
                    f"--template {self.template} {'takes no' if has else 'needs'} {option}; wanted "
                    "--solver and --trainers with the coupled ones, --trainer-nodes with "
                    "coupled_split"
                )
        if is_coupled and not self.command:
            yield (
                f"--template {self.template} without the program that trains; add -- python "
                "train.py, which calls sk.coupled()"
            )
        if is_split and (self.launcher == "mpiexec" or self.stage is not None):
            yield (
                "--template coupled_split, whose nodes of two kinds srun alone starts ranks on, "
                "and nothing is staged to; leave --launcher and --stage out"
            )
        if is_coupled and not is_split and self.ranks_per_node <= (self.trainers or 0):
            yield (
                f"--trainers {self.trainers} of --ranks-per-node {self.ranks_per_node}; wanted "
                "less, so that ranks of each node are left to solve"
            )
        if self.template == "coupled_shared" and self.gpus_per_node is not None:
            yield (
                f"--gpus-per-node {self.gpus_per_node} with --template coupled_shared, whose nodes "
                "are all alike; wanted coupled_split, or none"
            )


def render(
    plan: JobPlan, settings: RunConfiguration, arguments: list[str], output: str | None = None
) -> str:
    """Return the job script.

    settings   what the arguments result in, to be checked against the plan
    arguments  of `shardkit train`: a TOML file and --section.key=value
    output     the file that the script will be written to, which some scripts submit again
    Errors: ConfigurationError, MeshError if the ranks are not the mesh.
    """
    plan.check()
    if plan.command:
        _check_resources(plan, arguments)
    else:
        _check_ranks(plan, settings)
    if (plan.scheduler, plan.template) in _SUBMITS_ITSELF and output is None:
        raise ConfigurationError(
            "this script submits itself again, so it must know its own name; give --output FILE"
        )
    folder = templates_folder()
    template = (folder / plan.scheduler / f"{plan.template}.sh").read_text(encoding="utf-8")
    values = _values(plan, settings, arguments, folder, output)
    if settings.run.elastic:  # the job survives a node
        requeue = "#SBATCH --requeue\n"
        template = template.replace(requeue, f"{requeue}#SBATCH --no-kill\n")
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), template)


def templates_folder() -> Path:
    """Return the jobs folder: beside the package in a checkout, else as installed.

    Errors: ConfigurationError if it is in neither place.
    """
    places = [Path(__file__).parents[2] / "jobs", Path(sys.prefix) / "share" / "shardkit" / "jobs"]
    for place in places:
        if (place / "launch.sh").exists():
            return place
    raise ConfigurationError(
        f"the templates are neither in {places[0]} nor in {places[1]}; install shardkit again"
    )


def _check_ranks(plan, settings):
    try:
        check_batch(settings, plan.ranks)
    except ConfigurationError as error:
        raise type(error)(
            f"{plan.nodes} nodes x {plan.ranks_per_node} ranks per node = {plan.ranks} ranks do "
            f"not fit: {error}"
        ) from None
    if settings.parallel.device == "cuda" and plan.template != "gpu_node":
        raise ConfigurationError('parallel.device = "cuda" needs --template gpu_node')


def _check_resources(plan, arguments):
    """Raise ConfigurationError on a setting that only the script of a job can take."""
    allowed = _OF_JOBS if plan.solver else (*_OF_JOBS, "run.elastic")
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.removeprefix("--") not in allowed:
            raise ConfigurationError(
                f"{name} with a command of one's own: the settings of its run are in "
                f"{shlex.join(plan.command)}; wanted none but {', '.join(allowed)}, which the "
                "job itself needs"
            )


def _command(plan, given: list[str]) -> str:
    """Return what every rank runs, as words of a shell, without the outermost quotes."""
    train = ["-P", "-m", "shardkit", "train", "--resume-if-any"]
    if plan.command:
        return _quoted(plan.command)
    return _quoted(("python", *train, *given), as_they_are=train)


def _quoted(words: tuple[str, ...], as_they_are: Sequence[str] = ()) -> str:
    is_python = words[0] in _PYTHONS
    own = words[is_python:]
    quoted = [word if word in as_they_are else f'"{_escaped(word)}"' for word in own]
    return " ".join(['"${PYTHON[@]}"'] * is_python + quoted)[1:-1]


def _values(plan, settings, arguments, folder, output) -> dict:
    """Return {placeholder: its text}."""
    runs = _sweep_lines(plan, settings)
    hours_minutes = f"{plan.seconds // 3600:02d}:{plan.seconds // 60 % 60:02d}"
    given = [
        *(text for text in arguments if not text.startswith("--run.folder=")),
        f"--run.folder={settings.run.folder}",
    ]
    if plan.template == "gpu_node":
        given.append("--parallel.device=cuda")
    return {
        "command": _command(plan, given),
        "name": plan.name or _name(plan, settings),
        "nodes": plan.nodes,
        "ranks_per_node": plan.ranks_per_node,
        "ranks": plan.ranks,
        "threads": settings.run.threads,
        "seconds": plan.seconds,
        "time": f"{hours_minutes}:{plan.seconds % 60:02d}",
        "hours_minutes": hours_minutes,
        "notice_seconds": plan.notice_seconds,
        "notice_minutes": -(-plan.notice_seconds // 60),
        "cores_per_node": plan.ranks_per_node * settings.run.threads,
        "gpus_per_node": plan.gpus_per_node or plan.ranks_per_node,
        "launcher": plan.launcher,
        "restarts": plan.restarts,
        "jobs": _escaped(folder),
        "env_file": _absolute(plan.env_file or folder / "env.sh"),
        "script": _absolute(output) if output else "",
        "stage": _escaped(plan.stage or ""),
        "settings": '" "'.join(map(_escaped, given)),
        "elastic_run": _escaped(settings.run.folder) if settings.run.elastic else "",
        "run_folder": _escaped(settings.run.folder),
        "last_run": len(runs) - 1,
        "at_once": plan.at_once,
        "sweep": '"\n    "'.join(map(_escaped, runs)),
        "solver": _quoted(plan.solver) if plan.solver else "",
        "trainers": plan.trainers,
        "trainer_nodes": plan.trainer_nodes,
        "trainer_gpus": f"\n#SBATCH --gpus-per-node={gpus}" if (gpus := plan.gpus_per_node) else "",
    }


def _name(plan, settings) -> str:
    """Return the name of a script, or else that of the run folder, as a job may have it."""
    scripts = [word for word in plan.command if word.endswith(".py")]
    name = Path(scripts[0]).stem if scripts else Path(settings.run.folder).absolute().name
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", name).lstrip(".+-")[:200] or "shardkit"


def _sweep_lines(plan, settings) -> list[str]:
    """Return the arguments of each run of a sweep, a line each.

    Errors: ConfigurationError on a value that its key does not take.
    """
    if not plan.sweep:
        return [""]
    lines = []
    for values in product(*(values for _, values in plan.sweep)):
        chosen = dict(zip((key for key, _ in plan.sweep), values))
        check_batch(
            settings.replace({key: settings.parse(key, text) for key, text in chosen.items()}),
            plan.ranks,
        )
        lines.append(" ".join(f"--{key}={text}" for key, text in chosen.items()))
        if any(re.search(r"[\s\"'\\]", text) for text in chosen.values()):
            raise ConfigurationError(
                f"--sweep {lines[-1][2:]!r}: values of a sweep hold no spaces, quotes or \\"
            )
    return lines


def _absolute(path) -> str:
    """Return the path from the root for double quotes of a shell."""
    _escaped(path)
    return _escaped(Path(path).resolve())


def _escaped(text) -> str:
    """Return the text for double quotes of a shell. Errors: ConfigurationError on controls."""
    if not is_plain(str(text)):
        raise ConfigurationError(
            f"{str(text)!r} holds a line end or another control character, which a job script "
            "cannot pass on; leave it out"
        )
    return re.sub(r'(["\\$`])', r"\\\1", str(text))
