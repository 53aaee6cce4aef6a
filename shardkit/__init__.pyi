# Written by packaging/stubs.py, from the table in __init__.py.
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
    MPICommunicationBackend as MPICommunicationBackend,
    Mesh as Mesh,
    ReductionOperation as ReductionOperation,
    run_ranks as run_ranks,
)
from .coupling.opening import coupled as coupled
from .data.draw import Draw as Draw
from .data.samples import Samples as Samples
from .ensemble.ensemble import Ensemble as Ensemble
from .layout.part import (
    Rows as Rows,
    SamplePart as SamplePart,
)
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
    Adam as Adam,
    AdamW as AdamW,
    EMA as EMA,
    Lion as Lion,
    Momentum as Momentum,
    Muon as Muon,
    ParameterGroup as ParameterGroup,
    SGD as SGD,
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
    domain_part as domain_part,
    measure_blocks as measure_blocks,
    split_batch as split_batch,
)
from .parallel.settings import ShardingConfiguration as ShardingConfiguration
from .task import (
    Task as Task,
    transforms as transforms,
)
from .task.given import IndexedSamples as IndexedSamples
from .task.table import TableTask as TableTask
from .train import (
    Callback as Callback,
    ElasticTraining as ElasticTraining,
    Training as Training,
)

__version__: str
