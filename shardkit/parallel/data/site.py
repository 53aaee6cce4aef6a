"""Where the keepers of a unit find memory and messages.

Pools   one per model: the device, the arena of activations, and whole buffers to take and give
Site    one per unit: its flat layout, the pools, and the data axis that its arrays travel over
"""

from dataclasses import dataclass
from functools import cached_property

import numpy

from ...array.arena import Arena
from ...array.device import BufferPool, Device
from ...layout.flat import FlatLayout
from ...layout.piece import Piece
from .movement import Movement


class Pools:
    """The memory of one model: a device, an arena, and pools of whole buffers.

    compute_dtype   of whole parameters; None: dtype
    gathered        makes the buffers that units are gathered in: BufferPool or OwnBuffers
    """

    def __init__(self, device: Device, dtype, compute_dtype=None, gathered=BufferPool):
        self.device = device
        self.arena = Arena(device, purpose="activations")
        self.compute_dtype = numpy.dtype(dtype if compute_dtype is None else compute_dtype)
        self.whole_parameters = gathered(device, self.compute_dtype, purpose="gathered parameters")
        self.whole_gradients = BufferPool(device, dtype, purpose="gradients in flight")

    def places(self, units) -> tuple:
        """Return where on a GPU the buffers of these units lie: equal steps use equal places."""
        wholes = [unit.whole.data.ptr if unit.whole is not None else None for unit in units]
        return wholes, self.whole_parameters.places(), self.whole_gradients.places()


@dataclass(frozen=True, eq=False)
class Site:
    """The layout, the data axis and the memory that the keepers of one unit share."""

    layout: FlatLayout
    movement: Movement
    pools: Pools

    @cached_property
    def shard(self) -> slice:
        """This rank's shard of a whole buffer, padding included."""
        rank = self.movement.group.rank
        return slice(rank * self.layout.shard, (rank + 1) * self.layout.shard)

    @cached_property
    def span(self) -> slice:
        """This rank's shard without padding."""
        return slice(*self.layout.span(self.movement.group.rank))

    @cached_property
    def own(self) -> slice:
        """The part of the span that this rank owns, and not a rank of another group."""
        own = self.movement.owned(self.span.stop - self.span.start)
        return slice(self.span.start + own.start, self.span.start + own.stop)

    @cached_property
    def span_pieces(self) -> list[Piece]:
        """The named boxes of this rank's span."""
        return self.layout.pieces(self.movement.group.rank)

    @cached_property
    def own_pieces(self) -> list[Piece]:
        """The named boxes that this rank owns: over all ranks they tile every parameter once."""
        return self.layout.pieces_in(self.own.start, self.own.stop)

    @cached_property
    def all_pieces(self) -> list[Piece]:
        """The named boxes of all elements."""
        return self.layout.pieces_in(0, self.layout.length)

    @cached_property
    def slots(self) -> list[tuple[slice, tuple[int, ...]]]:
        """Where each parameter lies in a whole buffer, and its shape."""
        return [(slice(slot.offset, slot.stop), slot.shape) for slot in self.layout.slots]

    @cached_property
    def padding(self) -> slice:
        """The end of a whole buffer, which is zero."""
        return slice(self.layout.length, self.layout.size)

    def zeros(self, size: int, purpose: str, dtype=None):
        """Return a new array [size], of the layout's dtype or another."""
        return self.pools.device.zeros(size, dtype or self.layout.dtype, purpose=purpose)
