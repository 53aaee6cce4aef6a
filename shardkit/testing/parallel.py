"""parallel: the parts of a sharded model, and questions to a whole one."""

from typing import Any

from . import open_door

ROOM = "shardkit.parallel"
NAMES = {
    "": "apply_plan default_plan profile_steps",
    "data.gradients": "NORM_BLOCK",
    "data.keepers": "Freshness",
    "data.overlap": "Overlap",
    "data.partition": "plan_units",
    "domain.attention": "attention_by_heads cut_attention ring_attention takes_heads",
    "domain.graphs": "CutGraph gather_halo",
    "domain.plan": "LAYERS REASONS cut_layers",
    "domain.rows": "rows_of",
    "domain.samples": "SampleParts",
    "domain.sequences": (
        "CutMultiheadAttention CutSelfAttention CutSpectralConv CutTokenEmbedding"
    ),
    "domain.spans": "check_table even_spans positions_of",
    "domain.spectra": "cut_spectral_convolution cut_transform",
    "domain.transposition": "exchange_cut",
    "model.optimizing": "evaluate_set",
    "model.patience": "Patience",
    "pipeline.balance": "multiplied_elements stage_ranges unit_costs",
    "pipeline.neighbors": "Neighbors redistribute restore",
    "step.calls": "AtCalls",
    "step.gathering": "ByProgram Gathering",
    "step.numerics": "LARGEST_SCALE LossScale Numerics SMALLEST_SCALE",
    "step.stopwatch": "MESSAGE_WAIT Product Record Stopwatch Waiting",
    "step.recorder": "COMMUNICATION Recorder",
    "tensor.claims": "global_piece is_counted sum_partial",
    "tensor.layers": "RowParallelLinear TensorAxis",
    "tensor.plan": "close_groups",
    "tensor.styles": "LINEAR STYLES style",
    "tensor.vocabulary": "VocabularyParallelCrossEntropy whole_outputs",
}
MODULES = {
    "conjugate": "conjugate",
    "cuda_work": "step.cuda_work",
    "optimizing": "model.optimizing",
    "profile": "model.profile",
    "saves": "model.saves",
    "shortage": "step.shortage",
    "stopwatch": "step.stopwatch",
    "vocabulary": "tensor.vocabulary",
}


# ---- questions to a sharded model ----------------------------------------------------------------


def parts_of(model: Any) -> Any:
    """Return its parts: engine, checkpoints, history, policy and others."""
    from ..parallel.model.sharded_model import parts_of

    return parts_of(model)


def units_of(model: Any) -> Any:
    """Return the units of this rank: blocks of the model, each with its buffers."""
    return parts_of(model).engine.units


def is_in_a_window(unit: Any) -> bool:
    """Return True if its parameters lie once in memory that ranks share."""
    from ..parallel.data.keepers import Window

    return isinstance(unit.lent, Window)


def own_units_of(model: Any) -> Any:
    """Return those that are not copies of another pipeline rank's."""
    return parts_of(model).engine.units.own


def trained_units_of(model: Any) -> Any:
    """Return those that have parameters that are not frozen."""
    return parts_of(model).engine.units.trained


def unit_places_of(model: Any) -> Any:
    """Return {(stage, number of the unit): unit} of this rank."""
    return parts_of(model).engine.units.at


def stages_of(model: Any) -> Any:
    """Return which blocks this rank computes, and which of them are frozen."""
    return parts_of(model).engine.plan.stages


def program_of(model: Any) -> Any:
    """Return the actions of the next step on this pipeline rank."""
    return parts_of(model).engine.program


def runtime_of(model: Any) -> Any:
    """Return what carries them out."""
    return parts_of(model).engine.runtime


def gathering_of(model: Any) -> Any:
    """Return what makes its parameters whole before they are read."""
    return runtime_of(model).flow.plain_work.gathering


def overlap_of(model: Any) -> Any:
    """Return whether messages travel while the step computes, or the trial of it."""
    return parts_of(model).engine.overlap


def compilation_of(model: Any) -> Any:
    """Return the recorded step, or the reason why there is none."""
    return parts_of(model).engine.compilation


def traced_parts_of(model: Any) -> Any:
    """Return the executor of steps, and who is told what it does."""
    executor = runtime_of(model).executor.executor
    return executor, executor.listening.recorders


def listening_of(model: Any) -> Any:
    """Return who is told what its steps do."""
    return parts_of(model).engine.listening


def watching(stopwatch: Any, runtime: Any, _progress: Any) -> Any:
    """Inside, the stopwatch hears actions of this runtime, verbs, kernels and products."""
    from ..parallel.step.stopwatch import watching as watching_engine

    return watching_engine(stopwatch, runtime.executor.executor.listening)


def device_of(model: Any) -> Any:
    """Return its device, with the accounts of bytes in use."""
    return parts_of(model).engine.device


def pools_of(model: Any) -> Any:
    """Return the memory for activations, and the pools of whole parameters and gradients."""
    return parts_of(model).engine.parts.pools


def own_buffers_of(model: Any) -> Any:
    """Return {name: buffer} of what this rank computes, such as running means."""
    return parts_of(model).engine.state.buffers.own


def training_state_of(model: Any) -> Any:
    """Return what a checkpoint stores: boxes of this rank, the rule, the steps and the samples."""
    return parts_of(model).state


def skips_of(model: Any) -> Any:
    """Return which steps were skipped: the last, in a row, in total."""
    return parts_of(model).state.skips


def loss_scale_of(model: Any) -> Any:
    """Return the factor of the loss in half floats."""
    return parts_of(model).engine.state.loss_scale


def gradient_norm_of(model: Any) -> Any:
    """Return the norm of the last step's gradient before clipping; None if nothing clips."""
    return parts_of(model).engine.gradient_norm


def has_pending_gradients(model: Any) -> Any:
    """Return True if local gradients wait for their reduction."""
    return parts_of(model).engine.has_pending_gradients


def voting(model: Any, ballot: Any) -> Any:
    """Return a context manager, inside of which the ranks vote before each step whether to stop."""
    return parts_of(model).engine.voting(ballot)


def synchronize_replicas(model: Any) -> Any:
    """Make copies of one parameter the same again; return how far they had drifted. Collective."""
    from ..parallel.model.replicas import synchronize_replicas as synchronize

    return synchronize(parts_of(model).engine)


open_door(__name__)
