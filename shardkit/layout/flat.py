"""FlatLayout: many tensors in one flat buffer, which is cut into equal shards, one per rank.

    FlatLayout.of({"weight": (3, 4), "bias": (3,)}, num_shards=2, alignment=4)

    elements   0               4               8               12              16
                 w   w   w   w   w   w   w   w   w   w   w   w   b   b   b   -
    slots      |-------------------- weight -------------------|--- bias --| padding: at the end
               only, always zero
    shards     |------- shard of rank 0 -------|------- shard of rank 1 -------| equal, a multiple
               of `alignment`
    span(1)    [8, 15)                what rank 1 owns: its shard without the padding
    pieces(1)  weight[2:3, 0:4] at [0, 4) of the shard, bias[0:3] at [4, 7)

The buffer is storage and a communication bucket: because the shards are equal, one reduce-scatter
or all-gather moves it without packing, and because a shard may cut a tensor anywhere, no rank owns
much more than another. A parameter is identified not by its place here but by its name and its box;
`pieces` gives the boxes that a rank owns. Every policy (DDP, ZeRO-1, ZeRO-2, FSDP, HSDP) uses this
one layout; they differ in which of the buffers keep only the shard.
Source: ZeRO (arXiv 1910.02054) for the partition, PyTorch FSDP (arXiv 2304.11277) for the flat
parameter.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ..errors import LayoutError
from .box import flat_range_to_boxes
from .piece import Piece

ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies in the flat buffer: elements [offset, stop), in C order."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.size

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces of this tensor in elements [start, stop) of the flat buffer."""
        low = max(start, self.offset)
        high = min(stop, self.stop)
        if low >= high:
            return []
        pieces = []
        at = low - start
        for box in flat_range_to_boxes(self.shape, low - self.offset, high - self.offset):
            pieces.append(Piece(self.name, box, at, at + box.size, self.shape))
            at += box.size
        return pieces


@dataclass(frozen=True)
class FlatLayout:
    """Slots in one declared order without gaps, in `num_shards` equal shards; `of` makes one."""

    slots: tuple[Slot, ...]
    num_shards: int
    alignment: int
    dtype: str

    @cached_property
    def _slot_named(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @classmethod
    def of(
        cls, shapes, num_shards: int, *, alignment: int = 256, dtype: str = "float32"
    ) -> "FlatLayout":
        """Return the layout of these tensors, in the order given.

        shapes       {name: shape}, or pairs (name, shape)
        num_shards   ranks that share the buffer; there may be more ranks than elements
        alignment    a shard is a multiple of this many elements (256 float32 = 1 KiB: whole cache
                     lines and vectors)
        Errors: LayoutError for a name given twice, a negative size, an unknown dtype, no shards.
        """
        given = shapes.items() if isinstance(shapes, Mapping) else shapes
        pairs = [(name, tuple(shape)) for name, shape in given]
        _check_arguments(pairs, num_shards, alignment, dtype)
        slots = []
        offset = 0
        for name, shape in pairs:
            slots.append(Slot(name, shape, offset))
            offset = slots[-1].stop
        return cls(tuple(slots), num_shards, alignment, dtype)

    @cached_property
    def length(self) -> int:
        """Elements in use: all slots, no padding."""
        return self.slots[-1].stop if self.slots else 0

    @cached_property
    def shard(self) -> int:
        """Elements per rank: an equal part of the length, rounded up to the alignment."""
        return _round_up(_round_up(self.length, self.num_shards) // self.num_shards, self.alignment)

    @cached_property
    def size(self) -> int:
        """Elements of the whole buffer, padding included."""
        return self.shard * self.num_shards

    def span(self, rank: int) -> tuple[int, int]:
        """Return the elements [start, stop) of the flat buffer that a rank owns.

        They are its shard without padding, so there may be none.
        """
        if not 0 <= rank < self.num_shards:
            raise LayoutError(
                f"rank {rank} owns no shard: the layout has {self.num_shards} shards, "
                "counted from 0"
            )
        return min(rank * self.shard, self.length), min((rank + 1) * self.shard, self.length)

    def pieces(self, rank: int) -> list[Piece]:
        """Return the boxes a rank owns, in flat order; all ranks' boxes tile every tensor once."""
        return self.pieces_in(*self.span(rank))

    def pieces_in(self, start: int, stop: int) -> list[Piece]:
        """Return the boxes in elements [start, stop) of the flat buffer, in flat order."""
        return [piece for slot in self.slots for piece in slot.pieces(start, stop)]

    def slot(self, name: str) -> Slot:
        """Return the slot of one tensor. Errors: LayoutError if none has that name."""
        slot = self._slot_named.get(name)
        if slot is None:
            names = ", ".join(self._slot_named) or "none"
            raise LayoutError(f"no slot is named {name!r}; the layout has {names}")
        return slot

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return (
            f"FlatLayout of {len(self.slots)} tensors, {self.length} {self.dtype} in "
            f"{self.num_shards} shards of {self.shard}"
        )


def _round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below the number."""
    return -(-number // multiple) * multiple


def _check_arguments(pairs, num_shards: int, alignment: int, dtype: str) -> None:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise LayoutError(
                f"two tensors are named {name!r}; names must differ, since a checkpoint finds "
                "tensors by name"
            )
    for name, shape in pairs:
        if min((0, *shape)) < 0:
            raise LayoutError(f"tensor {name!r} has shape {shape}; sizes must be >= 0")
    if num_shards < 1 or alignment < 1:
        raise LayoutError(f"num_shards {num_shards} and alignment {alignment} must both be >= 1")
    if dtype not in ITEM_BYTES:
        raise LayoutError(f"dtype {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
