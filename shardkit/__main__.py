"""The command line: `python -m shardkit <command>`, also installed as `shardkit`.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 75 stopped early with a checkpoint: `train
--resume` goes on, 130 ended by Ctrl-C.
"""

import argparse
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from math import inf
from pathlib import Path

from . import __version__
from .checkpoint.find import find_checkpoint
from .checkpoint.tools.convert import from_safetensors, to_safetensors
from .checkpoint.tools.describe import describe
from .checkpoint.tools.diff import compare, comparison_text
from .comm import InMemoryCommunicationBackend, MPICommunicationBackend
from .comm.failure.together import INTERRUPTED_CODE, abort_on_error
from .comm.watch.hang import hang_report
from .config import RunConfiguration, help_text, parse_override, read_toml, resumed
from .environment import launcher
from .doctor import as_json, as_text, examine, exit_code
from .errors import CommunicationError, ConfigurationError, LaunchError, ShardkitError, StopVoted
from .plan.command import add_plan, run_plan
from .plan.measure import hardware_run
from .schedule import ORDERS, describe_timeline, draw_svg, unit_timeline
from .slurm import SCHEDULERS, TEMPLATES, JobPlan, render, script_of_plan
from .train import SurvivingRun, bench_run, generate_text, load_for_generation, train_run
from .train.folder import has_checkpoints, stored_settings
from .train.initial import with_initial_sizes
from .train.report import describe_run, draw_curve
from .train.stopping import StopSignals

_FIRST_WORD_SECONDS = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("shardkit: interrupted by Ctrl-C", file=sys.stderr)
        return INTERRUPTED_CODE


