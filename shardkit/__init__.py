"""shardkit: sharded training as an ordinary MPI job, on NumPy or CuPy arrays, with HDF5
checkpoints.

    import shardkit as sk
    backend = sk.MPICommunicationBackend()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-3), max_gradient_norm=1.0)
    model = sk.FSDPModel(sk.models.GPT(256, 128, width=256, layers=4, heads=4), config)

Importing it starts nothing: MPI is initialized by the backend, CuPy is imported when a CUDA device
is asked for.
"""

# ruff: noqa: E402
from .files.working_folder import leave_working_folder  # isort: skip

leave_working_folder()

from .checkpoint.pretrained.adapter import load_adapter, save_adapter
from .checkpoint.pretrained.modules import load_safetensors, save_safetensors
from .checkpoint.whole import load
from .comm import (
    CommunicationBackend,
    InMemoryCommunicationBackend,
    Mesh,
    MPICommunicationBackend,
    ReductionOperation,
    run_ranks,
)
from .data.samples import Samples
from .errors import (
    AutogradError,
    CheckpointError,
    CommunicationError,
    CommunicationTimeout,
    ConfigurationError,
    DeviceError,
    FeatureError,
    FileError,
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
from .nn.metrics import Metric
from .optim import EMA, SGD, Adam, AdamW, Lion, Momentum, Muon, ParameterGroup, schedules
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
from .parallel.settings import ShardingConfiguration
from .task import Task
from .task.table import TableTask
from .train import Callback, ElasticTraining, Training

__version__ = "0.1.0"

__all__ = [
    "Adam",
    "AdamW",
    "AutogradError",
    "Callback",
    "CheckpointError",
    "CommunicationBackend",
    "CommunicationError",
    "CommunicationTimeout",
    "ConfigurationError",
    "DDPModel",
    "DDPOptimizer",
    "DeviceError",
    "EMA",
    "ElasticTraining",
    "EvaluationResult",
    "FSDPModel",
    "FSDPOptimizer",
    "FeatureError",
    "FileError",
    "HybridShardedModel",
    "HybridShardedOptimizer",
    "InMemoryCommunicationBackend",
    "LayoutError",
    "MPICommunicationBackend",
    "Mesh",
    "MeshError",
    "Metric",
    "Lion",
    "Momentum",
    "Muon",
    "NonFiniteError",
    "OptimizationInputData",
    "OptimizationResult",
    "OutOfMemoryError",
    "ParameterGroup",
    "PipelineParallelModel",
    "PipelineParallelOptimizer",
    "ReductionOperation",
    "SGD",
    "Samples",
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
    "Task",
    "TableTask",
    "TensorParallelModel",
    "TensorParallelOptimizer",
    "Training",
    "ZeRO1Model",
    "ZeRO1Optimizer",
    "ZeRO2Model",
    "ZeRO2Optimizer",
    "ZeRO3Model",
    "load",
    "load_adapter",
    "load_safetensors",
    "measure_blocks",
    "models",
    "run_ranks",
    "save_adapter",
    "save_safetensors",
    "schedules",
    "split_batch",
]

_MOVED = {name: f"shardkit.schedules.{name}" for name in ("Constant", "Cosine", "Linear")}


def __getattr__(name: str):
    """Raise AttributeError; of a schedule that once stood here, the message has its place."""
    message = f"module 'shardkit' has no attribute {name!r}"
    if name in _MOVED:
        message += f"; the learning-rate schedule is {_MOVED[name]}"
    if name == "Linear":
        message += ", the layer is shardkit.nn.Linear"
    raise AttributeError(message)
