"""The settings of a run: the sections of its TOML file, and what a continued run takes.

    run, batch, mesh, parallel (here), optimizer (optim)  + the sections of a task
        --> configuration_of(task), a class --> settings of one run

Sections stand beside the code that reads them, and those of the training loop here.
"""

import re
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..array.blas import LIBRARIES
from ..data.position import Position
from ..errors import ConfigurationError
from ..layout.axes import CHOSEN
from ..layout.policy import POLICIES
from ..optim.settings import Optimizer
from ..parallel.settings import ParallelSettings
from ..settings import Sections, fixed, setting, value_text
from ..task.load import DEFAULT_TASK, absolute_task
from ..task.task import Task
from .tracking import TRACKERS

AUTOMATIC = "auto"  # of parallel.blas; see choice.py
_OTHER_BITS = "the bits are not those of a run that kept to one"
_OTHER_VALIDATION = "a validation of run.validation_batches has other samples"


def is_range(text: str) -> bool:
    """Return whether the text is a number of a step, or two in order: 20..22."""
    found = re.fullmatch(r"([1-9]\d*)(?:\.\.([1-9]\d*))?", text)
    return found is not None and int(found[1]) <= int(found[2] or found[1])


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where a run lives, how long it lasts, what it reports."""

    task: str = fixed(
        "its checkpoints are of that task",
        DEFAULT_TASK,
        "what is trained: a built-in task, or file.py:Name of one's own; --task is short for it",
        made_absolute=absolute_task,
    )
    folder: str = setting(
        "runs/run",
        "folder of checkpoints, metrics and the index of the data",
        is_common=True,
        is_place=True,
        holds=bool,
        wanted="a path, such as runs/a",
    )
    steps: int = setting(
        300,
        "optimization steps in all, counted from the start of the run",
        "steps",
        minimum=1,
        is_common=True,
        at_resume="the schedule of the learning rate stays that of optimizer.decay_steps",
    )
    epochs: float | None = setting(
        None,
        "passes over the training samples, in place of run.steps: as many steps as they take",
        "epochs",
        above=0.0,
    )
    seed: int = fixed(
        "the order of its data and its dropout follow from it",
        0,
        "seed of the initial weights, the order of the data and dropout",
    )
    report_every: int = setting(
        10, "a line of progress, and a record in metrics.jsonl", "steps", minimum=1
    )
    validate_every: int = setting(50, "measure the loss on held-out samples", "steps", minimum=1)
    validation_batches: int | None = setting(
        8,
        "most global batches in a validation; none: all held-out samples",
        minimum=1,
        at_resume=_OTHER_VALIDATION,
    )
    checkpoint_every: int = setting(
        100, "write a checkpoint; one is always written at the end", "steps", minimum=1
    )
    keep_checkpoints: int = setting(
        3,
        "how many of the newest to keep, beside that of the best validation",
        "checkpoints",
        minimum=1,
    )
    keep_every: int | None = setting(
        None,
        "also keep every checkpoint whose step is a multiple of this; none: no others",
        "steps",
        minimum=1,
    )
    asynchronous_checkpoints: bool = setting(
        True, "train while a checkpoint is written; takes memory for a copy of the state"
    )
    files_per_node: int | None = setting(
        None,
        "files of a checkpoint that the ranks of a node write together; none: one for each rank",
        "files",
        minimum=1,
    )
    fallback_folder: str | None = setting(
        None,
        "folder for checkpoints that cannot be written into run.folder, on a full disk say; "
        "--resume finds them there too; none: they are only tried again",
        is_path=True,
    )
    last_save_seconds: float = setting(
        600.0,
        "how long the last checkpoint of a run is tried again; then the run fails",
        "seconds",
        minimum=0.0,
    )
    timeout: float = setting(
        600.0,
        "longest time for one call between ranks; then the job ends with a report",
        "seconds",
        above=0.0,
    )
    threads: int = setting(
        1,
        "BLAS threads of each rank; the trained bits depend on it",
        "threads",
        minimum=1,
        at_resume=_OTHER_BITS,
    )
    patience: int | None = setting(
        None,
        "validations without a lower loss after which the run ends early; none: it does not",
        "validations",
        minimum=1,
    )
    minimum_improvement: float = setting(
        0.0,
        "for run.patience: a loss counts as lower if it is lower by more than this",
        minimum=0.0,
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
        "limit of the run, before which it saves and stops; none: that of the batch system",
        "seconds",
        above=0.0,
    )
    track: str | None = setting(
        None, "also write the curve with this library; none: metrics.jsonl alone", among=TRACKERS
    )
    trace_steps: str | None = setting(
        None,
        "record what every rank does in these steps, 20..22, into a trace file in the run folder; "
        "none: only the timeline of one step",
        "steps",
        holds=is_range,
        wanted="None, a step, or the first and the last step as 20..22",
    )
    elastic: bool = setting(
        False,
        "continue when ranks die: immediately under Open MPI's mpiexec --with-ft ulfm, elsewhere "
        "the job script starts again",
        unplanned="keeps a copy of a neighbor's part of the model",
    )
    elastic_every: int = setting(
        1,
        "steps between two copies of each rank's part of the model to its neighbor",
        "steps",
        minimum=1,
    )
    stop_margin_seconds: float = setting(
        15.0,
        "stop this long before the limit, plus twice the longest save and the longest step",
        "seconds",
        minimum=0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The global batch of a step; the number of ranks is not part of it."""

    sequences: int = setting(
        16,
        "samples (sequences of a text, rows) in the global batch of a step",
        minimum=1,
        is_common=True,
        at_resume="the data go on with the next sample of the epoch, none is left out or read "
        f"twice; {_OTHER_VALIDATION}",
    )
    micro_batch: int = setting(
        4,
        "samples in a micro-batch; with the seed it fixes the trained bits on any mesh that "
        "leaves each data rank a power of two of micro-batches, or one rank all",
        minimum=1,
        at_resume=_OTHER_BITS,
    )


