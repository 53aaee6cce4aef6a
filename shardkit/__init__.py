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

from .habits import place_of
from .public import public_names


def _rooms_of_names() -> dict[str, list[str]]:
    from . import nn

    return {"nn": nn.__all__, "nn.ops": nn.ops.__all__}


def _hint(name: str) -> str:
    """Return what to say of a name that is looked for here and stands elsewhere: its place."""
    if name not in ("Constant", "Cosine", "Linear"):
        return place_of("shardkit", _rooms_of_names, name)
    of_layer = ", the layer is shardkit.nn.Linear" if name == "Linear" else ""
    return f"; the learning-rate schedule is shardkit.schedules.{name}{of_layer}"


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
        "coupling.opening": "coupled",
        "data.draw": "Draw",
        "data.samples": "Samples",
        "ensemble.ensemble": "Ensemble",
        "layout.part": "Rows SamplePart",
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
            "ZeRO3Model domain_part measure_blocks split_batch"
        ),
        "parallel.settings": "ShardingConfiguration",
        "task": "Task transforms",
        "task.given": "IndexedSamples",
        "task.table": "TableTask",
        "train": "Callback ElasticTraining Training",
    },
    _hint,
)

__version__ = "0.1.0"
