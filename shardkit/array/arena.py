"""Memory that is used again: arrays whose blocks come back by themselves when the last view of them is garbage.

    a = arena.empty((4, 128), "float32")       a block, new or idle
    b = a[1:]; del a                           still lent out: b is a view of it
    del b                                      idle again; the next array of about this size gets it

A step allocates what an earlier step has let go, so after the first one nothing is asked of the operating system.
"""
import mmap
import weakref
from math import prod

import numpy

from .backend import ALIGNMENT_BYTES, Device

_STEPS_PER_DOUBLING = 8             # blocks come in sizes 1, 9/8, 10/8 ... of a power of two: at most an eighth is not used
_MAPPED_BYTES = 1 << 20             # from here on a block is a mapping of its own, in huge pages where the system has them


class Arena:
    """Blocks of host memory of one rank; on a GPU the pool of CuPy does the same work, and this only counts.

    purpose   what the bytes are counted under in device.accounts, lent out or idle
    """

    def __init__(self, device: Device, *, purpose: str):
        self._device, self._purpose = device, purpose
        self._idle: dict[int, list] = {}        # size in bytes -> (memory, offset in it) of blocks
        self._lent: dict[int, tuple] = {}       # id of the weak reference to an array -> (the reference, size, block)

    def empty(self, shape, dtype):
        """An array of this shape, contents undefined, starting on a cache line."""
        if self._device.kind != "cpu":
            return self._device.empty(shape, dtype, purpose=self._purpose)
        dtype = numpy.dtype(dtype)
        size = block_bytes((shape if isinstance(shape, int) else prod(shape)) * dtype.itemsize)
        idle = self._idle.get(size)
        block = idle.pop() if idle else self._new_block(size)
        array = numpy.ndarray(shape, dtype, *block)
        reference = weakref.ref(array, self._come_back)
        self._lent[id(reference)] = reference, size, block
        return array

    def _come_back(self, reference):
        _, size, block = self._lent.pop(id(reference))
        self._idle.setdefault(size, []).append(block)

    def _new_block(self, size: int):
        """Memory that is not an ndarray, so that views of views refer to the array that was lent out and keep it alive."""
        self._device.accounts.add(self._purpose, size)
        if size >= _MAPPED_BYTES:
            memory = mmap.mmap(-1, size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            return memory, 0
        memory = bytearray(size + ALIGNMENT_BYTES)
        return memory, -numpy.frombuffer(memory, numpy.uint8).ctypes.data % ALIGNMENT_BYTES

    @property
    def num_idle(self) -> int:
        """Blocks that nobody uses now."""
        return sum(map(len, self._idle.values()))

    def clear(self) -> None:
        """Give the idle blocks back to the operating system."""
        for size, blocks in self._idle.items():
            self._device.accounts.add(self._purpose, -size * len(blocks))
        self._idle.clear()


def block_bytes(num_bytes: int) -> int:
    """The size of the block that holds so many bytes."""
    num_bytes = max(num_bytes, ALIGNMENT_BYTES)
    step = 1 << max((num_bytes - 1).bit_length() - 1 - (_STEPS_PER_DOUBLING.bit_length() - 1), 0)
    return -(-num_bytes // step) * step