@dataclass(frozen=True, kw_only=True)
class Parallel(ParallelSettings):
    """How the ranks share the work.

    None of it changes the trained bits but

    device, compute_dtype, residual_dtype,          the dtype of numbers, and the library that
    matmul_precision, blas                          computes them
    convolutions                                    which products make square taps
    initial_loss_scale, loss_scale_interval         under float16: which gradients are too small or
                                                    too large for it
    deterministic, gradient_compression             the order of sums of gradients, and the dtype
                                                    in which gradients travel
    domain_grid, domain_slabs                       sums over samples that ranks share
    sequence_parallel                               with several tensor ranks: tokens are summed
                                                    slice by slice
    minimum_parameter_group_size                    where tied weights meet in a unit, their
                                                    gradients are summed in another order; and the
                                                    last digit of the norm that clips
    """

    policy: str = setting("fsdp", "what the data axis shards", among=POLICIES, is_common=True)
    blas: str = setting(
        "numpy",
        "library that multiplies matrices on the CPU: mkl (Intel's CPUs) and onednn if installed; "
        "auto: the fastest for this model, measured when the run starts, and kept",
        among=(*LIBRARIES, AUTOMATIC),
        unplanned="the hardware's products say how fast matrices are multiplied",
    )
    compile: bool = setting(
        False,
        "on a GPU, replay steps as CUDA graphs: less time in Python, the same bits",
        unplanned="replays steps as CUDA graphs on a GPU",
    )


@dataclass(frozen=True, kw_only=True)
class MeshAxes:
    """How the ranks are arranged; the others are data replicas."""

    pipeline: int = setting(
        1, "stages that the blocks of the model are cut into", "ranks", minimum=1, is_common=True
    )
    domain: int = setting(1, "ranks that share each sample", "ranks", minimum=1)
    tensor: int = setting(1, "ranks that share each layer", "ranks", minimum=1, is_common=True)

    @property
    def sizes(self) -> dict[str, Any]:
        """{axis: its ranks}, for a mesh."""
        return {axis: getattr(self, axis) for axis in CHOSEN}


@dataclass(frozen=True)
class RunConfiguration(Sections):
    """The sections that all tasks have in common; see configuration_of for those of one task.

    Printable, comparable, and stored with the run.
    """

    task_class: ClassVar[type[Task]] = Task

    run: Run = Run()
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    mesh: MeshAxes = MeshAxes()
    parallel: Parallel = Parallel()

    def make_task(self) -> Task:
        """Return the task of these settings."""
        return self.task_class(self)


