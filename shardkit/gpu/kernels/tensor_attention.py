"""Causal attention on tensor cores: for whom, and by which tiles.

float16, bfloat16   one product each, sums in float32
float32             three products of TF32 numbers each, as exact as float32; with precision("tf32")
                    one
float64, heads wider than WIDEST_HEAD, and GPUs before compute capability 8.0 have no such kernel
(attention.py).
"""

import functools
from dataclasses import dataclass

import numpy

from ...array import products
from ...array.backend import xp_of
from .launch import launch

WIDEST_HEAD = {2: 256, 4: 192}  # by bytes of a number: sums of wider ones do not fit into registers
FIRST_CAPABILITY = 8, 0
WARPS_WANTED = 8  # of a multiprocessor: more do not fit into its registers
RESERVED_BYTES = 1 << 10  # of shared memory, for each block
FORWARD = "tensor_attention"
FOR_QUERIES = "tensor_attention_for_queries"
FOR_KEYS = "tensor_attention_for_keys"


@dataclass(frozen=True)
class Tiles:
    """How a block computes: `warps` warps have 16 `blocks` rows each, which stay in shared memory,
    and `passing` rows go by in `stages` places.
    """

    warps: int
    blocks: int
    passing: int
    stages: int = 1

    @property
    def held(self) -> int:
        return self.warps * 16 * self.blocks

    def macros(self) -> dict:
        return {
            "WARPS": self.warps,
            "BLOCKS": self.blocks,
            "TILE": self.passing,
            "STAGES": self.stages,
        }


# {kernel: {bytes of a number: {widest head: what is wanted first, second, ...}}}. They keep all
# their numbers in registers (tests/pure/test_cuda_sources.py). The smallest fit into 99 KB.
TILES = {
    FORWARD: {
        2: {
            64: [Tiles(4, 2, 64)],
            128: [Tiles(4, 2, 32)],
            192: [Tiles(4, 1, 32)],
            256: [Tiles(4, 1, 16)],
        },
        4: {64: [Tiles(4, 2, 32)], 128: [Tiles(4, 1, 32)], 192: [Tiles(4, 1, 16)]},
    },
    FOR_QUERIES: {
        2: {64: [Tiles(4, 2, 32, 2)], 128: [Tiles(4, 1, 32, 2)], 256: [Tiles(4, 1, 16)]},
        4: {
            64: [Tiles(4, 2, 32), Tiles(4, 1, 32, 2)],
            128: [Tiles(8, 1, 32), Tiles(8, 1, 16), Tiles(4, 1, 16)],
            192: [Tiles(4, 1, 16), Tiles(2, 1, 16)],
        },
    },
    FOR_KEYS: {
        2: {64: [Tiles(4, 1, 64, 2)], 128: [Tiles(4, 1, 32, 2)], 256: [Tiles(4, 1, 16)]},
        4: {
            64: [Tiles(4, 1, 32, 2)],
            128: [Tiles(8, 1, 16), Tiles(4, 1, 16)],
            192: [Tiles(4, 1, 16), Tiles(2, 1, 16)],
        },
    },
}
MOST_COLUMNS = 128  # that a block of FOR_KEYS sums


@dataclass(frozen=True)
class Limits:
    """What a GPU has: compute capability, bytes of shared memory of a block and in all."""

    capability: tuple[int, int]
    block_bytes: int
    multiprocessor_bytes: int


@functools.cache
def limits(xp, ordinal: int) -> Limits:
    """Return those of a GPU, by its number."""
    found = xp.cuda.runtime.getDeviceProperties(ordinal)
    return Limits(
        (found["major"], found["minor"]),
        found["sharedMemPerBlockOptin"],
        found["sharedMemPerMultiprocessor"],
    )


def is_served(q) -> bool:
    """Return True if tensor cores compute attention of arrays like q [B, H, S, D]."""
    has_cores = limits(xp_of(q), q.data.device_id).capability >= FIRST_CAPABILITY
    return has_cores and q.shape[3] <= WIDEST_HEAD.get(q.dtype.itemsize, -1)


@dataclass(frozen=True)
class Plan:
    """How a kernel is launched for heads of one width."""

    rows: int  # that a block holds
    slices: int  # blocks for the columns of a head
    block: tuple[int, int]
    shared_bytes: int
    macros: dict


@functools.lru_cache(maxsize=256)
def _plan(name: str, itemsize: int, head_dim: int, count: int, device: Limits) -> Plan:
    """Return how a kernel that makes a number of so many products is launched on a device."""
    dim = padded(head_dim)
    tiles = chosen(name, itemsize, dim, device)
    return Plan(
        tiles.held,
        -(-dim // _columns(name, dim)),
        (32, tiles.warps),
        shared_bytes(name, itemsize, dim, tiles),
        macros(name, dim, tiles, count),
    )


def run(name: str, q, rows, numbers: tuple, *args) -> None:
    """Launch a kernel on tiles of the rows of `rows` [B, H, S, ...].

    numbers   its last arguments: ints, which have 32 bits there, and floats
    """
    device = limits(xp_of(q), q.data.device_id)
    plan = _plan(name, q.dtype.itemsize, q.shape[3], num_products(q), device)
    samples, heads, num_rows = rows.shape[:3]
    launch(
        q,
        f"{name}.cu",
        name,
        (samples * heads * -(-num_rows // plan.rows) * plan.slices,),
        plan.block,
        *args,
        *[numpy.int32(value) if type(value) is int else value for value in numbers],
        shared_bytes=plan.shared_bytes,
        **plan.macros,
    )


def num_products(q) -> int:
    """Return how many products of tensor cores make one of these numbers."""
    return 3 if q.dtype.itemsize == 4 and products.precision_in_use() == "highest" else 1


def macros(name, dim, tiles, count) -> dict:
    """Return what is fixed when the code is compiled, besides the dtype."""
    columns = _columns(name, dim)
    return {"DIM": dim, "COLUMNS": columns, "PRODUCTS": count, **tiles.macros()}


def padded(head_dim: int) -> int:
    """Return the width that heads have in shared memory: a multiple of 16."""
    return max(16, -(-head_dim // 16) * 16)


def chosen(name: str, itemsize: int, dim: int, device: Limits) -> Tiles:
    """Return the tiles that keep most warps at work, the first of equal ones."""

    def warps(tiles):
        taken = shared_bytes(name, itemsize, dim, tiles)
        if taken > device.block_bytes:
            return 0
        together = device.multiprocessor_bytes // (taken + RESERVED_BYTES)
        return min(WARPS_WANTED, together * tiles.warps)

    return max(candidates(name, itemsize, dim), key=warps)


def candidates(name: str, itemsize: int, dim: int) -> list[Tiles]:
    """Return the tiles for heads of this width, the preferred ones first."""
    by_width = TILES[name][itemsize]
    return by_width[next(widest for widest in by_width if dim <= widest)]


def shared_bytes(name: str, itemsize: int, dim: int, tiles: Tiles) -> int:
    """Return what a block takes of shared memory: rows with a gap, and two numbers per query."""
    row = (dim + 16 // itemsize) * itemsize
    if name == FORWARD:
        return (tiles.held + 2 * tiles.passing) * row
    passing = tiles.stages * tiles.passing
    return 2 * (tiles.held + passing) * row + (8 * passing if name == FOR_KEYS else 0)


def _columns(name, dim):
    """Return how many columns of a head a block sums."""
    if name != FOR_KEYS:
        return dim
    slices = -(-dim // MOST_COLUMNS)
    return -(-dim // (16 * slices)) * 16
