"""The sharded optimizers, by the sharded model that each trains."""

from collections.abc import Sequence
from typing import Any

from ...errors import MeshError, ShardingError
from ...layout.axes import ORDER, parallel_sizes
from ...layout.mesh_shape import MeshShape
from ...layout.policy import policy_named
from ...optim.rules import Rule
from ..settings import ShardingConfiguration
from .optimizer import ShardedOptimizer
from .sharded_model import parts_of
from .strategies import (
    DDPModel,
    FSDPModel,
    HybridShardedModel,
    PipelineParallelModel,
    TensorParallelModel,
    ZeRO1Model,
    ZeRO2Model,
)


class DDPOptimizer(ShardedOptimizer):
    """Every rank keeps all of the optimizer state, and takes the same step."""

    _model_class = DDPModel


class ZeRO1Optimizer(ShardedOptimizer):
    """Each rank keeps the optimizer state of its span, and updates that (arXiv 1910.02054)."""

    _model_class = ZeRO1Model


class ZeRO2Optimizer(ShardedOptimizer):
    """Each rank keeps the optimizer state and the gradients of its span."""

    _model_class = ZeRO2Model


class FSDPOptimizer(ShardedOptimizer):
    """Each rank keeps the optimizer state, the gradients and the parameters of its span."""

    _model_class = FSDPModel


class PipelineParallelOptimizer(ShardedOptimizer):
    """Each rank updates the layers of its stage.

    Tied weights take the same step on all stages that use them.
    """

    _model_class = PipelineParallelModel


class TensorParallelOptimizer(ShardedOptimizer):
    """Each rank updates its slice of what is cut; replicas take the same step on all ranks.

    Norms and biases of row layers get one agreed gradient, the global gradient norm counts every
    element once, and optimizer state is saved as boxes of whole tensors, so it opens under another
    tensor size.

    References
    ----------
    Megatron-LM (arXiv 1909.08053).
    """

    _model_class = TensorParallelModel


class HybridShardedOptimizer(ShardedOptimizer):
    """Pipeline stages x data replicas x tensor ranks, under any policy on the data axis.

    Sizes, policy and order are those of HybridShardedModel; a sharded model that is passed must
    have the same.

    Parameters
    ----------
    wrapped_optimizer, config
        As of ShardedOptimizer.
    domain_parallel_size, pipeline_parallel_size, tensor_parallel_size, data_parallel_size
        As of HybridShardedModel.
    policy, order
        As of HybridShardedModel.
    **settings
        model, patience, minimum_improvement: as of ShardedOptimizer.

    Raises
    ------
    ConfigurationError, MeshError
        On all ranks, as HybridShardedModel.
    """

    _model_class = HybridShardedModel

    def __init__(
        self,
        wrapped_optimizer: Rule,
        config: ShardingConfiguration,
        *,
        domain_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        data_parallel_size: int = -1,
        policy: str = "fsdp",
        order: Sequence[str] = ORDER,
        **settings: Any,
    ) -> None:
        self._sizes = {
            "pipeline": pipeline_parallel_size,
            "tensor": tensor_parallel_size,
            "data": data_parallel_size,
            "domain": domain_parallel_size,
        }
        self._policy, self._order = policy, order
        super().__init__(wrapped_optimizer, config, **settings)

    def _shape(self) -> MeshShape:
        return MeshShape.infer(self.world_size, **self._sizes, order=self._order)

    def _check_settings(self):
        super()._check_settings()
        policy_named(self._policy)
        self._shape()

    def _shard(self, module):
        return self._model_class(
            module,
            self._configuration(),
            **parallel_sizes(self._sizes),
            policy=self._policy,
            order=self._order,
        )

    def _check_sharded(self, model):
        super()._check_sharded(model)
        if model.mesh.shape != self._shape():
            raise MeshError(
                f"the model is on a mesh of {model.mesh.shape}, the optimizer was made for "
                f"{self._shape()}; give both the same sizes and order"
            )
        policy = parts_of(model).policy
        if policy != policy_named(self._policy):
            raise ShardingError(
                f"the model is sharded as {policy.name}, the optimizer was made with "
                f"policy = {self._policy!r}; give both the same"
            )

    def get_options(self) -> dict[str, Any]:
        return {**super().get_options(), "policy": self._policy, "order": tuple(self._order)}
