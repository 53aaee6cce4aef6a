"""Settings as frozen dataclasses.

A training run is described by `RunConfiguration`: sections of plain values, read from TOML,
overridden by `--section.key=value`, refused with the nearest known name when unknown. A sharded
model is described by `ShardingConfiguration`, which holds live objects (backend, rule, loss) and is
made in Python.
"""

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from math import isfinite, log2
from pathlib import Path
from typing import Any

from .arguments import is_among, is_integer, is_number, nearest, require
from .environment import checked_mode
from .errors import ConfigurationError

GPU_TRANSPORTS = ("staged", "mpi", "ipc", "nccl")  # comm/gpu/transports.py


# ---- sharded models ------------------------------------------------------------------------------

OVERLAPS = {"auto": "auto", "on": True, "off": False}  # words of settings
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
BLAS = ("numpy", "mkl")
_SWITCHES = (
    "auto_synchronize_gradients",
    "sequence_parallel",
    "activation_checkpointing",
    "deterministic",
)


@dataclass(frozen=True)
class ShardingConfiguration:
    """How a model is sharded and trained; every field is consumed by the sharded models.

    backend                       an initialized or fresh CommunicationBackend; all ranks of it take
                                  part
    learning_rate                 of plain SGD when no `optimizer` is given
    optimizer                     a rule such as AdamW(lr=1e-3); None: SGD(lr=learning_rate)
    loss                          function (prediction, y) -> mean loss, or a Loss object; None: the
                                  wrapped model's own
    max_gradient_norm             clip the global norm of the mean gradient to this; None: no
                                  clipping
    auto_synchronize_gradients    False: train() only accumulates local gradients until
                                  synchronize_gradients()
    minimum_parameter_group_size  elements; neighboring blocks are merged until a communication
                                  unit has this many. The bits of tied models depend on it, and the
                                  last digit of the norm that clips
    gradient_compression          "float16": gradients travel as half floats and are summed as
                                  float32; None: as they are
    micro_batches                 number that each data rank cuts its part of a batch into
    schedule                      name of an order in shardkit.schedule.ORDERS
    virtual_stages                stages on each pipeline rank, for schedules that take several;
                                  None: what the schedule runs
    stage_balance                 what makes pipeline stages equal: "compute", "parameters",
                                  "uniform", or one cost per block (parallel/pipeline/balance.py;
                                  measure_blocks() gives seconds)
    blocks_per_stage              blocks of each stage by hand, in the order of the model; None:
                                  balanced
    tensor_plan                   {name pattern: style} for the tensor axis (parallel/tensor/plan.py);
                                  None: the default of GPT and MLP
    sequence_parallel             with several tensor ranks: norms and dropout see a slice of the
                                  sequence (GPT only); has bits of its own
    activation_checkpointing      keep only block inputs and run each block again in backward
    deterministic                 True: sums in the order of a fixed tree, the same bits on any mesh
                                  that leaves each data rank a power of two of micro-batches, or one
                                  rank all. False: the MPI library's own reductions and one
                                  accumulation buffer
    check                         True: checked mode, which compares what ranks pass before they use
                                  it; None: as the environment says, SHARDKIT_CHECK=1
    device                        "cpu" or "cuda"
    compute_dtype                 "float32", "bfloat16" or "float16": what blocks compute in, from
                                  float32 masters, with float32 gradients and moments
                                  (parallel/step/numerics.py); None: the model's dtype
    initial_loss_scale            float16 only, whose loss is scaled: a power of two to begin with;
                                  None: 1024
    loss_scale_interval           float16 only: good steps in a row after which the scale is
                                  doubled; None: 2000
    matmul_precision              "highest", or on "cuda" "tf32": products of float32 that read 10
                                  bits behind the point
    blas                          "numpy", or on "cpu" "mkl": Intel's library for matrix products,
                                  if it is installed; other bits
    gpu_transport                 how GPU arrays reach other ranks, with the same bits. "staged":
                                  through page-locked host memory, always right. "nccl": through
                                  NCCL, one GPU per rank. "ipc": ranks of a node copy in each
                                  other's GPU memory. "mpi": as arguments of MPI calls, where a
                                  probe shows that the library takes them (SHARDKIT_GPU_AWARE_MPI).
                                  What a way does not take is staged
    overlap                       parameters and gradients travel between data ranks while units
                                  compute (on "cpu"; gradients if deterministic and not compressed),
                                  with the same bits, for memory of one more unit's parameters and
                                  two more of its gradients. "auto": the first steps try whether it
                                  is quicker, unless all data ranks share memory
                                  (parallel/data/overlap.py)
    seed                          of dropout, and of the initial weights of a model that has none of
                                  its own

    Errors: ConfigurationError on a bad value, TypeError without a backend.
    """

    backend: Any
    learning_rate: float = 0.01
    optimizer: Any = None
    loss: Any = None
    max_gradient_norm: float | None = None
    auto_synchronize_gradients: bool = True
    minimum_parameter_group_size: int = 1024
    gradient_compression: str | None = None
    micro_batches: int = 1
    schedule: str = "1f1b"
    virtual_stages: int | None = None
    stage_balance: Any = "compute"
    blocks_per_stage: tuple[int, ...] | None = None
    tensor_plan: dict | None = None
    sequence_parallel: bool = False
    activation_checkpointing: bool = False
    deterministic: bool = True
    check: bool | None = None
    device: str = "cpu"
    compute_dtype: str | None = None
    initial_loss_scale: float | None = None
    loss_scale_interval: int | None = None
    matmul_precision: str = "highest"
    blas: str = "numpy"
    gpu_transport: str = "staged"
    overlap: bool | str = "auto"
    seed: int = 0

    def __post_init__(self):
        if self.backend is None or isinstance(self.backend, (type, str)):
            raise TypeError(
                "ShardingConfiguration needs a backend, for example MPICommunicationBackend(); got "
                f"{self.backend!r}"
            )
        self._require_training()
        self._require_numbers()
        self._require_words()
        self._require_numerics()

    def _require_training(self):
        """That what trains is there, as an object and not as its name or class."""
        require(
            self.optimizer is None or _is_object_with(self.optimizer, "update", "state_names"),
            "optimizer",
            self.optimizer,
            "a rule such as AdamW(lr=1e-3), or None: SGD(lr=learning_rate)",
        )
        require(
            self.loss is None or not isinstance(self.loss, type) and callable(self.loss),
            "loss",
            self.loss,
            "a function (prediction, y) -> mean loss, a Loss such as CrossEntropy(), or None: the model's own",
        )
        require(
            self.tensor_plan is None or isinstance(self.tensor_plan, dict) and self.tensor_plan,
            "tensor_plan",
            self.tensor_plan,
            "{name pattern: style} with at least one pattern, or None: the default of GPT and MLP",
        )
        for name in _SWITCHES:
            require(
                isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False"
            )
        require(
            self.check is None or isinstance(self.check, bool),
            "check",
            self.check,
            "True, False, or None: as SHARDKIT_CHECK says",
        )

    def _require_numbers(self):
        require(
            is_number(self.learning_rate, above=0),
            "learning_rate",
            self.learning_rate,
            "a finite number above 0",
        )
        require(
            self.max_gradient_norm is None or is_number(self.max_gradient_norm, above=0),
            "max_gradient_norm",
            self.max_gradient_norm,
            "a finite number above 0, or None: no clipping",
        )
        require(is_integer(self.seed), "seed", self.seed, "an integer")
        for name in ("micro_batches", "minimum_parameter_group_size"):
            require(
                is_integer(getattr(self, name), at_least=1),
                name,
                getattr(self, name),
                "an integer, at least 1",
            )
        require(
            self.virtual_stages is None or is_integer(self.virtual_stages, at_least=1),
            "virtual_stages",
            self.virtual_stages,
            "an integer, at least 1, or None: what the schedule runs",
        )
        require(
            self.blocks_per_stage is None
            or _are_all(self.blocks_per_stage, lambda size: is_integer(size, at_least=1)),
            "blocks_per_stage",
            self.blocks_per_stage,
            "(blocks of the first stage, of the second, ...), or None: balanced",
        )

    def _require_words(self):
        require(
            isinstance(self.schedule, str),
            "schedule",
            self.schedule,
            'the name of an order, such as "1f1b"',
        )
        require(
            isinstance(self.stage_balance, str)
            or _are_all(self.stage_balance, lambda cost: is_number(cost, at_least=0)),
            "stage_balance",
            self.stage_balance,
            '"compute", "parameters", "uniform", or the cost of each block',
        )
        require(
            self.gradient_compression is None or is_among(self.gradient_compression, ("float16",)),
            "gradient_compression",
            self.gradient_compression,
            'None or "float16"',
        )
        require(is_among(self.device, ("cpu", "cuda")), "device", self.device, '"cpu" or "cuda"')
        require(
            isinstance(self.overlap, bool) or is_among(self.overlap, ("auto",)),
            "overlap",
            self.overlap,
            'True, False or "auto"',
        )
        require(
            is_among(self.gpu_transport, GPU_TRANSPORTS),
            "gpu_transport",
            self.gpu_transport,
            " or ".join(GPU_TRANSPORTS),
        )

    def _require_numerics(self):
        require(
            self.compute_dtype is None or is_among(self.compute_dtype, COMPUTE_DTYPES),
            "compute_dtype",
            self.compute_dtype,
            f"None or {' or '.join(map(repr, COMPUTE_DTYPES))}",
        )
        scale, interval = self.initial_loss_scale, self.loss_scale_interval
        require(
            scale is None or is_number(scale, above=0) and log2(scale).is_integer(),
            "initial_loss_scale",
            scale,
            "None or a power of two",
        )
        require(
            interval is None or is_integer(interval, at_least=1),
            "loss_scale_interval",
            interval,
            "None or an integer >= 1",
        )
        wanted = (
            '"highest" or "tf32"'
            if self.device == "cuda"
            else '"highest": TF32 is arithmetic of GPUs (device = "cuda")'
        )
        precisions = ("highest", "tf32") if self.device == "cuda" else ("highest",)
        require(
            is_among(self.matmul_precision, precisions),
            "matmul_precision",
            self.matmul_precision,
            wanted,
        )
        wanted = (
            " or ".join(map(repr, BLAS))
            if self.device == "cpu"
            else '"numpy": on "cuda" cuBLAS multiplies'
        )
        require(
            is_among(self.blas, BLAS if self.device == "cpu" else ("numpy",)),
            "blas",
            self.blas,
            wanted,
        )

    @property
    def is_checked(self) -> bool:
        """True in checked mode."""
        return checked_mode() if self.check is None else self.check

    @classmethod
    def for_high_bandwidth(cls, backend, **settings) -> "ShardingConfiguration":
        """For ranks on one node or a fast fabric: small communication units, so that little memory
        is gathered at once.
        """
        return cls(backend, **{"minimum_parameter_group_size": 1024, **settings})

    @classmethod
    def for_low_bandwidth(cls, backend, **settings) -> "ShardingConfiguration":
        """For slow networks: few large messages, and gradients that travel as half floats. The
        trained bits are others.
        """
        return cls(
            backend,
            **{
                "minimum_parameter_group_size": 262144,
                "gradient_compression": "float16",
                **settings,
            },
        )


