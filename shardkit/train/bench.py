"""`shardkit bench`: a few steps of the model that the settings describe, and where their time goes.

    settings -> sharded model -> profile of a step -> minus the profile of the same step with next
    to nothing to compute
                                                      (what is left of that one is Python) -> table,
                                                      JSON, advice

The same settings as `shardkit train`; steps are on a batch of Task.example, and nothing is kept.
"""

import json
import os
import platform
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from ..array import products
from ..array.blas import library_named
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import ConfigurationError
from ..parallel.model.sharded_model import ShardedModel
from ..parallel.step.profile import PARTS as MEASURED_PARTS
from ..parallel.step.profile import StepProfile, least_parts, profile_steps
from ..parallel.step.stopwatch import Product, large_product_speed
from ..task.task import Task
from .advice import advise
from .feed import waiting_seconds
from .model import make_model
from .preparing import prepare_data
from .ranks import check_batch
from .settings import RunConfiguration

PARTS = {
    "products": "matrix products",
    "kernels": "other kernels",
    "passes": "passes over arrays outside of kernels",
    "optimizer": "optimizer and clipping",
    "communication": "exposed communication",
    "idle": "idle, waiting for other ranks",
    "python": "Python and bookkeeping",
}
_MOST_ROWS = 8  # of kernels, and of products, in the table


def bench_run(
    settings: RunConfiguration,
    backend: CommunicationBackend,
    *,
    steps: int,
    json_path: str | None = None,
) -> dict:
    """Profile `steps` steps, print where the time goes on rank 0, and return the figures.

    Collective over the backend. Each rank must be a process of its own.
    Errors, on all ranks: those of the settings; OSError if the file cannot be written.
    """
    with collectively(backend):
        check_batch(settings, backend.world_size)
        if json_path is not None and backend.rank == 0:
            Path(json_path).write_text("", encoding="utf-8")  # before the work, not after it
    with threadpool_limits(settings.run.threads), _opened(settings, backend) as task:
        model = make_model(task, backend)
        task.begin(model)
        ranks = profile_steps(model, *_batch(task, model), steps)
        waits = backend.all_gather_object(waiting_seconds(task, model, steps))
        alone = backend.all_gather_object(_products_alone(model, ranks[backend.rank]))
        figures = _figures(task, model, ranks, alone, _fixed_costs(task, model))
        figures["data_wait_seconds"] = max(waits)
        figures["other_blas_seconds"] = backend.all_gather_object(
            _seconds_by_other_blas(model, ranks[backend.rank])
        )
    figures["advice"] = advise(figures)
    with collectively(backend):
        if backend.rank == 0:
            print_figures(figures)
            if json_path is not None:
                Path(json_path).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


@contextmanager
def _opened(settings: RunConfiguration, backend: CommunicationBackend):
    """Give the task with its data open, in a folder that is removed in the end. Collective.

    The folder lies where the run folder would: all nodes see that file system.
    """
    folder = None
    with collectively(backend):
        task = settings.make_task()
        if backend.rank == 0:
            run_folder = Path(settings.run.folder).resolve()
            place = next(each for each in run_folder.parents if each.is_dir())
            folder = tempfile.mkdtemp(prefix=".shardkit-bench-", dir=place)
    folder = backend.broadcast_object(folder, 0)
    try:
        prepare_data(task, Path(folder), backend)
        with collectively(backend):
            task.open(Path(folder))
        yield task
    finally:
        if backend.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _batch(task: Task, model: ShardedModel):
    """Return this data rank's part of a batch: x, y."""
    part = task.settings.batch.sequences // model.mesh.size("data")
    return task.example(part, seed=model.mesh.coordinates.data)


def _fixed_costs(task: Task, model: ShardedModel) -> list[dict[str, float]]:
    """Return the seconds of each part of the same step with next to nothing to compute.

    One table for each rank, from a model of the same blocks; zeros if the task has no such model.

    Collective. What does not shrink with the sizes is Python: calls, the tape, the runtime, and the
    fixed cost of kernels.
    """
    settings, smallest = task.settings, task.smallest()
    if smallest is None:
        return [dict.fromkeys(MEASURED_PARTS, 0.0)] * model.world_size
    stages = model.engine.stages
    blocks = [
        sum(len(plan.blocks) for place, plan in stages.plans.items() if place.stage == stage)
        for stage in range(len(stages.units_per_stage))
    ]
    tiny = settings.replace(
        {
            **smallest,
            "batch.sequences": settings.batch.sequences // settings.batch.micro_batch,
            "batch.micro_batch": 1,
            "parallel.minimum_parameter_group_size": 1,
            "parallel.blocks_per_stage": blocks,
            "parallel.stage_balance": "uniform",
        }
    ).make_task()
    small = make_model(tiny, model.mesh.world)
    mine = least_parts(small, *_batch(tiny, small), 20)
    small.close()
    return model.mesh.world.all_gather_object(mine)


