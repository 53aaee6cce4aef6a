"""Reports of a sharded model: metadata, and the table of who is where."""

import copy

from ...layout.axes import parallel_sizes
from ...nn.module import blocks_of


def metadata_of(parts) -> dict:
    """Return strategy, sizes, bytes on this rank and training history of a ShardedModel.

    A fresh dict; no communication.
    """
    engine, history = parts.engine, parts.history
    mesh, config = engine.mesh, engine.config
    numerics, state = engine.plan.numerics, engine.state
    live = engine.device.bytes_in_use
    return {
        "strategy": parts.strategy.label,
        "is_distributed": mesh.world.world_size > 1,
        "world_size": mesh.world.world_size,
        "rank": mesh.rank,
        **parallel_sizes(mesh.shape.sizes),
        **{f"{axis}_parallel_rank": place for axis, place in mesh.coordinates.along.items()},
        "parameter_count": engine.weights.count,
        "shard_size": engine.weights.num_local,
        "shard_ranks": _shard_ranks(engine),
        "num_units": len(engine.units),
        "compiled": engine.compilation.is_on,
        "compute_dtype": str(numerics.compute_dtype),
        "residual_dtype": str(numerics.stream_dtype or numerics.compute_dtype),
        "product_dtype": str(numerics.product_dtype(engine.device.kind != "cpu")),
        "matmul_precision": numerics.precision,
        "blas": numerics.blas.name if numerics.blas else config.blas,
        "convolutions": numerics.convolutions,
        "loss_scale": state.loss_scale.value,
        "parameter_bytes": live("parameters", "gathered parameters"),
        "gradient_bytes": live("gradients", "gradients in flight"),
        "optimizer_bytes": live("optimizer state"),
        "activation_bytes": live("activations"),
        "peak_bytes": engine.device.accounts.peak_bytes(),
        "schedule": config.schedule,
        "bubble_fraction": engine.bubble_fraction,
        "overlap": str(engine.overlap),
        "exposed_communication_seconds": dict(engine.listening.exposed),
        "micro_batches": config.micro_batches,
        "history": {
            "steps": state.step_number,
            "samples_seen": state.samples_seen,
            "last_loss": history.last_loss,
            "skipped_steps": state.skips.total,
            "wall_seconds": history.train_seconds,
        },
        "evaluation": copy.deepcopy(history.evaluation),
    }


def table_of(parts) -> str:
    """Return a table of each rank's coordinates, host, stages, and first and last block of each.

    The same text on all ranks; no communication.
    """
    engine = parts.engine
    mesh, config = engine.mesh, engine.config
    names = {id(block): name or type(block).__name__ for name, block in blocks_of(engine.model)}
    runs = [engine.plan.stages.blocks_of(rank) for rank in range(mesh.size("pipeline"))]
    ranks = range(mesh.world.world_size)
    of_ranks = [runs[mesh.shape.coordinates(rank).pipeline] for rank in ranks]
    table = mesh.describe(
        stages=[", ".join(map(str, run)) for run in of_ranks],
        blocks=[", ".join(_ends(names, blocks) for blocks in run.values()) for run in of_ranks],
    )
    return (
        f"{parts.strategy.label}: policy {_policy_text(parts)}, schedule {config.schedule}, "
        f"{config.micro_batches} micro-batches per data rank\n{table}"
    )


def _shard_ranks(engine) -> int:
    """Return how many data ranks share one copy of the optimizer state."""
    unit = engine.units[0]
    return 1 if unit.optimizer.updates_all else unit.group.world_size


def _policy_text(parts) -> str:
    policy = parts.policy
    return (
        f"{policy.name} of {_shard_ranks(parts.engine)} ranks" if policy.in_groups else policy.name
    )


def _ends(names, blocks) -> str:
    """Return the name of the only block, or of the first and the last."""
    return " .. ".join(dict.fromkeys(names[id(block)] for block in (blocks[0], blocks[-1])))