def _run(arguments: list[str] | None) -> int:
    parser = _parser()
    rest, overrides = _without_settings(sys.argv[1:] if arguments is None else arguments)
    known, unknown = parser.parse_known_args(rest)
    overrides += unknown
    if overrides and known.command not in _TAKE_SETTINGS:
        parser.error(f"unrecognized argument {overrides[0]}")
    try:
        return _COMMANDS[known.command](known, overrides)
    except (
        BrokenPipeError
    ):  # the reader of our output has seen enough, as in `shardkit inspect RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ShardkitError, OSError) as error:
        if isinstance(error, LaunchError) and launcher().rank:
            time.sleep(
                _FIRST_WORD_SECONDS
            )  # the first says it for all; nor shall an exit end it before
        else:
            print(f"shardkit: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardkit",
        description="Sharded training as an ordinary MPI job.",
        epilog=__doc__.partition("\n\n")[2],
    )
    parser.add_argument("--version", action="version", version=f"shardkit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    train = commands.add_parser(
        "train",
        help="train a language model on text",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="settings:\n" + help_text(),
        description="Train a GPT on text:  mpiexec -n 4 shardkit train [settings.toml] "
        "[--section.key=value ...]",
    )
    train.add_argument(
        "settings", nargs="?", help="TOML file of [section] tables with the keys below"
    )
    train.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest valid checkpoint of the run folder",
    )
    train.add_argument(
        "--resume-if-any",
        action="store_true",
        help="the same if there is one, else start: for jobs that are queued again",
    )
    bench = commands.add_parser(
        "bench",
        help="where the time of a training step goes",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Take a few steps on random text and say where their time goes:  "
        "mpiexec -n 4 shardkit bench [settings.toml] [--section.key=value ...]\n"
        "The settings are those of `shardkit train`; nothing is kept.\n"
        "Or measure the machine, for `shardkit plan`:  mpiexec -n 4 shardkit bench hardware "
        "--output my-node.toml [--parallel.blas=mkl]",
    )
    bench.add_argument(
        "settings",
        nargs="?",
        help="TOML file, as for train; or the word hardware (a file of this name: ./hardware)",
    )
    bench.add_argument(
        "--output",
        metavar="FILE",
        default="hardware.toml",
        help="of bench hardware; default: %(default)s",
    )
    bench.add_argument(
        "--steps",
        type=_at_least_one,
        default=7,
        help="steps to measure, each also once without the stopwatch; default: %(default)s",
    )
    bench.add_argument("--json", metavar="FILE", help="write all figures into this file")
    inspect = commands.add_parser(
        "inspect",
        help="what is in a checkpoint or run folder, or what a schedule looks like",
        description="Exit code 1 if a checkpoint there is damaged.",
    )
    inspect.add_argument(
        "path",
        help="run folder, folder of checkpoints, or one checkpoint; or the word schedule, for the "
        "picture of a pipeline schedule, or the word hang and a run folder, for what its ranks "
        "wait for, or did when they were ended (folders of these names: ./schedule, ./hang)",
    )
    inspect.add_argument("run", nargs="?", help="after the word hang: the run folder")
    inspect.add_argument(
        "--verify", action="store_true", help="read every file and compare checksums"
    )
    _add_schedule_options(inspect.add_argument_group("inspect schedule"))
    diff = commands.add_parser(
        "diff",
        help="compare two checkpoints number by number",
        description="Exit codes: 0 equal, or "
        "within the tolerance, 1 different, 2 usage, or one of the two cannot be read.",
    )
    for name in ("first", "second"):
        diff.add_argument(
            name,
            help="run folder or folder of checkpoints (its newest valid one), or one checkpoint",
        )
    diff.add_argument(
        "--tolerance",
        type=_tolerance,
        default=0.0,
        metavar="X",
        help="differences up to X times the tensor's largest magnitude count as equal; default: %(default)s",
    )
    diff.add_argument(
        "--model-only", action="store_true", help="leave out optimizer state, step and seeds"
    )
    convert = commands.add_parser(
        "convert",
        help="to and from model folders of Hugging Face's transformers",
        description="GPT-2 and Llama models; the optimizer state of a checkpoint stays behind.",
    )
    convert.add_argument(
        "--to",
        choices=_CONVERSIONS,
        required=True,
        help="safetensors: from a checkpoint to config.json and "
        "model.safetensors. shardkit: from such a folder to a folder of checkpoints, which holds step 0",
    )
    convert.add_argument(
        "source",
        help="run folder, folder of checkpoints (its newest valid one) or one checkpoint; or the "
        "folder with config.json and safetensors files",
    )
    convert.add_argument("target", help="folder to write; must not hold a model yet")
    convert.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        help="of the numbers written; default: float32 to shardkit, "
        "that of the checkpoint to safetensors",
    )
    _add_render(commands)
    add_plan(commands)
    doctor = commands.add_parser(
        "doctor",
        help="is this machine fit for a run?",
        allow_abbrev=False,
        description="Look at MPI, "
        "cores, files and network, alone or under mpiexec or srun. Exit code 1 if something does not "
        "work. --mesh.pipeline=P --mesh.tensor=T: the axes to measure.",
    )
    doctor.add_argument("--folder", default=".", help="of the run; default: where you are")
    doctor.add_argument("--json", action="store_true", help="for programs")
    report = commands.add_parser("report", help="draw the loss curve of a run")
    report.add_argument("path", help="run folder")
    report.add_argument("--output", help=".svg, .png or .pdf; default: curve.svg in the run folder")
    generate = commands.add_parser("generate", help="continue a text with a trained model")
    generate.add_argument("path", help="run folder, folder of checkpoints, or one checkpoint")
    generate.add_argument("--prompt", default="def ", help="default: %(default)r")
    generate.add_argument(
        "--tokens", type=int, default=200, help="bytes to generate; default: %(default)s"
    )
    generate.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="0: the most probable byte; default: %(default)s",
    )
    generate.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    return parser


