"""Host memory that is page-locked, so that copies need not wait for it."""

import ctypes
import weakref

from .._machine import machine


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


def pointer(mem, offset=0):
    """A PinnedMemoryPointer to all that is behind the offset."""
    size = mem.size - offset
    kind = type(
        "PinnedMemoryPointer",
        (ctypes.c_uint8 * max(size, 1),),
        {
            "size": lambda self: size,
            "ptr": property(ctypes.addressof),
            "mem": property(lambda self: mem),
        },
    )
    return kind.from_buffer(mem._buffer, offset)


class PinnedMemoryPool:
    """Blocks that are used again."""

    def malloc(self, size):
        return pointer(PinnedMemory(size))

    def n_free_blocks(self):
        return 0

    def free_all_blocks(self):
        """There are none."""


pool = PinnedMemoryPool()
