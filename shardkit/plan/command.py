"""`shardkit plan`: which layout to train a model in, on this cluster, with this batch.

shardkit plan model.toml a100-80gb-hdr --devices 512 --batch 1536 --software mixed
shardkit plan run.toml my-cluster.toml --devices 256 --batch 512 --explain 3 --script job.sh
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from math import inf

from ..config import RunConfiguration
from ..errors import ConfigurationError
from .hardware import Cluster, known_clusters, read_cluster
from .layouts import RunLayout
from .model import BYTES_VOCABULARY, read_model
from .report import (
    Training,
    as_json,
    default_tokens,
    print_explanation,
    print_search,
    write_timeline,
)
from .search import search
from .settings import left_out, software_of
from .software import OWN, SHARDKIT, SOFTWARE, Software, software_named


def add_plan(commands) -> None:
    """The options of the command."""
    plan = commands.add_parser(
        "plan",
        help="the best layout for a model, a cluster and a batch",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Rank all layouts by the predicted time of a step:  shardkit plan model.toml cluster.toml --devices 512 "
        "--batch 1536\nExit code 1 if none fits. shardkit/plan/VALIDATION.md: how near such predictions are.",
        epilog=f"hardware that comes with shardkit: {', '.join(known_clusters())}\n"
        f"software: {', '.join(SOFTWARE)}; all but shardkit's own are for comparison",
    )
    plan.add_argument(
        "model", help="settings file of `shardkit train`; [model] may also have vocabulary_size"
    )
    plan.add_argument(
        "cluster",
        help="TOML file, see `shardkit bench hardware`, or the name of one that comes with shardkit",
    )
    plan.add_argument(
        "--devices", type=_count, required=True, help="ranks: GPUs, or cores of CPU nodes"
    )
    plan.add_argument(
        "--batch", type=_count, help="sequences of a step; default: batch.sequences of the settings"
    )
    plan.add_argument(
        "--micro-batch", type=_count, help="sequences computed at once; default: whatever is best"
    )
    plan.add_argument("--tokens", type=_tokens, help="to train on; default: 20 for each parameter")
    plan.add_argument(
        "--software",
        help=f"what runs; default: {SHARDKIT.name}, in parallel.compute_dtype of the settings",
    )
    plan.add_argument("--rows", type=_count, default=8, help="of the table; default: %(default)s")
    plan.add_argument(
        "--explain",
        type=_count,
        metavar="ROW",
        help="memory and time of a row part by part, and its timeline",
    )
    plan.add_argument("--svg", metavar="FILE", help="of that timeline; default: plan-ROW.svg")
    plan.add_argument(
        "--script", metavar="FILE", help="write a SLURM job script for the best layout"
    )
    plan.add_argument(
        "--time", default="24:00:00", help="limit of that job, [D-]HH:MM:SS; default: %(default)s"
    )
    plan.add_argument("--json", action="store_true", help="for programs")


Render = Callable[[RunLayout, Cluster, RunConfiguration, list[str], str, str], str]


def run_plan(known, overrides: dict, render: Render) -> int:
    """Run the command; the exit code.

    overrides   {"section.key": value} on top of the settings file
    render      (layout, cluster, settings, arguments, time, path) -> job script
    Errors: ConfigurationError.
    """
    shape, settings = read_model(known.model, overrides)
    cluster, own = read_cluster(known.cluster), OWN[settings.parallel.compute_dtype]
    named = own if known.software is None else software_named(known.software)
    compute_dtype = next(
        (name for name, ours in OWN.items() if ours is named), None
    )  # None: it is not shardkit
    software = named if compute_dtype is None else software_of(named, settings)
    found = search(
        shape,
        software,
        cluster,
        known.devices,
        known.batch or settings.batch.sequences,
        known.micro_batch,
    )
    best = found.best and found.best.layout
    notes = tuple(left_out(settings, shape, software, best, settings_of(best))) if best else ()
    training = Training(found, known.tokens or default_tokens(found), notes)
    if known.json:
        print(as_json(training, known.rows))
    else:
        print_search(training, known.rows)
    if found.best is None:
        return 1
    chosen = (
        {} if own is named or compute_dtype is None else {"parallel.compute_dtype": compute_dtype}
    )
    arguments = train_arguments(found.best.layout, known, {**overrides, **chosen})
    is_runnable = compute_dtype is not None and shape.vocabulary == BYTES_VOCABULARY
    if not known.json and compute_dtype is not None:
        print(_how_to_run(found.best.layout, arguments, is_runnable, named))
    if known.script is not None:
        _write_script(known, found.best.layout, cluster, settings, arguments, is_runnable, render)
    if known.explain is not None:
        _explain(known, training)
    return 0


def train_arguments(layout: RunLayout, known, overrides: dict) -> list[str]:
    """What `shardkit train` is told to run in this layout: the settings file and
    --section.key=value.
    """
    chosen = {**overrides, **settings_of(layout)}
    texts = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in chosen.items()
    }
    return [known.model, *(f"--{key}={text}" for key, text in texts.items())]


def settings_of(layout: RunLayout) -> dict:
    """{"section.key": value} that make a run have this layout."""
    flags = {
        "parallel.sequence_parallel": layout.is_sequence_parallel,
        "parallel.activation_checkpointing": layout.recomputation == "full",
    }
    return {
        "mesh.pipeline": layout.pipeline,
        "mesh.tensor": layout.tensor,
        "parallel.policy": layout.policy,
        "parallel.schedule": layout.schedule,
        "parallel.virtual_stages": layout.virtual,
        "batch.sequences": layout.batch,
        "batch.micro_batch": layout.micro_batch,
        **flags,
    }


def _how_to_run(
    layout: RunLayout, arguments: list[str], is_runnable: bool, software: Software
) -> str:
    if is_runnable:
        return f"run it: mpiexec -n {layout.devices} shardkit train {shlex.join(arguments)}"
    values = {
        "micro_batches": layout.micro_batches,
        "schedule": layout.schedule,
        "virtual_stages": layout.virtual,
        "sequence_parallel": layout.is_sequence_parallel,
        "activation_checkpointing": layout.recomputation == "full",
        **({} if software is SHARDKIT else {"compute_dtype": software.dtype}),
    }
    config = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return (
        f"run it from Python (`shardkit train` reads bytes, {BYTES_VOCABULARY} tokens):\n"
        f"  config = ShardingConfiguration(backend, {config})\n"
        f"  model = HybridShardedModel(gpt, config, {layout.pipeline}, {layout.tensor}, {layout.data}, "
        f"policy={layout.policy!r})"
    )


def _write_script(known, layout, cluster, settings, arguments, is_runnable, render) -> None:
    if not is_runnable:
        raise ConfigurationError(
            f"--script {known.script}: a job script runs `shardkit train`, which trains a GPT of "
            f"{BYTES_VOCABULARY} tokens with --software {SHARDKIT.name}; this model or software is another"
        )
    text = render(
        layout, cluster, settings.replace(settings_of(layout)), arguments, known.time, known.script
    )
    with open(known.script, "w", encoding="utf-8") as file:
        file.write(text)
    print(
        f"{known.script}: the job script; sbatch {known.script}",
        file=sys.stderr if known.json else sys.stdout,
    )


def _explain(known, training) -> None:
    candidate = (
        print_explanation(training, known.explain, known.rows)
        if not known.json
        else _row(known, training)
    )
    if candidate is None:
        rows = len(training.found.rows(max(known.rows, known.explain)))
        raise ConfigurationError(f"--explain {known.explain}, but there are {rows} rows")
    sentence = write_timeline(candidate, known.svg or f"plan-{known.explain}.svg")
    print(sentence, file=sys.stderr if known.json else sys.stdout)


def _row(known, training):
    rows = training.found.rows(known.explain)
    return rows[known.explain - 1] if len(rows) >= known.explain else None


def _count(text: str) -> int:
    """Errors: ArgumentTypeError on anything but an integer >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}; wanted an integer, at least 1")
    return int(text)


def _tokens(text: str) -> float:
    """300e9, 1.5e12. Errors: ArgumentTypeError."""
    try:
        tokens = float(text)
    except ValueError:
        tokens = 0.0
    if not 0 < tokens < inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of tokens; wanted one like 300e9")
    return tokens