def _add_render(commands) -> None:
    render = commands.add_parser(
        "render",
        help="write a job script",
        allow_abbrev=False,
        description="Fill in a job template (jobs/README.md):  shardkit render --template multi_node "
        "--nodes 2 --ranks-per-node 32 --output job.sh [settings.toml] "
        "[--section.key=value ...]",
    )
    render.add_argument("settings", nargs="?", help="TOML file, as for `shardkit train`")
    render.add_argument("--template", choices=TEMPLATES, required=True)
    render.add_argument("--scheduler", choices=SCHEDULERS, default="slurm", help="default: slurm")
    render.add_argument("--nodes", type=int, default=1, help="default: 1")
    render.add_argument("--ranks-per-node", type=int, required=True)
    render.add_argument(
        "--time", default="01:00:00", help="limit of one job, [D-]HH:MM:SS; default: %(default)s"
    )
    render.add_argument(
        "--launcher", choices=("srun", "mpiexec"), help="default: srun for slurm, else mpiexec"
    )
    render.add_argument("--name", help="of the job; default: that of the run folder")
    render.add_argument(
        "--gpus-per-node", type=int, help="for gpu_node; default: one for each rank"
    )
    render.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE,VALUE",
        help="for array: a run for each value; several times: for each combination",
    )
    render.add_argument(
        "--at-once",
        type=int,
        default=4,
        help="runs of a sweep at the same time; default: %(default)s",
    )
    render.add_argument(
        "--restarts",
        type=int,
        default=20,
        help="times that a job may be queued again; default: %(default)s",
    )
    render.add_argument(
        "--notice-seconds",
        type=int,
        default=120,
        help="warning before the limit; default: %(default)s",
    )
    render.add_argument(
        "--env",
        metavar="FILE",
        help="what is particular to the site; default: env.sh beside the templates",
    )
    render.add_argument("--output", metavar="FILE", help="default: standard output")


def _add_schedule_options(group) -> None:
    """Options that are absent unless given; the defaults are those of _inspect_schedule."""

    def add(name, help, **kwargs):
        group.add_argument(
            name,
            help=help,
            dest=f"schedule_{name[2:].replace('-', '_')}",
            default=argparse.SUPPRESS,
            **kwargs,
        )

    add("--order", f"one of {', '.join(ORDERS)}; default: 1f1b", metavar="NAME")
    add("--stages", "pipeline ranks; default: 4", type=int, metavar="N")
    add("--micro-batches", "default: 8", type=int, metavar="N")
    add("--virtual", "stages per rank; default: what the order runs", type=int, metavar="N")
    add("--svg", "also draw it into this file", metavar="FILE")


def _tolerance(text: str) -> float:
    """Errors: ArgumentTypeError on anything but a number >= 0."""
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < inf:
        raise argparse.ArgumentTypeError(
            f"{text} is not a tolerance; wanted a number, at least 0, such as 1e-6"
        )
    return tolerance


def _without_settings(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(what argparse shall see, settings): --section.key=value and --section.key value, whatever
    characters a value holds.
    """
    rest, settings, coming = [], [], list(arguments)
    while coming:
        argument = coming.pop(0)
        is_setting = re.match(r"--\w+\.\w+(=|$)", argument)
        (settings if is_setting else rest).append(argument)
        if is_setting and "=" not in argument and coming and not coming[0].startswith("--"):
            settings[-1] += "=" + coming.pop(0)
    return rest, settings


def _at_least_one(text: str) -> int:
    """Errors: ArgumentTypeError on anything but an integer >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of steps; wanted an integer, at least 1"
        )
    return int(text)


def _overrides(arguments: list[str]) -> dict:
    """{"section.key": value} of --section.key=value and --section.key value."""
    settings, rest = {}, list(arguments)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        if not name.startswith("--"):
            raise ConfigurationError(
                f"unexpected argument {name!r}; settings look like --section.key=value"
            )
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigurationError(f"{name} needs a value: {name}=value")
            text = rest.pop(0)
        settings[name[2:]] = parse_override(name[2:], text)
    return settings


