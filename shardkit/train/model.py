"""From the task of a run to its sharded model."""

from pathlib import Path

from ..checkpoint.models import without_weights
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.same import alike
from ..layout.axes import parallel_sizes
from ..nn.module import blocks_of
from ..parallel.model.sharded_model import ShardedModel
from ..parallel.model.strategies import HybridShardedModel
from ..parallel.pipeline.balance import measure_blocks
from ..parallel.settings import ShardingConfiguration
from ..task.task import Task
from .ranks import num_replicas


def make_model(
    task: Task, backend: CommunicationBackend, *, awaits: tuple[Path, ...] | None = None
) -> ShardedModel:
    """Make the sharded model of a task, in its settings. Collective.

    awaits   where the checkpoint is that load_model() reads next: no initial weights are made then,
             which takes longer than to read them
    """
    settings = task.settings
    parallel = settings.parallel
    optimizer = settings.optimizer
    with alike(backend, "make the same model on all ranks") as facts:
        model = task.make_model()
        if awaits is not None:
            without_weights(model, awaits[0])
        facts["the blocks of the model"] = str([name for name, _ in blocks_of(model)])
    balance = parallel.stage_balance
    if balance == "measured":
        example = task.example(settings.batch.micro_batch)
        balance = measure_blocks(model, *example, backend, loss=task.loss)
    with collectively(backend):
        config = ShardingConfiguration(
            backend,
            optimizer=optimizer.rule(),
            loss=task.loss,
            parameter_groups=optimizer.groups(model),
            max_gradient_norm=optimizer.max_gradient_norm,
            micro_batches=settings.batch.sequences
            // settings.batch.micro_batch
            // num_replicas(settings, backend.world_size),
            seed=settings.run.seed,
            **{**parallel.shared(), "stage_balance": balance},
        )
    sizes = parallel_sizes(settings.mesh.sizes)
    sharded = HybridShardedModel(model, config, **sizes, policy=parallel.policy)
    if parallel.compile:
        sharded.compile()
    return sharded
