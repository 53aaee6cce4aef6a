"""Software: what a program keeps in memory, how it computes, and what it overlaps.

    software_named("megatron")    one of shardkit/plan/programs/*.toml, or your own file, in which
    like = "megatron"             takes its values, but for those that are there

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
from .tables import (
    ABOVE_0,
    FRACTION,
    Limit,
    made,
    names_from,
    names_in,
    tables_of,
    tuples,
    with_like,
)

RECOMPUTATIONS = ("none", "selective", "full")


@hashed_once
@dataclass(frozen=True)
class Software:
    """What memory and time depend on; programs/tuned.toml describes each."""

    name: str
    dtype: str = "bfloat16"
    linear_dtype: str = ""
    cast_bytes: float = 0.0
    parameter_bytes: int = 2
    gradient_bytes: int = 4
    state_bytes: int = 12
    activation_bytes: int = 2
    wire_bytes: int = 4
    gather_bytes: int | None = None  # None: parameter_bytes
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
    scatters_transfers: bool = False
    messages_per_layer: int = 1
    ring_nodes: float = 0.0
    copying_seconds: float = 0.0
    shares_parameters: bool = False
    rounds_when_gathered: bool = False
    merges_below: int = 1
    ramp_bytes: float = 0.0
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


FLOAT8_SUFFIX = "-float8"
PROGRAMS = Path(__file__).parent / "programs"
_NAMED = {"policies": tuple(POLICIES), "schedules": tuple(ORDERS)}
_DTYPES = ("float32", *HALVES)
_LIMITS: dict[str, Limit] = {
    "dtype": (partial(is_among, names=_DTYPES), f"one of {', '.join(_DTYPES)}"),
    "linear_dtype": (
        partial(is_among, names=("", FLOAT8, *_DTYPES)),
        f"one of {', '.join((FLOAT8, *_DTYPES))}",
    ),
    "overlap": (lambda value: value == 0 or FRACTION[0](value), "a number from 0 to 1"),
    "ring_nodes": (
        lambda value: value == 0 or is_number(value, at_least=1),
        "0, or a number of at least 1",
    ),
    **dict.fromkeys("efficiency gather_bytes messages_per_layer arena_share".split(), ABOVE_0),
    **dict.fromkeys(("link_share", "tensor_share"), FRACTION),
    "recomputations": names_from(RECOMPUTATIONS),
    **{key: names_from([*known, "all"]) for key, known in _NAMED.items()},
}


def software_named(name: str) -> Software:
    """Return the program in this file, or the one of this name that comes with shardkit.

    Errors: InputError if there is none; ConfigurationError on an unknown key or a wrong value.
    """
    values, path = tables_of(name, PROGRAMS, "software")
    with understood(path):
        values = tuples(with_like(values, PROGRAMS, str(path)))
        if "name" in values:
            raise ConfigurationError(f"{path}: name; wanted none, the name of the file is its name")
        for key, known in _NAMED.items():
            if isinstance(values.get(key), tuple) and "all" in values[key]:
                values[key] = known
        return made(Software, {"name": Path(name).name, **values}, str(path), _LIMITS)


def known_programs() -> list[str]:
    """Return the names of the programs that come with shardkit."""
    return names_in(PROGRAMS)


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