def _mpi_backend() -> MPICommunicationBackend:
    """A fresh one. Ctrl-C ends ranks at once while MPI starts: one that has left would keep the
    others there.
    """
    before = signal.getsignal(signal.SIGINT)
    if launcher().num_ranks and before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return MPICommunicationBackend()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _job(backend):
    """An initialized backend whose ranks end together, also by Ctrl-C: it waits until an error ends
    all of them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    backend.initialize()
    with abort_on_error(backend) as program:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield program
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    backend.shutdown()


def _train(known, overrides) -> int:
    signals = StopSignals().listen()
    if _wants_elastic(known, overrides):
        return _train_elastic(known, overrides, signals)
    backend = _mpi_backend()
    with _job(backend) as program:
        settings, resume = _run_settings(
            known, overrides, lambda has_run: backend.broadcast_object(has_run, 0)
        )
        result = train_run(settings, backend, resume=resume, program=program, signals=signals)
    signals.ignore()
    return StopVoted.exit_code if result.is_interrupted else 0


def _wants_elastic(known, overrides) -> bool:
    """True if the settings say so. Wrong ones are told of later, when the ranks can do that with
    one voice.
    """
    try:
        return _run_settings(known, overrides)[0].run.elastic
    except ShardkitError:
        return False


def _train_elastic(known, overrides, signals) -> int:
    run = SurvivingRun(*_run_settings(known, overrides), signals)
    result = run.go()
    code = StopVoted.exit_code if result is not None and result.is_interrupted else 0
    sys.stdout.flush()
    if run.has_lost_ranks:
        os._exit(code)  # MPI_Finalize may wait for the dead
    signals.ignore()
    return code


def _run_settings(
    known, overrides, agreed=lambda has_run: has_run
) -> tuple[RunConfiguration, bool]:
    """(settings, resume) of `train`. agreed: function (this rank sees a run in the folder) -> what
    all ranks go by.
    """
    given = _given_settings(known, overrides)
    folder = Path(RunConfiguration().replace(given).run.folder)
    if known.resume or known.resume_if_any and agreed(has_checkpoints(folder)):
        return resumed(stored_settings(folder), given), True
    return with_initial_sizes(given), False


def _render(known, arguments) -> int:
    overrides = _overrides(arguments)
    settings = RunConfiguration().replace(
        {**(read_toml(known.settings) if known.settings else {}), **overrides}
    )
    launcher = known.launcher or ("srun" if known.scheduler == "slurm" else "mpiexec")
    sweep = tuple(
        (key, tuple(values.split(",")))
        for key, _, values in (text.partition("=") for text in known.sweep)
    )
    plan = JobPlan(
        known.template,
        known.nodes,
        known.ranks_per_node,
        known.scheduler,
        known.time,
        launcher,
        known.name,
        known.gpus_per_node,
        sweep,
        known.at_once,
        known.restarts,
        known.notice_seconds,
        known.env,
    )
    script = render(
        plan, settings, [known.settings] * bool(known.settings) + arguments, known.output
    )
    if known.output is None:
        print(script, end="")
    else:
        Path(known.output).write_text(script, encoding="utf-8")
        Path(known.output).chmod(0o755)
    return 0


def _doctor(known, overrides) -> int:
    mesh, problem = RunConfiguration().replace(_overrides(overrides)).mesh, None
    try:
        backend = _mpi_backend()
    except CommunicationError as error:
        if launcher().rank:
            raise
        backend, problem = InMemoryCommunicationBackend(0, 1, environment_id="doctor"), str(error)
    with _job(backend):
        findings = examine(
            backend,
            Path(known.folder),
            pipeline=mesh.pipeline,
            tensor=mesh.tensor,
            mpi_problem=problem,
        )
        if backend.rank == 0:
            print(as_json(findings) if known.json else as_text(findings))
    return exit_code(findings)


def _bench(known, overrides) -> int:
    backend = _mpi_backend()
    with _job(backend):
        if known.settings == "hardware":
            hardware_run(backend, known.output, blas=_blas_of_hardware(overrides))
        else:
            settings = with_initial_sizes(_given_settings(known, overrides))
            bench_run(settings, backend, steps=known.steps, json_path=known.json)
    return 0


def _blas_of_hardware(overrides) -> str:
    """Errors: ConfigurationError on any other setting, since no model is measured."""
    settings = _overrides(overrides)
    others = sorted(set(settings) - {"parallel.blas"})
    if others:
        raise ConfigurationError(
            f"bench hardware with --{others[0]}; it measures the machine and no model: wanted no setting "
            "but --parallel.blas"
        )
    return RunConfiguration().replace(settings).parallel.blas


def _given_settings(known, overrides) -> dict:
    """Those of the file, then those of the command line."""
    return {**(read_toml(known.settings) if known.settings else {}), **_overrides(overrides)}


def _inspect(known, overrides) -> int:
    asked = {
        name.removeprefix("schedule_"): value
        for name, value in vars(known).items()
        if name.startswith("schedule_")
    }
    if known.path == "hang" and known.run is not None:
        return _inspect_hang(Path(known.run))
    if known.run is not None:
        raise ConfigurationError(
            f"unexpected argument {known.run!r}; a second folder goes with `inspect hang` only"
        )
    if known.path == "schedule":
        if known.verify:
            raise ConfigurationError("--verify goes with checkpoints, not with `inspect schedule`")
        return _inspect_schedule(**asked)
    if asked:
        raise ConfigurationError(
            f"--{next(iter(asked)).replace('_', '-')} goes with `inspect schedule`, not with the folder "
            f"{known.path!r}"
        )
    found = describe(known.path, verify=known.verify)
    print(f"{describe_run(known.path)}{found}")
    return 1 if found.num_damaged else 0


def _diff(known, overrides) -> int:
    try:
        chosen = [find_checkpoint(path) for path in (known.first, known.second)]
        found = compare(
            *(checkpoint for checkpoint, _ in chosen),
            tolerance=known.tolerance,
            model_only=known.model_only,
        )
    except (
        ShardkitError,
        OSError,
    ) as error:  # as for other programs that compare, 1 says that they differ
        print(f"shardkit: {error}", file=sys.stderr)
        return 2
    for checkpoint, skipped in chosen:
        print("\n".join([str(checkpoint.folder), *(f"  skipped: {reason}" for reason in skipped)]))
    print(comparison_text(found))
    return 0 if found.is_equal else 1


def _convert(known, overrides) -> int:
    dtype = {} if known.dtype is None else {"dtype": known.dtype}
    print(_CONVERSIONS[known.to](known.source, known.target, **dtype))
    return 0


def _inspect_schedule(order="1f1b", stages=4, micro_batches=8, virtual=None, svg=None) -> int:
    timeline = unit_timeline(order, stages, micro_batches, virtual)
    if svg is not None:
        Path(svg).write_text(
            draw_svg(timeline, f"{order}, {micro_batches} micro-batches"), encoding="utf-8"
        )
    print(describe_timeline(timeline))
    return 0


def _inspect_hang(run: Path) -> int:
    print(hang_report(run / "ledger" if (run / "ledger").is_dir() else run))
    return 0


def _generate(known, overrides) -> int:
    model, _ = load_for_generation(known.path)
    print(generate_text(model, known.prompt, known.tokens, known.temperature, known.seed))
    return 0


def _report(known, overrides) -> int:
    target = known.output or str(Path(known.path) / "curve.svg")
    draw_curve(known.path, target)
    print(describe_run(known.path) + target)
    return 0


_CONVERSIONS = {"safetensors": to_safetensors, "shardkit": from_safetensors}
_COMMANDS = {
    "train": _train,
    "bench": _bench,
    "inspect": _inspect,
    "diff": _diff,
    "convert": _convert,
    "render": _render,
    "plan": lambda known, overrides: run_plan(known, _overrides(overrides), script_of_plan),
    "doctor": _doctor,
    "generate": _generate,
    "report": _report,
}
_TAKE_SETTINGS = ("train", "bench", "render", "plan", "doctor")  # --section.key=value


if __name__ == "__main__":
    sys.exit(main())
