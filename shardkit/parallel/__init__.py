"""Models on a mesh, sharded every way.

data       what each data rank keeps of a unit, and what travels between data ranks
tensor     layers that several ranks compute together
domain     samples that several ranks share, and layers on parts of them
conjugate  collectives on Tensors, each with its adjoint
pipeline   stages, and what travels between them
step       the engine: one program of a step, one loop that executes it
model      what a user holds: sharded models and optimizers
"""

from ..public import public_names

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
        "model.sharded_model": "ShardedModel domain_part",
        "model.strategies": (
            "DDPModel FSDPModel HybridShardedModel PipelineParallelModel "
            "TensorParallelModel ZeRO1Model ZeRO2Model ZeRO3Model"
        ),
        "pipeline.balance": "measure_blocks",
        "model.profile": "StepProfile profile_steps",
        "tensor.default_plans": "default_plan",
        "tensor.plan": "apply_plan",
    },
)
