# Written by packaging/stubs.py, from the table in __init__.py.
from ..layout.policy import (
    POLICIES as POLICIES,
    Policy as Policy,
)
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
from .model.sharded_model import (
    ShardedModel as ShardedModel,
    domain_part as domain_part,
)
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
from .model.profile import (
    StepProfile as StepProfile,
    profile_steps as profile_steps,
)
from .tensor.default_plans import default_plan as default_plan
from .tensor.plan import apply_plan as apply_plan