def _products_alone(model: ShardedModel, profile: StepProfile) -> dict:
    """Return {product: seconds of one alone}, and under None the speed of a large one.

    All ranks at the same time, as in a step.
    """
    device, dtype = model.engine.device, model.engine.units[0].dtype
    model.mesh.world.barrier()
    with model.engine.numerics.in_use():
        return {
            None: large_product_speed(device, dtype),
            **{product: product.seconds_alone(device) for product in profile.products},
        }


def _seconds_by_other_blas(model: ShardedModel, profile: StepProfile) -> float | None:
    """Return the seconds of all products of a step, alone, by the other library of `parallel.blas`.

    None if it is not installed.
    """
    device = model.engine.device
    if device.kind != "cpu":
        return None
    try:
        other = library_named("numpy" if model.engine.numerics.blas is not None else "mkl")
    except ConfigurationError:
        return None
    with products.multiplied_by(other):
        return _seconds_alone(
            profile, {product: product.seconds_alone(device) for product in profile.products}
        )


# ---- figures -------------------------------------------------------------------------------------


def _figures(
    task: Task, model, ranks: list[StepProfile], alone: list[dict], fixed: list[dict]
) -> dict:
    """Return everything that is measured, as JSON holds it. Seconds are of one step."""
    settings = task.settings
    step_seconds = max(profile.seconds for profile in ranks)
    samples = settings.batch.sequences
    parts = [_split_rest(profile.parts, of_tiny) for profile, of_tiny in zip(ranks, fixed)]
    speed = sum(
        _speed_alone(profile, of_rank) for profile, of_rank in zip(ranks, alone)
    )  # of all ranks together
    flops = (
        task.num_flops_per_sample(model.wrapped_model) * samples
    )  # of the whole model, whatever this rank holds
    return {
        "strategy": model.policy.name,
        "mesh": str(model.mesh.shape),
        "ranks": len(ranks),
        "parameter_count": model.parameter_count,
        "settings": settings.to_dict(),
        "step_seconds": step_seconds,
        "watched_step_seconds": max(profile.watched_seconds for profile in ranks),
        "unit": task.unit or task.sample,
        f"{task.unit or task.sample}_per_second": samples * task.units_per_sample / step_seconds,
        "model_flops_per_second": flops / step_seconds,
        "product_flops_per_second_alone": speed,
        "large_product_flops_per_second": sum(of_rank[None] for of_rank in alone),
        "model_flop_utilization": flops / step_seconds / speed,
        "parts": {part: sum(of_rank[part] for of_rank in parts) / len(parts) for part in PARTS},
        "parts_per_rank": parts,
        "kernels": _kernel_rows(ranks),
        "products": _product_rows(ranks[0], alone[0]),
        "products_alone_seconds": [
            _seconds_alone(profile, of_rank) for profile, of_rank in zip(ranks, alone)
        ],
        "sent_bytes_per_rank": [profile.sent_bytes for profile in ranks],
        "sent_calls_per_rank": [profile.sent_calls for profile in ranks],
        "peak_bytes_per_rank": [profile.peak_bytes for profile in ranks],
        "bubble_fraction": model.engine.bubble_fraction,
        **_places(settings, model),
    }


def _split_rest(parts: dict, of_tiny: dict) -> dict:
    """Return the parts as printed, with the same sum.

    What each of them costs without work is Python.
    """
    split = {"python": 0.0}
    for part, seconds in parts.items():
        fixed = 0.0 if part in ("communication", "idle") else min(of_tiny[part], seconds)
        split["passes" if part == "rest" else part] = seconds - fixed
        split["python"] += fixed
    return {part: split[part] for part in PARTS}


def _seconds_alone(profile: StepProfile, alone: dict) -> float:
    return sum(alone[product] * calls for product, (_, calls) in profile.products.items())


