"""Host memory that is page-locked, so that copies need not wait for it."""

import ctypes
import functools
import weakref

from .._machine import machine

_LEAST = 512  # bytes of a block


class PinnedMemory:
    """A block of its own."""

    def __init__(self, size, flags=0):
        self._buffer = (ctypes.c_uint8 * max(size, 1))()
        ctypes.memset(self._buffer, 0xFF, max(size, 1))  # NaN, for those who read it
        self.ptr, self.size = ctypes.addressof(self._buffer), size
        with machine.lock:
            machine.pinned[self.ptr] = max(size, 1)
        weakref.finalize(self._buffer, _unlock, self.ptr)


def _unlock(address):
    with machine.lock:
        machine.pinned.pop(address, None)


@functools.cache
def _pointers(size):
    """The type of pointers to so many bytes."""
    methods = {"size": lambda self: size, "ptr": property(ctypes.addressof)}
    return type("PinnedMemoryPointer", (ctypes.c_uint8 * max(size, 1),), methods)


def PinnedMemoryPointer(mem, offset):
    """A pointer to all that is behind the offset, which is a buffer too."""
    pointer = _pointers(mem.size - offset).from_buffer(mem._buffer, offset)
    pointer.mem = mem
    return pointer


class PinnedMemoryPool:
    """Blocks that are used again: of powers of two, and kept when their last user is gone."""

    def __init__(self):
        self._idle: dict[int, list] = {}  # bytes -> blocks

    def malloc(self, size):
        rounded = 1 << max(size - 1, _LEAST - 1).bit_length()
        idle = self._idle.setdefault(rounded, [])
        block = idle.pop() if idle else PinnedMemory(rounded)
        ctypes.memset(block._buffer, 0xFF, rounded)
        pointer = PinnedMemoryPointer(block, 0)
        weakref.finalize(pointer, idle.append, block)
        return pointer

    def n_free_blocks(self):
        return sum(map(len, self._idle.values()))

    def free_all_blocks(self):
        self._idle.clear()


pool = PinnedMemoryPool()
