"""`shardkit plan`: find the best layout for a model, a cluster and a batch.

shardkit plan model.toml a100-80gb-hdr --devices 512 --batch 1536 --software mixed
shardkit plan run.toml my-cluster.toml --devices 256 --batch 512 --explain 3 --script job.sh
"""

import json
import shlex
import sys
from functools import partial
from operator import attrgetter

from ..checkpoint.pretrained.folder import is_transformers_folder
from ..errors import ConfigurationError
from ..files.writing import write_whole
from ..layout.axes import AXES
from ..plan.calibration import calibration_text, fitted, measured_steps
from ..plan.hardware import Cluster
from ..plan.hardware_file import known_clusters, read_cluster
from ..plan.layouts import RunLayout
from ..plan.report import (
    PlannedTraining,
    as_json,
    print_explanation,
    print_search,
    write_timeline,
)
from ..plan.run import PlannedRun, configuration_of_plan, read_run
from ..plan.search import search
from ..plan.settings import left_out, others_software, settings_of, software_of
from ..plan.software import OWN, SHARDKIT, Software, known_programs, own_in, software_named
from ..slurm.planned import script_of_plan
from ..train.settings import RunConfiguration
from .arguments import count, local_path, option, tokens
from .settings import Given, parsed

_PLAN = """find the best layout for a model, a cluster and a batch

Rank all layouts by the predicted time of a step:
  shardkit plan model.toml cluster.toml --devices 512 --batch 1536
Exit code 1 if none fits. shardkit/plan/VALIDATION.md shows how close predictions are."""

_TACIT = {f"mesh.{axis}" for axis, entry in AXES.items() if entry.is_tacit}


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    hardware = f"hardware that comes with shardkit: {', '.join(known_clusters())}"
    software = f"software that comes with shardkit: {', '.join(known_programs())}"
    how = {"epilog": f"{hardware}\n{software}", "takes_settings": True}
    plan = add_command("plan", _plan, _PLAN, **how)
    add = partial(option, plan)
    add("model", "settings file of `shardkit train`, or a folder of transformers", type=local_path)
    add(
        "cluster",
        "TOML file (see `shardkit bench hardware`), or the name of one that comes with shardkit",
        type=local_path,
    )
    add("--devices", "ranks: GPUs, or cores of CPU nodes", type=count, required=True)
    add("--batch", "samples in a step; default: batch.sequences of the settings", type=count)
    add("--micro-batch", "samples in a micro-batch; default: the best number", type=count)
    add(
        "--tokens",
        "tokens, or rows of a table, to train on; default: 20 tokens for each parameter, the "
        "rows of run.epochs or run.steps",
        type=tokens,
    )
    add(
        "--software SOFTWARE",
        "training software, by its name or a TOML file of it; default: "
        f"{SHARDKIT.name}, in parallel.compute_dtype of the settings",
    )
    add(
        "--calibrate FILE",
        "fit the software to measured steps: metrics.jsonl of a run, or lines of any program",
        action="append",
        default=[],
    )
    add("--rows", "rows of the table", type=count, default=8)
    add(
        "--explain ROW",
        "show memory and time of a row part by part, and draw its timeline",
        type=count,
    )
    add("--svg FILE", "file of that timeline; default: plan-ROW.svg")
    add("--script FILE", "write a SLURM job script for the best layout")
    add("--time", "limit of that job, [D-]HH:MM:SS", default="24:00:00")
    add("--json", "print JSON for programs")