@cache
def configuration_of(task: type[Task]) -> type[RunConfiguration]:
    """Return the class of everything that `shardkit train` needs to train this task.

    Errors: ConfigurationError if a section of the task has the name of a common one, or one of its
    defaults is no setting of those.
    """
    twice = {section.name for section in fields(RunConfiguration)} & task.sections.keys()
    if twice:
        raise ConfigurationError(
            f"{task.__name__} has a section {min(twice)!r}, as all runs have; give it another name"
        )
    sections = {
        **_common_sections({"run.folder": f"runs/{task.__name__.lower()}", **task.defaults}),
        **task.sections,
    }
    return make_dataclass(
        "RunConfiguration",
        [(name, cls, field(default_factory=cls)) for name, cls in sections.items()],
        bases=(RunConfiguration,),
        frozen=True,
        namespace={"task_class": task},
    )


def _common_sections(defaults: dict[str, Any]) -> dict[str, type]:
    """Return the classes of the common sections, with these defaults in place of their own."""
    changed = RunConfiguration().replace(defaults)
    return {
        section.name: make_dataclass(
            section.type.__name__,
            [
                (key.name, key.type, field(default=changed.value(name), metadata=key.metadata))
                for key in fields(section.type)
                if (name := f"{section.name}.{key.name}") in defaults
            ],
            bases=(section.type,),
            frozen=True,
            kw_only=True,
        )
        for section in fields(RunConfiguration)
    }


# ---- runs that continue --------------------------------------------------------------------------


def resumed(stored: RunConfiguration, given: dict[str, Any]) -> RunConfiguration:
    """Return the settings of a continued run: those it started with, changed by those given now.

    Errors: ConfigurationError on a value that the run cannot take, with both values and the reason.
    """
    _check_length(given)
    if "run.steps" in given:
        given = {"run.epochs": None, **given}
    if given.get("parallel.blas") == AUTOMATIC:  # the one that was chosen at the first start
        given = {**given, "parallel.blas": stored.parallel.blas}
    wanted = stored.replace(given)
    for name, key in stored.keys().items():
        ours = _absolute(key, stored.value(name))
        theirs = _absolute(key, wanted.value(name))
        if "fixed" in key.metadata and ours != theirs:
            raise ConfigurationError(
                f"{name} = {value_text(wanted.value(name))}, but this run goes on with "
                f"{value_text(stored.value(name))}: {key.metadata['fixed']}. Leave it out, or "
                f"start another run{stored.task_class.begin_with(wanted.run.folder)} "
                "--run.folder=ANOTHER"
            )
    if wanted.optimizer.decay_steps is None:  # run.steps of the first start, which is stored
        return wanted.replace({"optimizer.decay_steps": stored.optimizer.decay_steps})
    return wanted


def first_settings(
    configuration: type[RunConfiguration], given: dict[str, Any]
) -> RunConfiguration:
    """Return the defaults with these settings, and with those that the task derives from them.

    Errors: ConfigurationError, and those of Task.implied.
    """
    _check_length(given)
    implied = configuration.task_class.implied(configuration().replace(given), given)
    return configuration().replace({**implied, **given})


def _check_length(given: dict[str, Any]) -> None:
    """Raise ConfigurationError if the length of a run is given twice."""
    if "run.steps" in given and given.get("run.epochs") is not None:
        raise ConfigurationError(
            f"run.steps = {given['run.steps']} and run.epochs = {given['run.epochs']} both say how "
            "long the run is; give one of them"
        )


def settled(settings: RunConfiguration) -> RunConfiguration:
    """Return the settings of a first start with absolute paths, and run.steps as decay_steps.

    A longer run afterwards changes neither. The steps of epochs: see with_steps().
    """
    paths = {
        name: _absolute(key, settings.value(name))
        for name, key in settings.keys().items()
        if {"is_path", "made_absolute"} & key.metadata.keys()
    }
    settings = settings.replace(paths)
    return settings if settings.run.epochs is not None else _decaying(settings)


def with_steps(settings: RunConfiguration, num_samples: int) -> RunConfiguration:
    """Return settled settings with the steps that their epochs of so many samples take."""
    if settings.run.epochs is None:
        return settings
    begin = Position(0, 0, settings.batch.sequences, num_samples)
    steps = begin.num_steps(0, settings.run.epochs)
    return _decaying(settings.replace({"run.steps": steps}))


def _decaying(settings: RunConfiguration) -> RunConfiguration:
    steps = settings.optimizer.decay_steps or settings.run.steps
    return settings.replace({"optimizer.decay_steps": steps})


def _absolute(key, value):
    """Return the value; paths from the root."""
    if not value or not {"is_path", "made_absolute"} & key.metadata.keys():
        return value
    absolute = key.metadata.get("made_absolute", lambda path: str(Path(path).resolve()))
    if isinstance(value, str):
        return absolute(value)
    return tuple(map(absolute, value))
