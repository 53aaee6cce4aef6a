"""`shardkit bench`: a few steps of the model that the settings describe, and where their time goes.

    settings --> sharded model --> profile of a step             \\
                                   the same, with no work: Python > figures --> tables, JSON, advice
                                   its products alone            /
    here: what is measured         bench_figures.py: what follows       bench_tables.py: for people

The same settings as `shardkit train`; steps are on a batch of Task.example, and nothing is kept.
"""

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path

from threadpoolctl import threadpool_limits

from ..array import products
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.same import alike, facts_of
from ..files.removing import remove_trial
from ..files.writing import check_can_write, write_whole
from ..parallel.model.profile import PARTS as MEASURED_PARTS
from ..parallel.model.profile import StepProfile, least_parts, profile_steps
from ..parallel.model.sharded_model import ShardedModel, parts_of
from ..parallel.step.stopwatch import large_product_speed
from ..task.task import Task
from .advice import advise
from .agreement import SAME_SETTINGS, facts_of_start
from .bench_figures import figures_of, seconds_alone_of
from .bench_tables import print_figures
from .choice import installed_libraries, with_blas
from .feed import waiting_seconds
from .model import make_model
from .preparing import prepare_data
from .ranks import check_batch
from .settings import RunConfiguration


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
    with alike(backend, SAME_SETTINGS) as facts:
        check_batch(settings, backend.world_size)
        facts |= facts_of_start(settings, resume=False) | facts_of({"steps": steps})
        if json_path is not None and backend.rank == 0:
            check_can_write(json_path)  # before the work, not after it
    with threadpool_limits(settings.run.threads), _opened(settings, backend) as task:
        model = make_model(task, backend)
        task.begin(model)
        ranks = profile_steps(model, *_batch(task, model), steps)
        waits = backend.all_gather_object(waiting_seconds(task, model, steps))
        alone = backend.all_gather_object(_products_alone(model, ranks[backend.rank]))
        figures = figures_of(task, model, ranks, alone, _fixed_costs(task, model))
        figures["data_wait_seconds"] = max(waits)
        figures["blas_seconds"] = _of_all_ranks(
            backend.all_gather_object(_seconds_by_others(model, ranks[backend.rank]))
        )
    figures["advice"] = advise(figures)
    with collectively(backend):
        if backend.rank == 0:
            print_figures(figures)
            if json_path is not None:
                write_whole(json_path, (json.dumps(figures, indent=1) + "\n").encode())
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
        task, _ = with_blas(task, Path(folder), backend)
        with collectively(backend):
            task.open(Path(folder))
        yield task
    finally:
        if backend.rank == 0:
            remove_trial(folder)


def _batch(task: Task, model: ShardedModel):
    """Return this data rank's part of a batch: x, y."""
    number, parts = model.mesh.sample_part
    return task.example(task.settings.batch.sequences // parts, seed=number)


def _fixed_costs(task: Task, model: ShardedModel) -> list[dict[str, float]]:
    """Return the seconds of each part of the same step with next to nothing to compute.

    One table for each rank, from a model of the same blocks; zeros if the task has no such model.

    Collective. What does not shrink with the sizes is Python: calls, the tape, the runtime, and the
    fixed cost of kernels.
    """
    settings, smallest = task.settings, task.smallest()
    if smallest is None:
        return [dict.fromkeys(MEASURED_PARTS, 0.0)] * model.world_size
    stages = parts_of(model).engine.plan.stages
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
    engine = parts_of(model).engine
    device, dtype = engine.device, engine.units[0].dtype
    model.mesh.world.barrier()
    with engine.plan.numerics.in_use():
        return {
            None: large_product_speed(device, dtype),
            **{product: product.seconds_alone(device) for product in profile.products},
        }


def _seconds_by_others(model: ShardedModel, profile: StepProfile) -> dict[str, float]:
    """Return {name: seconds of all products of a step, alone} for the libraries not in use."""
    device = parts_of(model).engine.device
    if device.kind != "cpu":
        return {}
    found = {}
    for name, library in installed_libraries().items():
        if name == model.sharding_configuration.blas:
            continue
        with products.multiplied_by(library):
            alone = {product: product.seconds_alone(device) for product in profile.products}
        found[name] = seconds_alone_of(profile, alone)
    return found


def _of_all_ranks(by_name: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return {name: its seconds on each rank} of what all ranks have."""
    return {
        name: [of_rank[name] for of_rank in by_name]
        for name in by_name[0]
        if all(name in of_rank for of_rank in by_name)
    }