def _plan(known, overrides) -> int:
    path = known.model
    if is_transformers_folder(path):
        path, overrides = None, [f"--model.start={path}", *overrides]
    task = Given.read(path, overrides).first("run.task")
    given = parsed(overrides, configuration_of_plan(task))
    run = read_run(path, given)
    shape, settings = run.shape, run.settings
    cluster = read_cluster(known.cluster)
    own = OWN.get(settings.parallel.compute_dtype)
    if known.software is None:
        named = own_in(settings.parallel.compute_dtype)
    else:
        named = software_named(known.software)
    is_own = named in OWN.values()
    if not is_own and not shape.is_uniform:
        raise ConfigurationError(
            f"--software {named.name} cuts layers that are alike; plan {settings.run.task!r} with "
            f"--software {SHARDKIT.name}, the default"
        )
    software = (software_of if is_own else others_software)(named, settings)
    found = search(
        shape,
        _calibrated(known, shape, software, cluster),
        cluster,
        known.devices,
        known.batch or settings.batch.sequences,
        known.micro_batch,
    )
    best = found.best and found.best.layout
    chosen = settings_of(best, shape, software) if best else {}
    notes = tuple(left_out(settings, shape, software, best, chosen)) if best else ()
    training = PlannedTraining(found, known.tokens or run.items(found.batch), notes)
    if known.json:
        print(as_json(training, known.rows))
    else:
        print_search(training, known.rows)
    if best is None:
        return 1
    if is_own and named != own:
        dtype = next(dtype for dtype, ours in OWN.items() if ours == named)
        given["parallel.compute_dtype"] = "none" if dtype is None else dtype
    said = {key: value for key, value in chosen.items() if _is_said(key, value, settings)}
    arguments = _train_arguments(path, {**given, **said})
    if is_own and not known.json:
        print(_how_to_run(best, arguments, run))
        way = _way_of_arrays(best, cluster, settings)
        if way:
            print(way)
    if known.script is not None:
        _check_script(known.script, is_own, run)
        planned = settings.replace(chosen)
        script = script_of_plan(best, cluster, planned, arguments, known.time, known.script)
        write_whole(known.script, script.encode())
        _tell(known, f"{known.script}: the job script; sbatch {known.script}")
    if known.explain is not None:
        _explain(known, training)
    return 0


def _calibrated(known, shape, software: Software, cluster: Cluster) -> Software:
    """Return the software fitted to measured steps, if there are any, and say what was found."""
    if not known.calibrate:
        return software
    steps = {}
    for path in known.calibrate:
        steps |= measured_steps(path, shape)
    program, ratios = fitted(steps, shape, software, cluster)
    _tell(known, calibration_text(program, ratios))
    return program


def _is_said(key: str, value, settings) -> bool:
    """Return False of none, and of one rank of an axis that texts leave out, where the settings
    have no other value.
    """
    is_usual = value is None or value == 1 and key in _TACIT
    return not is_usual or attrgetter(key)(settings) != value


def _tell(known, text: str) -> None:
    """Print a line; to standard error where standard output is JSON."""
    print(text, file=sys.stderr if known.json else sys.stdout)


def _train_arguments(path: str | None, settings: dict) -> list[str]:
    """Return the arguments of `shardkit train` with these settings {"section.key": value}."""
    texts = {key: _text(value) for key, value in settings.items()}
    arguments = [f"--{key}={text}" for key, text in texts.items()]
    return [path, *arguments] if path else arguments


def _text(value) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _how_to_run(layout: RunLayout, arguments: list[str], run: PlannedRun) -> str:
    """Return the command line of a run in this layout."""
    data = f", with {run.lacks} in data.path" if run.lacks else ""
    return f"run it{data}: mpiexec -n {layout.devices} shardkit train {shlex.join(arguments)}"


def _way_of_arrays(layout: RunLayout, cluster: Cluster, settings: RunConfiguration) -> str:
    """Return a line about the way of GPU arrays between ranks, each on a GPU; "" for CPUs."""
    if settings.parallel.device != "cuda":
        return ""
    from ..gpu.transports.choice import planned_text

    nodes = -(-layout.devices // cluster.devices)
    here = -(-layout.devices // nodes)
    return planned_text(settings.parallel.gpu_transport, nodes, here, cluster.devices)


def _check_script(path: str, is_own: bool, run: PlannedRun) -> None:
    """Raise ConfigurationError if a job script would not run as it is written."""
    if not is_own:
        raise ConfigurationError(
            f"--script {path}: a job script runs `shardkit train`; plan it with --software "
            f"{SHARDKIT.name}, the default"
        )
    if run.lacks:
        raise ConfigurationError(
            f"--script {path}: the model learns from {run.lacks}; name them in data.path"
        )


def _explain(known, training) -> None:
    if known.json:
        rows = training.found.rows(known.explain)
        candidate = rows[known.explain - 1] if len(rows) >= known.explain else None
    else:
        candidate = print_explanation(training, known.explain, known.rows)
    if candidate is None:
        rows = len(training.found.rows(max(known.rows, known.explain)))
        raise ConfigurationError(f"--explain {known.explain}, but there are {rows} rows")
    _tell(known, write_timeline(candidate, known.svg or f"plan-{known.explain}.svg"))
