"""Models on a mesh: which policy shards what, units and their buffers, and the one loop that runs a step."""
from .policy import POLICIES, Policy
from .sharded_model import (DDPModel, FSDPModel, PipelineDataModel, PipelineParallelModel, ShardedModel, ZeRO1Model,
                            ZeRO2Model, ZeRO3Model, split_batch)

__all__ = ["DDPModel", "FSDPModel", "POLICIES", "PipelineDataModel", "PipelineParallelModel", "Policy", "ShardedModel",
           "ZeRO1Model", "ZeRO2Model", "ZeRO3Model", "split_batch"]
