"""Software: what a program keeps in memory, how it computes, and what it overlaps.

    shardkit        this package: float32, flash attention, no overlap of collectives
    shardkit-bf16   with compute_dtype = "bfloat16"; shardkit-fp16 with "float16"
    mixed           a program for GPUs in bf16 with float32 master weights, with today's overlaps;
                    in_float8() has it with the products of its layers in float8
    mixed-tensor    the same, which overlaps collectives of tensor ranks too
    mixed-gather8   mixed in float8, which gathers the matrices of its layers in float8 too

The values are for AdamW with clipping; settings.py has them for other settings. More programs,
which published times are for, are in benchmarks/published.
"""

from dataclasses import dataclass, replace

from ..array.dtypes import FLOAT8
from ..errors import ConfigurationError
from ..layout.policy import POLICIES
from ..schedule.catalog import ORDERS
from .shape import hashed_once


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
    scatters_transfers    each tensor rank sends its part of an activation to the next stage
    messages_per_layer    collectives for the parameters of a layer under a sharding policy
    shares_parameters     data ranks that see each other's memory have one set of whole parameters
    rounds_when_gathered  under full sharding only master weights are kept, and rounded for each
                          gather
    merges_below          blocks are merged to units of at least this many elements
    arena_share           memory that activations hold over memory in use: free blocks lie between
    link_share            of what collectives of long arrays reach, that its own over data ranks do
    backward_gathers      how often a backward gathers the parameters of a layer
    cuts_samples          several ranks may share each sample
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
    recomputations: tuple[str, ...] = ("none", "selective", "full")
    policies: tuple[str, ...] = tuple(POLICIES)
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    cuts_evenly: bool = True
    sums_in_tree: bool = False
    splits_backward: bool = False
    overlaps_gathers: bool = True
    overlaps_reductions: bool = True
    overlaps_transfers: bool = True
    overlaps_tensor: bool = False
    scatters_transfers: bool = False
    messages_per_layer: int = 1
    shares_parameters: bool = False
    rounds_when_gathered: bool = False
    merges_below: int = 1
    arena_share: float = 1.0
    link_share: float = 1.0
    backward_gathers: int = 1
    cuts_samples: bool = False
    calls_per_layer: int = 24

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


SHARDKIT = Software(
    "shardkit",
    dtype="float32",
    parameter_bytes=4,
    gradient_bytes=4,
    state_bytes=8,
    activation_bytes=4,
    wire_bytes=4,
    # AdamW in one pass reads 4 and writes 3 of float32, and scales what it reads; clipping reads
    # the gradient
    update_bytes=32,
    accumulation_bytes=12,
    keeps_scores=False,
    masks_dropout=False,
    recomputes_part=False,
    recomputations=("none", "full"),
    schedules=tuple(ORDERS),
    cuts_evenly=False,
    sums_in_tree=True,
    splits_backward=True,
    overlaps_gathers=False,
    overlaps_reductions=False,
    shares_parameters=True,
    merges_below=1024,
    # array/arena.py held 88 MiB where 81 were in use, 534 for 520
    arena_share=1.07,
    cuts_samples=True,
    calls_per_layer=26,
)
# parallel/step/numerics.py: master weights beside the moments, gradients in float32; the parameters
# for the blocks are rounded, 4 + 2
SHARDKIT_BF16 = replace(
    SHARDKIT,
    name="shardkit-bf16",
    dtype="bfloat16",
    parameter_bytes=2,
    state_bytes=12,
    activation_bytes=2,
    update_bytes=38,
    rounds_when_gathered=True,
)
SHARDKIT_FP16 = replace(SHARDKIT_BF16, name="shardkit-fp16", dtype="float16")
MIXED = Software(
    "mixed", keeps_scores=False, recomputations=("none", "full"), scatters_transfers=True
)
MIXED_TENSOR = replace(MIXED, name="mixed-tensor", overlaps_tensor=True)
MIXED_GATHER8 = replace(MIXED, name="mixed-gather8", gather_bytes=1)
SOFTWARE = {
    program.name: program
    for program in (SHARDKIT, SHARDKIT_BF16, SHARDKIT_FP16, MIXED, MIXED_TENSOR, MIXED_GATHER8)
}

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
    norms, the embedding and the head stay in halves.
    """
    return replace(program, name=f"{program.name}-float8", linear_dtype=FLOAT8, cast_bytes=6.0)


def software_named(name: str) -> Software:
    """Return the program of this name. Errors: ConfigurationError if there is none."""
    if name not in SOFTWARE:
        raise ConfigurationError(f"software {name!r}; wanted one of {', '.join(SOFTWARE)}")
    return SOFTWARE[name]
