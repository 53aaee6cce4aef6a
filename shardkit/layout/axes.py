"""The axes of the mesh, one entry each: what it cuts, and so who differs, who owns, who adds up.

               cuts                       so that ranks along it     and what they send
    pipeline   the blocks of the model    run other blocks           activations to the next stage;
                                                                     backward: gradients back
    data       the samples of the batch   see other samples          gradients, summed; parameters
                                                                     that are sharded, gathered
    domain     each sample                see other rows of a grid   halos, moments, slices;
                                          or tokens of a text        backward: their adjoints
    tensor     the inside of layers       hold other parts of the    a copy enters, a sum leaves;
                                          same parameters            backward: a sum, a copy

Of what ranks along an axis have alike, the first one owns it: it counts, writes, and is read by the
others (alike()). What they have apart is added up along the axis (apart()): squared norms over
those that hold other parameters, gradients and losses over COPIES: those that hold the same ones,
and see other samples, or other parts of them.

The order of the table is the default order of ranks: the last axis varies fastest. A new axis is an
entry here, a field of Coordinates and MeshShape, an argument of Mesh and of the strategies that
take it, a setting of [mesh], and its pair of functions, as conjugate.py in parallel has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from types import MappingProxyType
from typing import Any

LEFT_OVER = -1  # ranks of an axis: as many as the other axes leave


class Held(Enum):
    """What a rank has of a training step."""

    BLOCKS = "blocks"  # with their buffers, and the actions of the schedule
    PARAMETERS = "parameters"
    SAMPLES = "samples"
    PARTS = "parts"  # of each sample


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh.

    cuts      what is spread over its ranks, in words
    apart     what its ranks have different parts of; all else they have alike
    default   its ranks where nothing is said
    is_tacit  texts name it only where it has several ranks, orders may leave it out
    """

    cuts: str
    apart: frozenset[Held]
    default: int = 1
    is_tacit: bool = False


AXES: Mapping[str, Axis] = MappingProxyType(
    {
        "pipeline": Axis("blocks of the model", frozenset({Held.BLOCKS, Held.PARAMETERS})),
        "data": Axis("samples of the batch", frozenset({Held.SAMPLES}), LEFT_OVER),
        "domain": Axis("each sample", frozenset({Held.PARTS}), is_tacit=True),
        "tensor": Axis("the inside of layers", frozenset({Held.PARAMETERS})),
    }
)
ORDER = tuple(AXES)
CHOSEN = tuple(name for name, axis in AXES.items() if axis.default != LEFT_OVER)  # in settings
(REMAINDER,) = (name for name, axis in AXES.items() if axis.default == LEFT_OVER)


def apart(held: Held) -> tuple[str, ...]:
    """Return the axes along which ranks have different ones of this."""
    return tuple(name for name, axis in AXES.items() if held in axis.apart)


def alike(held: Held) -> tuple[str, ...]:
    """Return the axes along which ranks have the same of this."""
    return tuple(name for name, axis in AXES.items() if held not in axis.apart)


# Ranks along all of these add up gradients, and share shards. The last one varies fastest: sums
# over data go on where those over micro-batches end: bits do not depend on the number of either.
COPIES = tuple(sorted(alike(Held.PARAMETERS), key=lambda axis: axis == REMAINDER))
TOGETHER = tuple(  # ranks along these compute each layer together, and wait for each other in it
    axis for axis in alike(Held.BLOCKS) if axis in alike(Held.SAMPLES)
)


def completed(order: Sequence[str]) -> tuple[str, ...]:
    """Return an order of axes with the tacit ones that it leaves out, each behind the axis that
    stands before it in the table.
    """
    whole = list(order)
    for before, axis in pairwise(ORDER):
        if AXES[axis].is_tacit and axis not in whole and before in whole:
            whole.insert(whole.index(before) + 1, axis)
    return tuple(whole)


def parallel_sizes(sizes: Mapping[str, int | None]) -> dict[str, Any]:
    """Return {axis: ranks} under the names that models take them by: pipeline_parallel_size ..."""
    return {f"{axis}_parallel_size": size for axis, size in sizes.items()}