def _is_object_with(value, *members: str) -> bool:
    """True for an object, no class, that has these members."""
    return not isinstance(value, type) and all(hasattr(value, member) for member in members)


def _are_all(values, holds) -> bool:
    """True for a list or tuple with at least one element, if `holds` is true of each."""
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(map(holds, values))


# ---- training runs -------------------------------------------------------------------------------


def key(default, text: str, unit: str = "", **choices):
    """A configuration key: its default, what it means, its unit, and what values it may take."""
    metadata = {"text": text, "unit": unit, **choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Run:
    """Where a run lives, how long it goes, what it reports."""

    folder: str = key("runs/gpt", "where checkpoints, metrics and the token cache are kept")
    steps: int = key(
        300, "optimization steps in all, counted from the beginning of the run", "steps", minimum=1
    )
    seed: int = key(0, "of the initial weights, the order of the data and dropout")
    report_every: int = key(
        10, "a line of progress, and a record in metrics.jsonl", "steps", minimum=1
    )
    validate_every: int = key(50, "measure the loss on held-out text", "steps", minimum=1)
    validation_batches: int = key(8, "global batches per validation", minimum=1)
    checkpoint_every: int = key(
        100, "write a checkpoint; one is always written at the end", "steps", minimum=1
    )
    keep_checkpoints: int = key(3, "older ones are deleted", "checkpoints", minimum=1)
    keep_every: int = key(
        0,
        "checkpoints of steps that this divides are never deleted; 0: no such",
        "steps",
        minimum=0,
    )
    asynchronous_checkpoints: bool = key(
        True, "training goes on while they are written; costs memory for a copy of the state"
    )
    timeout: float = key(
        600.0,
        "that one call between ranks may take before the job is ended with a report",
        "seconds",
        above=0.0,
    )
    threads: int = key(
        1, "BLAS threads of each rank; the trained bits depend on it", "threads", minimum=1
    )
    patience: int = key(
        0,
        "validations without a lower loss after which the run ends early; 0: it does not",
        "validations",
        minimum=0,
    )
    stop_after_bad_steps: int = key(
        10,
        "a step whose loss or gradients are NaN or infinite is skipped; so many in a row end "
        "the run",
        "steps",
        minimum=1,
    )
    time_limit_seconds: float = key(
        0.0,
        "save and stop before this; 0: before the batch system ends the job",
        "seconds",
        minimum=0.0,
    )
    elastic: bool = key(
        False,
        "when ranks die the others go on: at once under Open MPI's mpiexec --with-ft ulfm, elsewhere "
        "the job script starts them again",
    )
    elastic_every: int = key(
        1,
        "each rank keeps a copy of its neighbor's part of the model, so many steps old at most",
        "steps",
        minimum=1,
    )
    stop_margin_seconds: float = key(
        15.0,
        "to spare then, beside twice the time of a save and the longest step",
        "seconds",
        minimum=0.0,
    )


@dataclass(frozen=True)
class Model:
    """Sizes of the GPT."""

    style: str = key("llama", "of the transformer block", among=("gpt2", "llama"))
    width: int = key(128, "of the residual stream", "elements", minimum=1)
    layers: int = key(4, "transformer blocks", "blocks", minimum=1)
    heads: int = key(4, "attention heads", "heads", minimum=1)
    kv_heads: int = key(0, "heads of keys and values; 0: as many as heads", "heads", minimum=0)
    sequence_length: int = key(128, "tokens that the model sees at once", "tokens", minimum=1)
    tied: bool = key(False, "the output layer uses the embedding's weight")
    dropout: float = key(
        0.0, "probability that an activation is dropped in training", minimum=0.0, below=1.0
    )
    dtype: str = key("float32", "of parameters and activations", among=("float32", "float64"))
    hidden: int = key(
        0,
        "units of each feed-forward; 0: 4 x width, or near 8/3 x width for llama",
        "elements",
        minimum=0,
    )
    norm_eps: float = key(
        0.0, "added to the variance in all norms; 0: 1e-5, or 1e-6 for llama", minimum=0.0
    )
    rotary_base: float = key(10000.0, "of the angles of llama's positions", above=0.0)
    initial: str = key(
        "",
        "weights to begin with: a run folder or a checkpoint of a GPT of bytes, which says the sizes too; "
        "none: drawn from the seed",
    )


@dataclass(frozen=True)
class Text:
    """What it reads."""

    path: list[str] = key(
        [], "files or folders of text; none: the Python standard library's own sources", of=str
    )
    validation_percent: float = key(
        5.0, "of the text held out for validation", "percent", above=0.0, below=100.0
    )
    maximum_bytes: int = key(64 * 2**20, "of text to read", "bytes", minimum=1)


@dataclass(frozen=True)
class Batch:
    """The global batch of a step; the number of ranks is not part of it."""

    sequences: int = key(16, "in the global batch of one step", "sequences", minimum=1)
    micro_batch: int = key(
        4,
        "sequences computed at once; with the seed it fixes the trained bits on any mesh that "
        "leaves each data rank a power of two of micro-batches, or one rank all",
        "sequences",
        minimum=1,
    )


@dataclass(frozen=True)
class Optimizer:
    """The update rule and its learning rate."""

    name: str = key("adamw", "the update rule", among=("adamw", "adam", "momentum", "sgd"))
    learning_rate: float = key(3e-3, "at its highest, after the warm-up", above=0.0)
    warmup_steps: int = key(20, "the learning rate grows linearly", "steps", minimum=0)
    decay: str = key(
        "cosine", "of the learning rate after the warm-up", among=("cosine", "linear", "constant")
    )
    decay_steps: int = key(
        0,
        "when the learning rate reaches its floor; 0: run.steps of the first start",
        "steps",
        minimum=0,
    )
    floor: float = key(0.1, "last learning rate as a part of the highest", minimum=0.0, maximum=1.0)
    weight_decay: float = key(0.01, "decoupled for adamw", minimum=0.0)
    momentum: float = key(0.9, "of the momentum rule", minimum=0.0, below=1.0)
    beta1: float = key(0.9, "of adam and adamw", minimum=0.0, below=1.0)
    beta2: float = key(0.95, "of adam and adamw", minimum=0.0, below=1.0)
    max_gradient_norm: float = key(
        1.0, "the gradient is scaled down to this norm; 0: never", minimum=0.0
    )


@dataclass(frozen=True)
class Parallel:
    """How the ranks share the work. None of it changes the trained bits but

    device, compute_dtype, matmul_precision, blas           what numbers are computed in, and by
                                                            whom
    initial_loss_scale, loss_scale_interval                 under float16: which gradients are too
                                                            small for it, or too large
    deterministic, gradient_compression                     how gradients are summed, and as what
                                                            they travel
    sequence_parallel                                       with several tensor ranks: tokens are
                                                            summed slice by slice
    minimum_parameter_group_size                            where tied weights meet in a unit, their
                                                            gradients are summed in another order;
                                                            and the last digit of the norm that
                                                            clips
    """

    policy: str = key("fsdp", "what the data axis shards", among=("ddp", "zero1", "zero2", "fsdp"))
    schedule: str = key(
        "1f1b",
        "the order of micro-batches",
        among=("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"),
    )
    stage_balance: str = key(
        "compute",
        "what makes pipeline stages equal; measured: seconds of each block, tried on rank 0",
        among=("compute", "parameters", "uniform", "measured"),
    )
    blocks_per_stage: list[int] = key(
        [], "of each pipeline stage by hand, such as [2,2,1,1]; none: balanced", "blocks", of=int
    )
    virtual_stages: int = key(
        0, "on each pipeline rank; 0: what the schedule runs", "stages", minimum=0
    )
    sequence_parallel: bool = key(
        False,
        "with several tensor ranks, norms and dropout see a slice of the sequence; other bits",
    )
    activation_checkpointing: bool = key(
        False, "run each block again in backward instead of keeping its activations"
    )
    compile: bool = key(
        False, "on a GPU, replay steps as CUDA graphs: less time in Python, the same bits"
    )
    minimum_parameter_group_size: int = key(
        1024,
        "blocks are merged into units of at least this many; other bits if weights are tied",
        "elements",
        minimum=1,
    )
    deterministic: bool = key(
        True,
        "sums in a fixed order: the same bits on any number of ranks, as batch.micro_batch says",
    )
    gradient_compression: str = key("none", "how gradients travel", among=("none", "float16"))
    device: str = key("cpu", "where arrays live", among=("cpu", "cuda"))
    compute_dtype: str = key(
        "model",
        "what blocks compute in, from float32 masters; model: in model.dtype",
        among=("model", *COMPUTE_DTYPES),
    )
    initial_loss_scale: float = key(0.0, "of float16, a power of two; 0: 1024", minimum=0.0)
    loss_scale_interval: int = key(
        0, "of float16: good steps in a row that double the scale; 0: 2000", "steps", minimum=0
    )
    matmul_precision: str = key(
        "highest",
        "of float32 products; tf32: on cuda, reads 10 bits behind the point",
        among=("highest", "tf32"),
    )
    blas: str = key(
        "numpy",
        "multiplies matrices on the cpu; mkl: of Intel, on its processors, if installed",
        among=BLAS,
    )
    gpu_transport: str = key(
        "staged",
        "how GPU arrays reach other ranks; staged: through host memory, always right",
        among=GPU_TRANSPORTS,
    )
    overlap: str = key(
        "auto",
        "parameters and gradients travel between data ranks while units compute; auto: if that is quicker",
        among=tuple(OVERLAPS),
    )


@dataclass(frozen=True)
class MeshAxes:
    """How the ranks are arranged; those that are left over are data replicas."""

    pipeline: int = key(1, "stages that the blocks of the model are cut into", "ranks", minimum=1)
    tensor: int = key(1, "ranks that share each layer", "ranks", minimum=1)


@dataclass(frozen=True)
class Sample:
    """The text that is written at the end."""

    prompt: str = key("def ", "the text to continue; with \\n for a line end")
    tokens: int = key(200, "to generate at the end of training; 0: none", "bytes", minimum=0)
    temperature: float = key(0.8, "0: always the most probable byte", minimum=0.0)


@dataclass(frozen=True)
class RunConfiguration:
    """Everything that `shardkit train` needs; printable, comparable, and stored beside the run."""

    run: Run = field(default_factory=Run)
    model: Model = field(default_factory=Model)
    data: Text = field(default_factory=Text)
    batch: Batch = field(default_factory=Batch)
    optimizer: Optimizer = field(default_factory=Optimizer)
    mesh: MeshAxes = field(default_factory=MeshAxes)
    parallel: Parallel = field(default_factory=Parallel)
    sample: Sample = field(default_factory=Sample)

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)

    def value(self, name: str):
        """The value of "section.key"."""
        section, name_in_section = _split_key(name)
        return getattr(getattr(self, section), name_in_section)

    def replace(self, settings: dict[str, Any]) -> "RunConfiguration":
        """This configuration with {"section.key": value} replaced and checked.

        Errors: ConfigurationError on an unknown key (the nearest known one is offered), a wrong
        type or a value out of range.
        """
        changed: dict[str, dict] = {}
        for name, value in settings.items():
            section, name_in_section = _split_key(name)
            changed.setdefault(section, {})[name_in_section] = _checked(name, value)
        return dataclasses.replace(
            self, **{s: dataclasses.replace(getattr(self, s), **v) for s, v in changed.items()}
        )


