"""Models on a mesh, sharded every way.

data       what each data rank keeps of a unit, and what travels between data ranks
tensor     layers that several ranks compute together
pipeline   stages, and what travels between them
step       the engine: one program of a step, one loop that executes it
model      what a user holds: sharded models and optimizers
"""

from ..layout.policy import POLICIES, Policy
from .data.batches import split_batch
from .model.optimization import EvaluationResult, OptimizationInputData, OptimizationResult
from .model.optimizer import ShardedOptimizer
from .model.optimizers import (
    DDPOptimizer,
    FSDPOptimizer,
    HybridShardedOptimizer,
    PipelineParallelOptimizer,
    TensorParallelOptimizer,
    ZeRO1Optimizer,
    ZeRO2Optimizer,
)
from .model.replicas import StateDrift
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
from .tensor.default_plans import default_plan
from .tensor.plan import apply_plan

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
