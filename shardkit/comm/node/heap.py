"""A heap of memory that the ranks of a node can map.

Arrays that are made there need not be packed to be read by neighbors.

    rank 0   | mailbox | mailbox | parameters | gradients | ...     addresses without memory |
    rank 1   | mailbox | mailbox | parameters | ...        the same, in its own file; each maps all

The file has no name (memfd_create) and is as large as the machine's memory; only pages that are
written to exist. Not MPI-3 windows, because those are allocated by all ranks together, mostly live
in /dev/shm, which is 64 MB in a container, and cannot grow; a neighbor finds an array here by its
offset alone. What is freed is used again for arrays of about its size.
"""

import mmap
import os
import threading
import weakref
from math import prod

import numpy

from ...array.arena import ALIGNMENT_BYTES

PAGE_BYTES = mmap.PAGESIZE
ADDRESS_BYTES = 1 << 45  # for the heaps of a node together, a quarter of what a process has
IDLE_BYTES = 64 << 20  # that are kept for the next array before memory is given back
TOKEN_BYTES = 16


class Heap:
    """The heap of one rank. Arrays are freed when the last view of them is garbage.

    Errors: OSError if the system has no such memory.
    """

    def __init__(self, num_bytes: int):
        self.num_bytes = num_bytes
        self.file = os.memfd_create("shardkit")
        os.ftruncate(self.file, self.num_bytes)
        self.memory = Mapping(self.file, self.num_bytes)
        self.token = os.urandom(TOKEN_BYTES)
        self.memory.map[:TOKEN_BYTES] = self.token
        self._end = PAGE_BYTES
        # A finalizer may run inside of a locked section of its own thread.
        self._lock = threading.RLock()
        self._idle: dict[int, list[int]] = {}  # bytes -> offsets of blocks with memory behind them
        self._empty: dict[int, list[int]] = {}  # the same, without
        self._idle_bytes = self._lent_bytes = 0
        self._lent: dict[
            int, tuple
        ] = {}  # id of the weak reference to an array -> (the reference, bytes, offset)

    def empty(self, shape, dtype):
        """Return an array, contents undefined, on a cache line; None if the heap is full."""
        dtype = numpy.dtype(dtype)
        size = block_bytes((shape if isinstance(shape, int) else prod(shape)) * dtype.itemsize)
        with self._lock:
            offset = self._take(size)
            if offset is None:
                return None
            array = numpy.ndarray(shape, dtype, self.memory.map, offset)
            reference = weakref.ref(array, self._come_back)
            self._lent[id(reference)] = reference, size, offset
            self._lent_bytes += size
        return array

    def _take(self, size):
        for blocks in (self._idle, self._empty):
            if blocks.get(size):
                self._idle_bytes -= size if blocks is self._idle else 0
                return blocks[size].pop()
        offset = self._end + (-self._end % PAGE_BYTES if size >= PAGE_BYTES else 0)
        if offset + size > self.num_bytes:
            return None
        self._end = offset + size
        return offset

    def _come_back(self, reference):
        with self._lock:
            _, size, offset = self._lent.pop(id(reference))
            self._lent_bytes -= size
            if size >= PAGE_BYTES and self._idle_bytes + size > max(
                IDLE_BYTES, self._lent_bytes // 4
            ):
                self.memory.map.madvise(mmap.MADV_REMOVE, offset, size)
                self._empty.setdefault(size, []).append(offset)
            else:
                self._idle.setdefault(size, []).append(offset)
                self._idle_bytes += size

    @property
    def lent_bytes(self) -> int:
        """The bytes of arrays that are alive, rounded up to blocks."""
        return self._lent_bytes

    def hide(self) -> None:
        """Let no other process map it from now on. The memory goes with the last mapping."""
        os.close(self.file)


class Mapping:
    """A heap as this process sees it.

    address  of its first byte
    """

    def __init__(self, file: int, num_bytes: int):
        self.map = mmap.mmap(file, num_bytes)
        self.map.madvise(mmap.MADV_DONTDUMP)
        self.address = numpy.frombuffer(self.map, numpy.uint8, 1).ctypes.data

    @classmethod
    def of_neighbor(cls, process: int, file: int, num_bytes: int, token: bytes) -> "Mapping":
        """Return the heap that is this open file of that process.

        Errors: OSError if it is not, or is out of reach.
        """
        own = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            # A process of another machine may have the same number.
            if os.pread(own, TOKEN_BYTES, 0) != token:
                raise OSError(f"process {process} is not the neighbor that was meant")
            return cls(own, num_bytes)
        finally:
            os.close(own)


def block_bytes(num_bytes: int) -> int:
    """Return the size of the block for so many bytes.

    At most an eighth more, and whole cache lines, or whole pages.
    """
    num_bytes = max(num_bytes, ALIGNMENT_BYTES)
    unit = PAGE_BYTES if num_bytes >= PAGE_BYTES else ALIGNMENT_BYTES
    step = max(unit, 1 << max(num_bytes.bit_length() - 4, 0))
    return -(-num_bytes // step) * step


def machine_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