# ---- runs that go on -----------------------------------------------------------------------------

_IS_WHAT_THE_WEIGHTS_ARE = "its weights were trained as those of this model"
FIXED_IN_A_RUN = {  # settings that a run keeps from its start to its end, and why
    "run.seed": "the order of its text and its dropout follow from it",
    **{
        f"model.{name}": _IS_WHAT_THE_WEIGHTS_ARE
        for name in (
            "style",
            "width",
            "layers",
            "heads",
            "kv_heads",
            "tied",
            "dtype",
            "hidden",
            "norm_eps",
            "rotary_base",
        )
    },
    "model.initial": "it began with other weights",
    **{
        f"data.{name}": "it keeps its own copy of the text that it was started on"
        for name in ("path", "validation_percent", "maximum_bytes")
    },
    "optimizer.name": "its checkpoints hold the state of that rule",
    "parallel.initial_loss_scale": "the scale goes on from where it was",
}
TAKEN_WHEN_A_RUN_GOES_ON = frozenset(
    (  # the others: from there on the run has the new value
        *(
            f"run.{name}"
            for name in (
                "folder",
                "steps",
                "report_every",
                "validate_every",
                "validation_batches",
                "checkpoint_every",
                "keep_checkpoints",
                "keep_every",
                "asynchronous_checkpoints",
                "timeout",
                "threads",
                "patience",
                "stop_after_bad_steps",
                "time_limit_seconds",
                "elastic",
                "elastic_every",
                "stop_margin_seconds",
            )
        ),
        "model.sequence_length",
        "model.dropout",
        "batch.sequences",
        "batch.micro_batch",
        *(
            f"optimizer.{name}"
            for name in (
                "learning_rate",
                "warmup_steps",
                "decay",
                "decay_steps",
                "floor",
                "weight_decay",
                "momentum",
                "beta1",
                "beta2",
                "max_gradient_norm",
            )
        ),
        "mesh.pipeline",
        "mesh.tensor",
        *(
            f"parallel.{name}"
            for name in (
                "policy",
                "schedule",
                "stage_balance",
                "blocks_per_stage",
                "virtual_stages",
                "sequence_parallel",
                "activation_checkpointing",
                "compile",
                "minimum_parameter_group_size",
                "deterministic",
                "gradient_compression",
                "device",
                "compute_dtype",
                "loss_scale_interval",
                "matmul_precision",
                "blas",
                "gpu_transport",
                "overlap",
            )
        ),
        "sample.prompt",
        "sample.tokens",
        "sample.temperature",
    )
)
_PATHS = ("data.path", "model.initial")


