"""The settings of a run: the sections of its TOML file, and what a continued run takes.

Sections stand beside the code that reads them: `model` in nn, `optimizer` in optim, `parallel` in
parallel, `data` in data.py, and those of the training loop here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..layout.policy import POLICIES
from ..nn.settings import Model
from ..optim.settings import Optimizer
from ..parallel.settings import ParallelSettings
from ..settings import Sections, fixed, setting
from .data import Text


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where a run lives, how long it lasts, what it reports."""

    folder: str = setting("runs/gpt", "folder of checkpoints, metrics and the token cache")
    steps: int = setting(
        300, "optimization steps in all, counted from the start of the run", "steps", minimum=1
    )
    seed: int = fixed(
        "the order of its text and its dropout follow from it",
        0,
        "seed of the initial weights, the order of the data and dropout",
    )
    report_every: int = setting(
        10, "a line of progress, and a record in metrics.jsonl", "steps", minimum=1
    )
    validate_every: int = setting(50, "measure the loss on held-out text", "steps", minimum=1)
    validation_batches: int = setting(8, "global batches in a validation", minimum=1)
    checkpoint_every: int = setting(
        100, "write a checkpoint; one is always written at the end", "steps", minimum=1
    )
    keep_checkpoints: int = setting(3, "older ones are deleted", "checkpoints", minimum=1)
    keep_every: int | None = setting(
        None,
        "never delete checkpoints of steps that this divides; none: delete old ones",
        "steps",
        minimum=1,
    )
    asynchronous_checkpoints: bool = setting(
        True, "train while a checkpoint is written; takes memory for a copy of the state"
    )
    timeout: float = setting(
        600.0,
        "longest time for one call between ranks; then the job ends with a report",
        "seconds",
        above=0.0,
    )
    threads: int = setting(
        1, "BLAS threads of each rank; the trained bits depend on it", "threads", minimum=1
    )
    patience: int | None = setting(
        None,
        "validations without a lower loss after which the run ends early; none: it does not",
        "validations",
        minimum=1,
    )
    stop_after_bad_steps: int = setting(
        10,
        "end the run after so many steps in a row whose loss or gradients are NaN or infinite; "
        "each is skipped",
        "steps",
        minimum=1,
    )
    time_limit_seconds: float | None = setting(
        None,
        "save and stop before this; none: before the batch system ends the job",
        "seconds",
        above=0.0,
    )
    elastic: bool = setting(
        False,
        "continue when ranks die: immediately under Open MPI's mpiexec --with-ft ulfm, elsewhere "
        "the job script starts again",
    )
    elastic_every: int = setting(
        1,
        "steps between two copies of each rank's part of the model to its neighbor",
        "steps",
        minimum=1,
    )
    stop_margin_seconds: float = setting(
        15.0,
        "time to spare then, beside twice the time of a save and the longest step",
        "seconds",
        minimum=0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The global batch of a step; the number of ranks is not part of it."""

    sequences: int = setting(16, "sequences in the global batch of a step", "sequences", minimum=1)
    micro_batch: int = setting(
        4,
        "sequences in a micro-batch; with the seed it fixes the trained bits on any mesh that "
        "leaves each data rank a power of two of micro-batches, or one rank all",
        "sequences",
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class Parallel(ParallelSettings):
    """How the ranks share the work.

    None of it changes the trained bits but

    device, compute_dtype, matmul_precision, blas   the dtype of numbers, and the library that
                                                    computes them
    initial_loss_scale, loss_scale_interval         under float16: which gradients are too small or
                                                    too large for it
    deterministic, gradient_compression             the order of sums of gradients, and the dtype
                                                    in which gradients travel
    sequence_parallel                               with several tensor ranks: tokens are summed
                                                    slice by slice
    minimum_parameter_group_size                    where tied weights meet in a unit, their
                                                    gradients are summed in another order; and the
                                                    last digit of the norm that clips
    """

    policy: str = setting("fsdp", "what the data axis shards", among=POLICIES)
    compile: bool = setting(
        False, "on a GPU, replay steps as CUDA graphs: less time in Python, the same bits"
    )


@dataclass(frozen=True, kw_only=True)
class MeshAxes:
    """How the ranks are arranged; the others are data replicas."""

    pipeline: int = setting(
        1, "stages that the blocks of the model are cut into", "ranks", minimum=1
    )
    tensor: int = setting(1, "ranks that share each layer", "ranks", minimum=1)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The text that is written at the end."""

    prompt: str = setting("def ", "text to continue; \\n is a line end")
    tokens: int = setting(200, "bytes to generate at the end of training", "bytes", minimum=0)
    temperature: float = setting(0.8, "0 takes the most probable byte", minimum=0.0)


@dataclass(frozen=True)
class RunConfiguration(Sections):
    """Everything that `shardkit train` needs; printable, comparable, and stored with the run."""

    run: Run = Run()
    model: Model = Model()
    data: Text = Text()
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    mesh: MeshAxes = MeshAxes()
    parallel: Parallel = Parallel()
    sample: Sample = Sample()


# ---- runs that continue --------------------------------------------------------------------------


def resumed(stored: RunConfiguration, given: dict[str, Any]) -> RunConfiguration:
    """Return the settings of a continued run: those it started with, changed by those given now.

    Errors: ConfigurationError on a value that the run cannot take, with both values and the reason.
    """
    wanted = stored.replace(given)
    for name, field in RunConfiguration.keys().items():
        ours = _absolute(field, stored.value(name))
        theirs = _absolute(field, wanted.value(name))
        if "fixed" in field.metadata and ours != theirs:
            raise ConfigurationError(
                f"{name} = {_shown(wanted.value(name))}, but this run goes on with "
                f"{_shown(stored.value(name))}: {field.metadata['fixed']}. Leave it out, or start "
                f"another run with its weights: --model.initial={wanted.run.folder} "
                "--run.folder=ANOTHER"
            )
    if wanted.optimizer.decay_steps is None:  # run.steps of the first start, which is stored
        return wanted.replace({"optimizer.decay_steps": stored.optimizer.decay_steps})
    return wanted


def _shown(value) -> str:
    """Return a value as a settings file has it: a list, not a tuple."""
    return repr(list(value) if isinstance(value, tuple) else value)


def settled(settings: RunConfiguration) -> RunConfiguration:
    """Return the settings of a first start with absolute paths, and run.steps as decay_steps.

    A longer run afterwards changes neither.
    """
    paths = {
        name: _absolute(field, settings.value(name))
        for name, field in RunConfiguration.keys().items()
        if "is_path" in field.metadata
    }
    steps = settings.optimizer.decay_steps or settings.run.steps
    return settings.replace({"optimizer.decay_steps": steps, **paths})


def _absolute(field, value):
    """Return the value; paths from the root."""
    if not value or "is_path" not in field.metadata:
        return value
    if isinstance(value, str):
        return str(Path(value).resolve())
    return tuple(str(Path(path).resolve()) for path in value)
