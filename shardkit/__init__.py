"""shardkit: sharded training as an ordinary MPI job, on NumPy or CuPy arrays, with HDF5
checkpoints.

    import shardkit as sk
    backend = sk.MPICommunicationBackend()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-3), max_gradient_norm=1.0)
    model = sk.FSDPModel(sk.models.GPT(256, 128, width=256, layers=4, heads=4), config)

Importing it starts nothing and opens few files: a name is imported when it is first asked for
(public.py). MPI is initialized by the backend, CuPy is imported when a CUDA device is asked for.
"""

# ruff: noqa: E402
from .files.working_folder import leave_working_folder, look_for_other_systems

leave_working_folder()
look_for_other_systems()

from typing import TYPE_CHECKING

from .public import public_names


def _hint(name: str) -> str:
    """Return what to say of a learning-rate schedule that once stood here: its place."""
    if name not in ("Constant", "Cosine", "Linear"):
        return ""
    of_layer = ", the layer is shardkit.nn.Linear" if name == "Linear" else ""
    return f"; the learning-rate schedule is shardkit.schedules.{name}{of_layer}"


if TYPE_CHECKING:
    from .checkpoint.pretrained.adapter import (
        load_adapter as load_adapter,
        save_adapter as save_adapter,
    )
    from .checkpoint.pretrained.modules import (
        load_safetensors as load_safetensors,
        save_safetensors as save_safetensors,
    )
    from .checkpoint.whole import load as load
    from .comm import (
        CommunicationBackend as CommunicationBackend,
        InMemoryCommunicationBackend as InMemoryCommunicationBackend,
        Mesh as Mesh,
        MPICommunicationBackend as MPICommunicationBackend,
        ReductionOperation as ReductionOperation,
        run_ranks as run_ranks,
    )
    from .data.samples import Samples as Samples
    from .errors import (
        AutogradError as AutogradError,
        CheckpointError as CheckpointError,
        CommunicationError as CommunicationError,
        CommunicationTimeout as CommunicationTimeout,
        ConfigurationError as ConfigurationError,
        DeviceError as DeviceError,
        FeatureError as FeatureError,
        FileError as FileError,
        LayoutError as LayoutError,
        MeshError as MeshError,
        NonFiniteError as NonFiniteError,
        OutOfMemoryError as OutOfMemoryError,
        ScheduleError as ScheduleError,
        ShapeError as ShapeError,
        ShardingError as ShardingError,
        ShardingWarning as ShardingWarning,
        ShardkitError as ShardkitError,
        StopVoted as StopVoted,
    )
    from .nn import models as models
    from .nn.metrics import Metric as Metric
    from .optim import (
        EMA as EMA,
        SGD as SGD,
        Adam as Adam,
        AdamW as AdamW,
        Lion as Lion,
        Momentum as Momentum,
        Muon as Muon,
        ParameterGroup as ParameterGroup,
        schedules as schedules,
    )
    from .parallel import (
        DDPModel as DDPModel,
        DDPOptimizer as DDPOptimizer,
        EvaluationResult as EvaluationResult,
        FSDPModel as FSDPModel,
        FSDPOptimizer as FSDPOptimizer,
        HybridShardedModel as HybridShardedModel,
        HybridShardedOptimizer as HybridShardedOptimizer,
        OptimizationInputData as OptimizationInputData,
        OptimizationResult as OptimizationResult,
        PipelineParallelModel as PipelineParallelModel,
        PipelineParallelOptimizer as PipelineParallelOptimizer,
        ShardedModel as ShardedModel,
        ShardedOptimizer as ShardedOptimizer,
        StateDrift as StateDrift,
        TensorParallelModel as TensorParallelModel,
        TensorParallelOptimizer as TensorParallelOptimizer,
        ZeRO1Model as ZeRO1Model,
        ZeRO1Optimizer as ZeRO1Optimizer,
        ZeRO2Model as ZeRO2Model,
        ZeRO2Optimizer as ZeRO2Optimizer,
        ZeRO3Model as ZeRO3Model,
        measure_blocks as measure_blocks,
        split_batch as split_batch,
    )
    from .parallel.settings import ShardingConfiguration as ShardingConfiguration
    from .task import Task as Task
    from .task.table import TableTask as TableTask
    from .train import (
        Callback as Callback,
        ElasticTraining as ElasticTraining,
        Training as Training,
    )
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "checkpoint.pretrained.adapter": "load_adapter save_adapter",
            "checkpoint.pretrained.modules": "load_safetensors save_safetensors",
            "checkpoint.whole": "load",
            "comm": (
                "CommunicationBackend InMemoryCommunicationBackend MPICommunicationBackend Mesh "
                "ReductionOperation run_ranks"
            ),
            "data.samples": "Samples",
            "errors": (
                "AutogradError CheckpointError CommunicationError CommunicationTimeout "
                "ConfigurationError DeviceError FeatureError FileError LayoutError MeshError "
                "NonFiniteError OutOfMemoryError ScheduleError ShapeError ShardingError "
                "ShardingWarning ShardkitError StopVoted"
            ),
            "nn": "models",
            "nn.metrics": "Metric",
            "optim": "Adam AdamW EMA Lion Momentum Muon ParameterGroup SGD schedules",
            "parallel": (
                "DDPModel DDPOptimizer EvaluationResult FSDPModel FSDPOptimizer "
                "HybridShardedModel HybridShardedOptimizer OptimizationInputData "
                "OptimizationResult PipelineParallelModel PipelineParallelOptimizer "
                "ShardedModel ShardedOptimizer StateDrift TensorParallelModel "
                "TensorParallelOptimizer ZeRO1Model ZeRO1Optimizer ZeRO2Model ZeRO2Optimizer "
                "ZeRO3Model measure_blocks split_batch"
            ),
            "parallel.settings": "ShardingConfiguration",
            "task": "Task",
            "task.table": "TableTask",
            "train": "Callback ElasticTraining Training",
        },
        _hint,
    )

__version__ = "0.1.0"
