"""parallel: the parts of a sharded model, and questions to a whole one."""

from operator import attrgetter
from typing import Any

from . import open_door

ROOM = "shardkit.parallel"
NAMES = {
    "": "apply_plan default_plan profile_steps",
    "data.gradients": "NORM_BLOCK",
    "data.keepers": "Freshness",
    "data.overlap": "Overlap",
    "data.partition": "plan_units",
    "domain.attention": "ring_attention",
    "domain.axis": "DomainAxis",
    "domain.graphs": "CutGraph gather_halo",
    "domain.plan": "LAYERS REASONS cut_layers",
    "domain.rows": "exchange_rows let_go rows_of",
    "domain.samples": "SampleParts",
    "domain.sequences": (
        "CutMultiheadAttention CutSelfAttention CutSpectralConv CutTokenEmbedding"
    ),
    "domain.spans": "check_table even_spans paired_spans positions_of",
    "domain.spectra": "cut_spectral_convolution",
    "domain.transposition": "exchange_cut",
    "domain.ways": "attention_by_heads balanced_ring cut_attention takes_heads",
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
    "optimizing": "model.optimizing",
    "profile": "model.profile",
    "recurrent": "domain.recurrent",
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


QUESTIONS = {  # {question to a model: where its parts have the answer}
    "units_of": "engine.units",  # blocks of the model on this rank, each with its buffers
    "own_units_of": "engine.units.own",  # those that are not copies of another pipeline rank's
    "trained_units_of": "engine.units.trained",  # that have parameters that are not frozen
    "unit_places_of": "engine.units.at",  # {(stage, number of the unit): unit}
    "stages_of": "engine.plan.stages",  # which blocks this rank computes, and which are frozen
    "program_of": "engine.runtime.program.whole",  # actions of the next step on this pipeline rank
    "runtime_of": "engine.runtime",  # what carries them out
    "gathering_of": "engine.runtime.flow.plain_work.gathering",  # what makes parameters whole
    "overlap_of": "engine.overlap",  # whether messages travel beside the step, or the trial of it
    "compilation_of": "engine.compilation",  # the recorded step, or why there is none
    "listening_of": "engine.listening",  # who is told what its steps do
    "device_of": "engine.device",  # with the accounts of bytes in use
    "pools_of": "engine.parts.pools",  # of activations, whole parameters and gradients
    "own_buffers_of": "engine.state.buffers.own",  # {name: buffer} that this rank computes
    "training_state_of": "state",  # what a checkpoint stores
    "skips_of": "state.skips",  # which steps were skipped: the last, in a row, in total
    "loss_scale_of": "engine.state.loss_scale",  # in half floats
    "gradient_norm_of": "engine.gradient_norm",  # of the last step; None if nothing clips
    "has_pending_gradients": "engine.has_pending_gradients",  # which wait for their reduction
}


def _question(path: str) -> Any:
    def answer(model: Any) -> Any:
        return attrgetter(path)(parts_of(model))

    return answer


globals().update({name: _question(path) for name, path in QUESTIONS.items()})


def is_in_a_window(unit: Any) -> bool:
    """Return True if its parameters lie once in memory that ranks share."""
    from ..parallel.data.keepers import Window

    return isinstance(unit.lent, Window)


def loss_parts_of(model: Any) -> dict[str, float]:
    """Return the mean of each part of the last step's loss. Collective over the mesh."""
    return parts_of(model).engine.evaluation.loss_parts()


def traced_parts_of(model: Any) -> Any:
    """Return the executor of steps, and who is told what it does."""
    executor = parts_of(model).engine.runtime.executor.executor
    return executor, executor.listening.recorders


def watching(stopwatch: Any, runtime: Any, _progress: Any) -> Any:
    """Inside, the stopwatch hears actions of this runtime, verbs, kernels and products."""
    from ..parallel.step.stopwatch import watching as watching_engine

    return watching_engine(stopwatch, runtime.executor.executor.listening)


def voting(model: Any, ballot: Any) -> Any:
    """Return a context manager, inside of which the ranks vote before each step whether to stop."""
    return parts_of(model).engine.voting(ballot)


def synchronize_replicas(model: Any) -> Any:
    """Make copies of one parameter the same again; return how far they had drifted. Collective."""
    from ..parallel.model.replicas import synchronize_replicas as synchronize

    return synchronize(parts_of(model).engine)


open_door(__name__)