def _speed_alone(profile: StepProfile, alone: dict) -> float:
    """Return the floating point operations per second of the step's own products, each alone."""
    return profile.product_flops / _seconds_alone(profile, alone)


def _kernel_rows(ranks: list[StepProfile]) -> dict:
    """Return {name: mean seconds and calls per rank}, the longest first."""
    names = {name for profile in ranks for name in profile.kernels}
    rows = {
        name: [
            sum(profile.kernels.get(name, (0.0, 0))[i] for profile in ranks) / len(ranks)
            for i in range(2)
        ]
        for name in names
    }
    return {
        name: {"seconds": seconds, "calls": calls}
        for name, (seconds, calls) in sorted(rows.items(), key=lambda item: -item[1][0])
    }


def _product_rows(profile: StepProfile, alone: dict[Product, float]) -> list[dict]:
    """Return the products of one rank, the longest first."""
    rows = [
        {
            "product": str(product),
            "calls": calls,
            "seconds": seconds,
            "alone_seconds": alone[product] * calls,
            "flops": product.flops * calls,
        }
        for product, (seconds, calls) in profile.products.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def _places(settings, model) -> dict:
    """Return the threads and cores of the fullest node. Collective."""
    hosts = model.mesh.world.all_gather_object((platform.node(), sorted(os.sched_getaffinity(0))))
    names = [name for name, _ in hosts]
    fullest = max(names, key=names.count)
    cores = {core for name, allowed in hosts if name == fullest for core in allowed}
    return {
        "threads_per_rank": settings.run.threads,
        "ranks_per_node": names.count(fullest),
        "cores_per_node": len(cores),
    }


# ---- for people ----------------------------------------------------------------------------------


def print_figures(figures: dict) -> None:
    """Print the figures as tables, and the advice."""
    console = Console(highlight=False, soft_wrap=True)
    reached = figures["model_flops_per_second"] / 1e9
    alone = figures["product_flops_per_second_alone"] / 1e9
    peaks = [f"{num_bytes / 2**20:.0f}" for num_bytes in figures["peak_bytes_per_rank"][:8]]
    console.print(
        f"shardkit: {figures['parameter_count']:,} parameters as {figures['strategy']} on "
        f"{figures['ranks']} ranks ({figures['mesh']}), {figures['threads_per_rank']} thread each "
        f"on {figures['cores_per_node']} cores\n"
        f"step {figures['step_seconds'] * 1e3:.1f} ms, "
        f"{figures[figures['unit'] + '_per_second']:,.0f} {figures['unit']}/s; "
        f"model FLOP utilization {figures['model_flop_utilization']:.0%}: {reached:.1f} of "
        f"{alone:.1f} GFLOP/s, the speed of its matrix products alone\n"
        f"peak memory per rank {' '.join(peaks)} MiB; a step waits "
        f"{figures['data_wait_seconds'] * 1e3:.2f} ms for its data",
        markup=False,
    )
    console.print(_parts_table(figures))
    console.print(
        _rows_table(
            "kernel",
            [
                (name, row["calls"], row["seconds"], None)
                for name, row in figures["kernels"].items()
            ],
        )
    )
    console.print(
        _rows_table(
            "matrix product",
            [
                (row["product"], row["calls"], row["seconds"], row["flops"] / row["seconds"])
                for row in figures["products"]
            ],
        )
    )
    for sentence in figures["advice"]:
        console.print(f"- {sentence}", markup=False)


def _parts_table(figures) -> Table:
    table = Table(
        "part of the step",
        *[f"rank {rank}, ms" for rank in range(figures["ranks"])][:8],
        "share",
        box=None,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    total = sum(figures["parts"].values())
    for part, words in PARTS.items():
        table.add_row(
            words,
            *[f"{of_rank[part] * 1e3:.2f}" for of_rank in figures["parts_per_rank"][:8]],
            f"{figures['parts'][part] / total:.1%}",
        )
    return table


def _rows_table(what, rows) -> Table:
    """Return a table of the first few (name, calls, seconds, operations per second or None)."""
    table = Table(what, "calls", "ms", "" if rows and rows[0][3] is None else "GFLOP/s", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, calls, seconds, speed in rows[:_MOST_ROWS]:
        table.add_row(
            name,
            f"{calls:g}",
            f"{seconds * 1e3:.2f}",
            "" if speed is None else f"{speed / 1e9:.1f}",
        )
    return table
