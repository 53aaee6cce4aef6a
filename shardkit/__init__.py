"""shardkit: sharded training as an ordinary MPI job, on NumPy or CuPy arrays, with HDF5
checkpoints.

    import shardkit as sk
    backend = sk.MPICommunicationBackend()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-3), max_gradient_norm=1.0)
    model = sk.FSDPModel(sk.models.GPT(256, 128, width=256, layers=4, heads=4), config)

Importing it starts nothing: MPI is initialized by the backend, CuPy is imported when a CUDA device
is asked for.
"""

from .comm import (
    CommunicationBackend,
    InMemoryCommunicationBackend,
    Mesh,
    MPICommunicationBackend,
    ReductionOperation,
    run_ranks,
)
from .config import ShardingConfiguration
from .errors import (
    AutogradError,
    CheckpointError,
    CommunicationError,
    CommunicationTimeout,
    ConfigurationError,
    DeviceError,
    FeatureError,
    LayoutError,
    MeshError,
    NonFiniteError,
    OutOfMemoryError,
    ScheduleError,
    ShapeError,
    ShardingError,
    ShardingWarning,
    ShardkitError,
    StopVoted,
)
from .nn import models
from .optim import SGD, Adam, AdamW, Constant, Cosine, Linear, Momentum
from .parallel import (
    DDPModel,
    DDPOptimizer,
    EvaluationResult,
    FSDPModel,
    FSDPOptimizer,
    HybridShardedModel,
    HybridShardedOptimizer,
    OptimizationInputData,
    OptimizationResult,
    PipelineParallelModel,
    PipelineParallelOptimizer,
    ShardedModel,
    ShardedOptimizer,
    StateDrift,
    TensorParallelModel,
    TensorParallelOptimizer,
    ZeRO1Model,
    ZeRO1Optimizer,
    ZeRO2Model,
    ZeRO2Optimizer,
    ZeRO3Model,
    measure_blocks,
    split_batch,
)
from .train import ElasticTraining

__version__ = "0.1.0"

__all__ = [
    "Adam",
    "AdamW",
    "AutogradError",
    "CheckpointError",
    "CommunicationBackend",
    "CommunicationError",
    "CommunicationTimeout",
    "ConfigurationError",
    "Constant",
    "Cosine",
    "DDPModel",
    "DDPOptimizer",
    "DeviceError",
    "ElasticTraining",
    "EvaluationResult",
    "FSDPModel",
    "FSDPOptimizer",
    "FeatureError",
    "HybridShardedModel",
    "HybridShardedOptimizer",
    "InMemoryCommunicationBackend",
    "LayoutError",
    "Linear",
    "MPICommunicationBackend",
    "Mesh",
    "MeshError",
    "Momentum",
    "NonFiniteError",
    "OptimizationInputData",
    "OptimizationResult",
    "OutOfMemoryError",
    "PipelineParallelModel",
    "PipelineParallelOptimizer",
    "ReductionOperation",
    "SGD",
    "ScheduleError",
    "ShapeError",
    "ShardedModel",
    "ShardedOptimizer",
    "ShardingConfiguration",
    "ShardingError",
    "ShardingWarning",
    "ShardkitError",
    "StateDrift",
    "StopVoted",
    "TensorParallelModel",
    "TensorParallelOptimizer",
    "ZeRO1Model",
    "ZeRO1Optimizer",
    "ZeRO2Model",
    "ZeRO2Optimizer",
    "ZeRO3Model",
    "measure_blocks",
    "models",
    "run_ranks",
    "split_batch",
]
