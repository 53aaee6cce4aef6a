"""Software: what a program keeps in memory, how it computes, and what it overlaps.

    software_named("megatron")    one of shardkit/plan/programs/*.toml, or your own file

    like = "megatron"             all values of that one, but for those that are here

The values are for AdamW with clipping; settings.py has them for other settings.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..arguments import is_among, is_number
from ..array.dtypes import FLOAT8
from ..errors import ConfigurationError
from ..files.reading import understood
from ..layout.policy import POLICIES
from ..schedule.catalog import ORDERS
from .hardware import HALVES
from .shape import hashed_once
from .tables import ABOVE_0, FRACTION, check_like, made, names_from, names_in, tables_of, tuples

RECOMPUTATIONS = ("none", "selective", "full")


@hashed_once
@dataclass(frozen=True)
class Software:
    """The properties of a program that memory and time depend on. Bytes are of one element.

    dtype                 of matrix products, which selects the peak of the hardware
    linear_dtype          of the products of layers with their matrices, attention and head apart;
                          "": dtype
    cast_bytes            moved per element of what is cast for those products
    parameter_bytes, gradient_bytes
                          of the arrays that are kept
    state_bytes           of optimizer state, with float32 master weights
    activation_bytes      of activations, and of messages between stages and tensor ranks
    wire_bytes            of a gradient on its way between data ranks
    gather_bytes          of a parameter of a layer on its way there; None: parameter_bytes
    update_bytes          moved in memory per parameter and step: optimizer, clipping, casts
    accumulation_bytes    moved per parameter and micro-batch to add its gradient to the sum
    keeps_scores          attention writes the scores to memory; False: a fused kernel computes
                          them again
    attention_kernel      of a fused attention, by its name in the hardware file; "": the usual one
    masks_dropout         dropout keeps a mask of one byte; False: it makes the mask again
    pass_factor           bytes that norms, nonlinearities and sums move, over those of kernels that
                          are fused as far as they can be
    recomputed_share      of a layer's forward, without attention, that selective recomputation does
                          again; 0: it does the attention again
    recomputes_part       full recomputation may be of some layers of a rank
    recomputations, policies, schedules
                          that it supports
    cuts_evenly           stages have equally many layers, or one more or less (stages.py); False:
                          they are balanced by compute
    sums_in_tree          micro-batches are summed as a fixed tree, which keeps several gradients
    splits_backward       a gradient leaves a stage before the weight gradients are computed
    overlaps_gathers      parameters of the next unit are gathered while this one computes
    overlaps_reductions   gradients are reduced while backward runs
    overlaps_transfers    messages between stages travel while the ranks compute
    overlaps_tensor       under sequence parallelism, collectives of tensor ranks travel in pieces
                          while the products beside them compute
    overlap               part of what could travel beside computing that does; the rest is waited
                          for
    efficiency            of its computing: the speed that kernels reach one after another, over
                          that of each alone
    host_seconds          in which the host launches the kernels of a layer's forward; backward
                          takes it as long
    scatters_transfers    each tensor rank sends its part of an activation to the next stage
    messages_per_layer    collectives for the parameters of a layer under a sharding policy
    shares_parameters     data ranks that see each other's memory have one set of whole parameters
    rounds_when_gathered  under full sharding only master weights are kept, and rounded for each
                          gather
    merges_below          blocks are merged to units of at least this many elements
    arena_share           memory that activations hold over memory in use: free blocks lie between
    cuts_logits           tensor ranks compute the loss of a part of the vocabulary each; False:
                          they gather the logits
    logits_bytes          of a logit from the forward to the backward: float32, and copies of it
    reserve_bytes         that a rank holds beside all that is counted: workspaces, buffers
    link_share            of what collectives of long arrays reach, that its own over data ranks do
    tensor_share          the same of its own over tensor ranks
    backward_gathers      how often a backward gathers the parameters of a layer
    cuts_samples          several ranks may share each sample
    source                where the values are from, and which were chosen with which runs
    calls_per_layer       of kernels from Python in a forward; half as many per gradient in backward
    """

    name: str
    dtype: str = "bfloat16"
    linear_dtype: str = ""
    cast_bytes: float = 0.0
    parameter_bytes: int = 2
    gradient_bytes: int = 4
    state_bytes: int = 12
    activation_bytes: int = 2
    wire_bytes: int = 4
    gather_bytes: int | None = None
    update_bytes: int = 54
    accumulation_bytes: int = 0
    keeps_scores: bool = True
    attention_kernel: str = ""
    masks_dropout: bool = True
    pass_factor: float = 1.0
    recomputed_share: float = 0.0
    recomputes_part: bool = True
    recomputations: tuple[str, ...] = RECOMPUTATIONS
    policies: tuple[str, ...] = tuple(POLICIES)
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    cuts_evenly: bool = True
    sums_in_tree: bool = False
    splits_backward: bool = False
    overlaps_gathers: bool = True
    overlaps_reductions: bool = True
    overlaps_transfers: bool = True
    overlaps_tensor: bool = False
    overlap: float = 1.0
    efficiency: float = 1.0
    host_seconds: float = 0.0
    scatters_transfers: bool = False
    messages_per_layer: int = 1
    shares_parameters: bool = False
    rounds_when_gathered: bool = False
    merges_below: int = 1
    arena_share: float = 1.0
    cuts_logits: bool = True
    logits_bytes: float = 4.0
    reserve_bytes: float = 0.0
    link_share: float = 1.0
    tensor_share: float = 1.0
    backward_gathers: int = 1
    cuts_samples: bool = False
    calls_per_layer: int = 24
    source: str = field(default="", compare=False)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that it multiplies in."""
        return (self.dtype, self.linear_dtype) if self.casts else (self.dtype,)

    @property
    def casts(self) -> bool:
        """Whether the operands of a layer's products are cast for them."""
        return self.linear_dtype not in ("", self.dtype)

    def bytes_gathered(self, block: str) -> int:
        """Return the bytes of a parameter of such a block on its way between data ranks."""
        if self.gather_bytes is None or block != "layer":
            return self.parameter_bytes
        return self.gather_bytes

    def gathers(self, data: int, tensor: int, sharing: int) -> bool:
        """Return whether parameters sharded over this many data ranks are gathered into a buffer.

        sharing   ranks of a node that see each other's memory
        """
        return not (self.shares_parameters and 1 < data <= sharing // tensor)


def _is_share(value) -> bool:
    return is_number(value, at_least=0) and value <= 1


FLOAT8_SUFFIX = "-float8"
FOLDER = Path(__file__).parent / "programs"
_ALL = "all"
_DTYPES = ("float32", *HALVES)
_LIMITS = {
    "dtype": (partial(is_among, names=_DTYPES), f"one of {', '.join(_DTYPES)}"),
    "efficiency": ABOVE_0,
    "overlap": (_is_share, "a number from 0 to 1"),
    "gather_bytes": ABOVE_0,
    "messages_per_layer": ABOVE_0,
    "arena_share": ABOVE_0,
    "link_share": FRACTION,
    "tensor_share": FRACTION,
    "recomputations": names_from(RECOMPUTATIONS),
    "policies": names_from(POLICIES),
    "schedules": names_from([*ORDERS, _ALL]),
}


def software_named(name: str) -> Software:
    """Return the program in this file, or the one of this name that comes with shardkit.

    Errors: InputError if there is none; ConfigurationError on a key that is unknown or outside its
    limits.
    """
    tables, path = tables_of(name, FOLDER, "software")
    with understood(path):
        values = tuples(_with_like(tables, path))
        if values.get("schedules") == (_ALL,):
            values["schedules"] = tuple(ORDERS)
        return made(Software, {"name": path.stem, **values}, str(path), _LIMITS)


def _with_like(tables: dict, path) -> dict:
    """Return the table of a program; what it does not say is as in the one named by `like`."""
    own = dict(tables)
    like = own.pop("like", None)
    if like is None:
        return own
    check_like(like, FOLDER, str(path))
    other, of_other = tables_of(like, FOLDER, "software")
    return {**_with_like(other, of_other), **own}


def known_programs() -> list[str]:
    """Return the names of the programs that come with shardkit."""
    return names_in(FOLDER)


SHARDKIT = software_named("shardkit")
SHARDKIT_BF16 = software_named("shardkit-bf16")
SHARDKIT_FP16 = software_named("shardkit-fp16")
MIXED = software_named("mixed")

# {parallel.compute_dtype of a run: shardkit}
OWN = {None: SHARDKIT, "float32": SHARDKIT, "bfloat16": SHARDKIT_BF16, "float16": SHARDKIT_FP16}


def own_in(dtype: str | None) -> Software:
    """Return shardkit with this compute dtype. Errors: ConfigurationError on one it lacks."""
    if dtype not in OWN:
        raise ConfigurationError(
            f"parallel.compute_dtype = {dtype!r} with --software {SHARDKIT.name}; wanted one of "
            f"{', '.join(filter(None, OWN))}, or --software {MIXED.name}"
        )
    return OWN[dtype]


def in_float8(program: Software) -> Software:
    """Return a program in halves with the products of its layers in float8.

    Each operand is scaled by its largest magnitude: a pass that reads 2 bytes of an element for
    that, and one that reads 2 and writes it twice, in rows and in columns, since such products take
    their operands along the summed dim (torchao, float8 training, tensorwise scales). Attention,
    norms, the embedding and the head stay in halves. A program with cast_bytes of its own keeps it.
    """
    cast = program.cast_bytes or 6.0
    return replace(program, name=program.name + FLOAT8_SUFFIX, linear_dtype=FLOAT8, cast_bytes=cast)