def resumed(stored: RunConfiguration, given: dict[str, Any]) -> RunConfiguration:
    """The settings of a run that goes on: those it was started with, and of those given now the
    ones that it takes.

    Errors: ConfigurationError on a given value that the run cannot take, with both values and the
    reason.
    """
    wanted = stored.replace(given)
    for name in FIXED_IN_A_RUN:
        ours, theirs = stored.value(name), wanted.value(name)
        if _resolved(name, ours) != _resolved(name, theirs):
            raise ConfigurationError(
                f"{name} = {theirs!r}, but this run goes on with {ours!r}: {FIXED_IN_A_RUN[name]}. Leave it out, or start "
                f"another run with its weights: --model.initial={wanted.run.folder} --run.folder=ANOTHER"
            )
    if not wanted.optimizer.decay_steps:  # "run.steps of the first start", which is written down
        return wanted.replace({"optimizer.decay_steps": stored.optimizer.decay_steps})
    return wanted


def settled(settings: RunConfiguration) -> RunConfiguration:
    """The settings of a first start, with what depends on when and where that was written down.

    That is, paths from the root, and run.steps as the decay_steps: a longer run afterwards does not
    change them.
    """
    steps = settings.optimizer.decay_steps or settings.run.steps
    paths = {name: _resolved(name, settings.value(name)) for name in _PATHS}
    return settings.replace({"optimizer.decay_steps": steps, **paths})


