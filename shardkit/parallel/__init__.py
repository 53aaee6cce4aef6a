"""Models on a mesh, sharded every way.

data       what each data rank keeps of a unit, and what travels between data ranks
tensor     layers that several ranks compute together
pipeline   stages, and what travels between them
step       the engine: one program of a step, one loop that executes it
model      what a user holds: sharded models and optimizers
"""

from typing import TYPE_CHECKING

from ..public import public_names

if TYPE_CHECKING:
    from ..layout.policy import POLICIES as POLICIES, Policy as Policy
    from .data.batches import split_batch as split_batch
    from .model.optimization import (
        EvaluationResult as EvaluationResult,
        OptimizationInputData as OptimizationInputData,
        OptimizationResult as OptimizationResult,
    )
    from .model.optimizer import ShardedOptimizer as ShardedOptimizer
    from .model.optimizers import (
        DDPOptimizer as DDPOptimizer,
        FSDPOptimizer as FSDPOptimizer,
        HybridShardedOptimizer as HybridShardedOptimizer,
        PipelineParallelOptimizer as PipelineParallelOptimizer,
        TensorParallelOptimizer as TensorParallelOptimizer,
        ZeRO1Optimizer as ZeRO1Optimizer,
        ZeRO2Optimizer as ZeRO2Optimizer,
    )
    from .model.replicas import StateDrift as StateDrift
    from .model.sharded_model import ShardedModel as ShardedModel
    from .model.strategies import (
        DDPModel as DDPModel,
        FSDPModel as FSDPModel,
        HybridShardedModel as HybridShardedModel,
        PipelineParallelModel as PipelineParallelModel,
        TensorParallelModel as TensorParallelModel,
        ZeRO1Model as ZeRO1Model,
        ZeRO2Model as ZeRO2Model,
        ZeRO3Model as ZeRO3Model,
    )
    from .pipeline.balance import measure_blocks as measure_blocks
    from .step.profile import StepProfile as StepProfile, profile_steps as profile_steps
    from .tensor.default_plans import default_plan as default_plan
    from .tensor.plan import apply_plan as apply_plan
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            ".layout.policy": "POLICIES Policy",
            "data.batches": "split_batch",
            "model.optimization": "EvaluationResult OptimizationInputData OptimizationResult",
            "model.optimizer": "ShardedOptimizer",
            "model.optimizers": (
                "DDPOptimizer FSDPOptimizer HybridShardedOptimizer PipelineParallelOptimizer "
                "TensorParallelOptimizer ZeRO1Optimizer ZeRO2Optimizer"
            ),
            "model.replicas": "StateDrift",
            "model.sharded_model": "ShardedModel",
            "model.strategies": (
                "DDPModel FSDPModel HybridShardedModel PipelineParallelModel "
                "TensorParallelModel ZeRO1Model ZeRO2Model ZeRO3Model"
            ),
            "pipeline.balance": "measure_blocks",
            "step.profile": "StepProfile profile_steps",
            "tensor.default_plans": "default_plan",
            "tensor.plan": "apply_plan",
        },
    )
