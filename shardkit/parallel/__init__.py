"""Models on a mesh: which policy shards what, units and their buffers, and the one loop that runs a step."""
from .balance import measure_blocks
from .plan import apply_plan, default_plan
from .policy import POLICIES, Policy
from .sharded_model import (DDPModel, FSDPModel, HybridShardedModel, PipelineParallelModel, ShardedModel, TensorParallelModel,
                            ZeRO1Model, ZeRO2Model, ZeRO3Model, split_batch)

__all__ = ["DDPModel", "FSDPModel", "HybridShardedModel", "POLICIES", "PipelineParallelModel", "Policy", "ShardedModel",
           "TensorParallelModel", "ZeRO1Model", "ZeRO2Model", "ZeRO3Model", "apply_plan", "default_plan", "measure_blocks",
           "split_batch"]
