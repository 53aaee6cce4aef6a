"""The strategies: one sharded model under several names, each with its policy and its mesh.

DDPModel, ZeRO1Model, ZeRO2Model and FSDPModel are rows of layout.policy.POLICIES on a mesh of data
ranks alone; HybridShardedModel combines any row, HSDP too, with pipeline stages and tensor ranks.
"""

from collections.abc import Sequence
from functools import partial

from ...comm.mesh import Mesh
from ...layout.axes import ORDER
from ...nn.module import Module
from ..settings import ShardingConfiguration
from .parts import Strategy
from .sharded_model import ShardedModel


class DDPModel(ShardedModel):
    """Everything is replicated; gradients are summed over all ranks (arXiv 2006.15704)."""

    _strategy = Strategy("DDP", "ddp")


class ZeRO1Model(ShardedModel):
    """Optimizer state is sharded over the ranks (arXiv 1910.02054, stage 1)."""

    _strategy = Strategy("ZeRO-1", "zero1")


class ZeRO2Model(ShardedModel):
    """Optimizer state and gradients are sharded (arXiv 1910.02054, stage 2)."""

    _strategy = Strategy("ZeRO-2", "zero2")


class FSDPModel(ShardedModel):
    """Parameters, gradients and optimizer state are sharded (arXiv 1910.02054, stage 3).

    Each unit is gathered just before its use, and released after it (arXiv 2304.11277).
    """

    _strategy = Strategy("FSDP", "fsdp")


ZeRO3Model = FSDPModel


class PipelineParallelModel(ShardedModel):
    """Each rank holds one stage of the model, and computes on activations that it receives.

    All ranks pass the same x and y to train, and get the same predictions. config.schedule names
    the order of the micro-batches.

    Raises
    ------
    StagesError
        On all ranks, if the model has fewer units than the schedule has stages.

    References
    ----------
    GPipe (arXiv 1811.06965).
    """

    _strategy = Strategy(
        "PipelineParallel", "ddp", lambda backend: Mesh(backend, pipeline=backend.world_size)
    )


class TensorParallelModel(ShardedModel):
    """Every layer is cut over all ranks: each computes its heads, hidden units, vocabulary rows.

    All ranks pass the same x and y to train, and get the same predictions. The model is a GPT or
    MLP, or the configuration has a tensor_plan.

    Raises
    ------
    ShardingError, ConfigurationError
        On all ranks, with the arithmetic, if it cannot be cut.

    References
    ----------
    Megatron-LM (arXiv 1909.08053).
    """

    _strategy = Strategy(
        "TensorParallel", "ddp", lambda backend: Mesh(backend, tensor=backend.world_size)
    )


class HybridShardedModel(ShardedModel):
    """Pipeline stages x data replicas x parts of samples x tensor ranks, under any policy.

    Parameters
    ----------
    wrapped_model, config
        As of ShardedModel.
    pipeline_parallel_size, tensor_parallel_size
        Ranks of these axes, at least 1.
    data_parallel_size
        -1: the ranks that are left over.
    policy
        "ddp", "zero1", "zero2", "fsdp", or "hsdp": fsdp in groups of config.shard_ranks neighbors
        on the data axis.
    order
        Axes from the slowest to the one that varies fastest with the rank.
    domain_parallel_size
        Ranks that share each sample, at least 1 (docs/parallel/domain.md).

    Raises
    ------
    ValueError
        On all ranks, on a size < 1 (data: and not -1).
    MeshError
        On all ranks, with the arithmetic if the sizes do not multiply to the number of ranks, or
        shard_ranks does not divide the data ranks.
    ConfigurationError
        On all ranks, on another policy, on hsdp without shard_ranks, and those of the strategies it
        combines.
    """

    _strategy = Strategy("3D-Parallelism (Hybrid)", "fsdp")

    def __init__(
        self,
        wrapped_model: Module,
        config: ShardingConfiguration,
        pipeline_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        data_parallel_size: int = -1,
        policy: str = "fsdp",
        order: Sequence[str] = ORDER,
        domain_parallel_size: int = 1,
    ) -> None:
        mesh = partial(
            Mesh,
            pipeline=pipeline_parallel_size,
            tensor=tensor_parallel_size,
            data=data_parallel_size,
            order=order,
            domain=domain_parallel_size,
        )
        self._strategy = Strategy(self._strategy.label, policy, mesh)
        super().__init__(wrapped_model, config)