def _resolved(name: str, value):
    """The value, paths as they are from the root."""
    if name not in _PATHS or not value:
        return value
    return (
        str(Path(value).resolve())
        if isinstance(value, str)
        else [str(Path(path).resolve()) for path in value]
    )


def configuration_keys() -> dict[str, tuple[Any, dataclasses.Field]]:
    """{"section.key": (default, field)} in the order of declaration."""
    keys = {}
    for section in dataclasses.fields(RunConfiguration):
        defaults = section.default_factory()
        for f in dataclasses.fields(defaults):
            keys[f"{section.name}.{f.name}"] = (getattr(defaults, f.name), f)
    return keys


def read_toml(path) -> dict[str, Any]:
    """The file's settings as {"section.key": value}. Errors: ConfigurationError naming the file."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    settings = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}: {section} = {table!r} stands outside a [section]; see --help for the sections"
            )
        settings.update({f"{section}.{name}": value for name, value in table.items()})
    return settings


def parse_override(name: str, text: str):
    """The value of `--section.key=text`, in the type of that key."""
    _split_key(name)
    default, f = configuration_keys()[name]
    if isinstance(default, str):
        return text
    if isinstance(default, list):
        return json.loads(text) if text.startswith("[") else [text]
    try:
        return json.loads(text.lower() if isinstance(default, bool) else text)
    except json.JSONDecodeError:
        return text  # refused by the type check, with the key's name


def _split_key(name: str) -> tuple[str, str]:
    known = configuration_keys()
    if name not in known:
        near = nearest(name, known)
        hint = f"; did you mean {near}?" if near else "; --help lists every key"
        raise ConfigurationError(f"unknown configuration key {name}{hint}")
    section, _, rest = name.partition(".")
    return section, rest


def _checked(name: str, value):
    """The value if it has the key's type and range; integers are taken where a float is wanted."""
    default, f = configuration_keys()[name]
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if isinstance(default, list) and isinstance(value, str):
        value = [value]
    if type(value) is not type(default):
        raise ConfigurationError(
            f"{name} = {value!r} is of type {type(value).__name__}; wanted {type(default).__name__}, "
            f"for example {default!r}"
        )
    if isinstance(value, float) and not isfinite(value):
        raise ConfigurationError(
            f"{name} = {value!r}; wanted a finite number, for example {default!r}"
        )
    rules = f.metadata
    if "of" in rules and any(type(element) is not rules["of"] for element in value):
        raise ConfigurationError(f"{name} = {value!r}; wanted a list of {rules['of'].__name__}")
    for rule, holds in (
        ("minimum", lambda b: value >= b),
        ("maximum", lambda b: value <= b),
        ("above", lambda b: value > b),
        ("below", lambda b: value < b),
        ("among", lambda b: value in b),
    ):
        if rule in rules and not holds(rules[rule]):
            bound = (
                " or ".join(map(repr, rules[rule])) if rule == "among" else f"{rule} {rules[rule]}"
            )
            raise ConfigurationError(f"{name} = {value!r}; wanted {bound}")
    return value


def help_text() -> str:
    """Every key with its default, unit and meaning, one line each."""
    lines = []
    for name, (default, f) in configuration_keys().items():
        unit = f" {f.metadata['unit']}" if f.metadata["unit"] else ""
        among = f" ({' | '.join(f.metadata['among'])})" if "among" in f.metadata else ""
        lines.append(f"  --{name:<40} {json.dumps(default)}{unit}: {f.metadata['text']}{among}")
    return "\n".join(lines)
