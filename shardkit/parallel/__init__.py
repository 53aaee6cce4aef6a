"""Models on a mesh: which policy shards what, units and their buffers, and the one loop that runs a
step.
"""

from ..layout.policy import POLICIES, Policy
from .data.batches import split_batch
from .model.copies import StateDrift
from .model.optimization import EvaluationResult, OptimizationInputData, OptimizationResult
from .model.optimizer import (
    DDPOptimizer,
    FSDPOptimizer,
    HybridShardedOptimizer,
    PipelineParallelOptimizer,
    ShardedOptimizer,
    TensorParallelOptimizer,
    ZeRO1Optimizer,
    ZeRO2Optimizer,
)
from .model.sharded_model import ShardedModel
from .model.strategies import (
    DDPModel,
    FSDPModel,
    HybridShardedModel,
    PipelineParallelModel,
    TensorParallelModel,
    ZeRO1Model,
    ZeRO2Model,
    ZeRO3Model,
)
from .pipeline.balance import measure_blocks
from .step.profile import StepProfile, profile_steps
from .tensor.plan import apply_plan, default_plan

__all__ = [
    "DDPModel",
    "DDPOptimizer",
    "EvaluationResult",
    "FSDPModel",
    "FSDPOptimizer",
    "HybridShardedModel",
    "HybridShardedOptimizer",
    "OptimizationInputData",
    "OptimizationResult",
    "POLICIES",
    "PipelineParallelModel",
    "PipelineParallelOptimizer",
    "Policy",
    "ShardedModel",
    "ShardedOptimizer",
    "StateDrift",
    "StepProfile",
    "TensorParallelModel",
    "TensorParallelOptimizer",
    "ZeRO1Model",
    "ZeRO1Optimizer",
    "ZeRO2Model",
    "ZeRO2Optimizer",
    "ZeRO3Model",
    "apply_plan",
    "default_plan",
    "measure_blocks",
    "profile_steps",
    "split_batch",
]
