"""An arena: memory that is reused as soon as the last view of an array in it is garbage.

    with arena.in_use():                    in this thread: ranks may be threads
        a = empty((4096, 128), "float32")   a block of the arena
        b = a[1:]; del a                    still used: b is a view of it
        del b                               free again

    segment   | used | free |   used   |            free             |

A segment is one mapping of memory, in huge pages where the system has them. An array gets the block
of its size that came back last, which is still in the cache. If there is none, all that came back
becomes free, neighbors as one block, and the array gets the smallest block that is large enough;
the rest of that block stays free. If no block is large enough, the arena grows by a segment. A
step gives back everything that it took, so after the first step, whose segments become one, the
operating system is not asked again. Small arrays are left to NumPy, which keeps them in the cache.
"""

import mmap
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from math import prod

import numpy

from ..scoped import Scoped

ALIGNMENT_BYTES = 64  # one cache line, and the widest vector register in use
SMALL_BYTES = 1 << 15  # arrays of up to this size are NumPy's own
HUGE_PAGE_BYTES = 1 << 21
GONE = -1  # in place of the bytes of an array
_GROWTH = 8  # a new segment is at least this fraction of what there is

_current: ContextVar["Arena | Meter | None"] = ContextVar(
    "shardkit_arena", default=None
)  # of this thread


def empty(shape, dtype, xp=numpy):
    """Return a new array of xp, C-contiguous, contents undefined, in the arena that is in use."""
    arena = _current.get()
    return xp.empty(shape, dtype) if arena is None or xp is not numpy else arena.empty(shape, dtype)


def is_arena_in_use() -> bool:
    """Return True if an arena is in use in this thread."""
    return _current.get() is not None


class Meter:
    """What stands in the place of an arena to count what one would hold: small arrays too, and
    nothing is reused.

    made    bytes of all arrays so far
    used    bytes of those that are alive
    peak    the most that were at once since reset_peak()
    events  (number of an array, its bytes) as it came, (number, GONE) as it went
    """

    def __init__(self):
        self.made = self.used = self.peak = 0
        self.events: list[tuple[int, int]] = []
        self._num_arrays = 0

    def in_use(self) -> Scoped:
        """Inside, arrays that `empty` makes in this thread are counted."""
        return Scoped(_current, self)

    def empty(self, shape, dtype):
        """Return an array of this shape, contents undefined."""
        array = numpy.empty(shape, dtype)
        self.made += array.nbytes
        number = self.new_number()
        self._add(array.nbytes, (number, array.nbytes))
        weakref.finalize(array, self._add, -array.nbytes, (number, GONE))
        return array

    def new_number(self) -> int:
        """Return the number of one more array."""
        self._num_arrays += 1
        return self._num_arrays

    def reset_peak(self) -> None:
        """Start anew from what is alive."""
        self.peak = self.used

    def _add(self, num_bytes, event):
        self.events.append(event)
        self.used += num_bytes
        self.peak = max(self.peak, self.used)


class Arena:
    """Host memory of one rank; on a GPU CuPy's pool does the same work, and this only counts.

    device    a Device
    purpose   what the bytes are counted under in device.accounts, used or free
    maps      where segments come from; None: mapped()
    """

    def __init__(self, device, *, purpose: str, maps: Callable[[int, str], tuple] | None = None):
        self.device, self._purpose = device, purpose
        self._maps = maps or mapped
        self._begin()

    def _begin(self):
        """Start with no segments.

        Segments are numbered by one running count of bytes, with gaps between them.
        """
        self._segments: list[tuple] = []  # (start, mapping, where the start is in it)
        self._free: list[tuple] = []  # (size, start), sorted
        self._size_at: dict[int, int] = {}  # start of a free block -> its size
        self._start_of: dict[int, int] = {}  # stop of a free block -> its start
        # id of the weak reference to an array -> (the reference, its block)
        self._used: dict[int, tuple] = {}
        # Blocks (start, size, mapping, where the start is in it) of arrays that are gone.
        self._came_back: list[tuple] = []
        # size -> blocks that came back and are not joined to free ones.
        self._idle: dict[int, list[tuple]] = {}
        self._next_start = 0  # of the next segment
        self.num_bytes = 0  # used and free

    def in_use(self) -> Scoped:
        """Inside, large arrays that `empty` makes in this thread come from here."""
        self._join_segments()
        return Scoped(_current, self if self.device.kind == "cpu" else None)

    def empty(self, shape, dtype):
        """Return an array of this shape, contents undefined; a large one starts on a cache line."""
        if self.device.kind != "cpu":
            return self.device.empty(shape, dtype, purpose=self._purpose)
        dtype = numpy.dtype(dtype)
        num_bytes = (shape if isinstance(shape, int) else prod(shape)) * dtype.itemsize
        if num_bytes <= SMALL_BYTES:
            return numpy.empty(shape, dtype)
        block = self._block(-(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        array = numpy.ndarray(shape, dtype, block[2], block[3])
        reference = weakref.ref(array, self._come_back)
        self._used[id(reference)] = reference, block
        return array

    def _come_back(self, reference):
        """Note that an array is gone, in any thread and at any time; leave free blocks alone."""
        came_back = self._came_back  # before the array is off the list: clear() makes a new one
        used = self._used.pop(id(reference), None)
        if used is not None:
            came_back.append(used[1])

    @property
    def used_bytes(self) -> int:
        """The bytes of blocks that arrays use."""
        self._join_idle()
        return self.num_bytes - sum(self._size_at.values())

    def clear(self) -> None:
        """Give memory back to the system: now, or when the last array in it is gone."""
        if self.device.kind != "cpu":
            self.device.xp.get_default_memory_pool().free_all_blocks()
        self.device.accounts.add(self._purpose, -self.num_bytes)
        self._begin()  # arrays in use hold the mapping that they lie in

    # ---- blocks ----------------------------------------------------------------------------------

    def _block(self, size: int) -> tuple:
        """Return a block of this size."""
        self._collect()
        same = self._idle.get(size)
        if same:
            return same.pop()
        self._join_idle()
        start = self._take(size)
        first, memory, offset = self._segments[bisect_left(self._segments, (start + 1,)) - 1]
        return start, size, memory, offset + start - first

    def _collect(self):
        while self._came_back:
            block = self._came_back.pop()
            self._idle.setdefault(block[1], []).append(block)

    def _join_idle(self):
        """Make free blocks of all that came back."""
        self._collect()
        for blocks in self._idle.values():
            for start, size, _, _ in blocks:
                self._give(start, size)
        self._idle.clear()

    def _take(self, size: int) -> int:
        """Return the start of a block of this size."""
        at = bisect_left(self._free, (size,))
        if at == len(self._free):
            self._grow(size)
            at = bisect_left(self._free, (size,))
        found, start = self._free[at]
        self._remove(start)
        if found > size:
            self._insert(start + size, found - size)
        return start

    def _give(self, start: int, size: int):
        """Make this block free, joined with its free neighbors."""
        if start + size in self._size_at:
            size += self._remove(start + size)
        if start in self._start_of:
            start = self._start_of[start]
            size += self._remove(start)
        self._insert(start, size)

    def _insert(self, start, size):
        self._size_at[start], self._start_of[start + size] = size, start
        insort(self._free, (size, start))

    def _remove(self, start) -> int:
        size = self._size_at.pop(start)
        del self._start_of[start + size]
        del self._free[bisect_left(self._free, (size, start))]
        return size

    # ---- segments --------------------------------------------------------------------------------

    def _grow(self, size: int):
        """Add a segment, with a free block of at least this size."""
        size = _round_up(max(size, self.num_bytes // _GROWTH), HUGE_PAGE_BYTES)
        self._segments.append((self._next_start, *self._maps(size, "activations")))
        self._insert(self._next_start, size)
        self._next_start += size + HUGE_PAGE_BYTES
        self.num_bytes += size
        self.device.accounts.add(self._purpose, size)

    def _join_segments(self):
        """If no array uses them, replace the segments by one of their size.

        The next step then finds one block instead of many.
        """
        self._join_idle()
        if len(self._segments) > 1 and not self._used:
            num_bytes = self.num_bytes
            self.clear()
            self._grow(num_bytes)


def held_bytes(events: Iterable[tuple[int, int]], device) -> tuple[int, int]:
    """Return the bytes that an arena holds in steps like this, and the most that arrays use of
    them, without any memory.

    events   as a Meter has them
    """
    arena = Arena(device, purpose="none", maps=lambda num_bytes, purpose: (None, 0))
    most, events = 0, tuple(events)
    for _ in range(2):
        arena._join_segments()
        used = 0
        blocks: dict[int, tuple] = {}
        for number, event in events:
            if event == GONE and number in blocks:
                block = blocks.pop(number)
                used -= block[1]
                arena._came_back.append(block)
            elif event > SMALL_BYTES:
                blocks[number] = arena._block(-(-event // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
                used += blocks[number][1]
                most = max(most, used)
        arena._came_back += blocks.values()
    return arena.num_bytes, most


def mapped(num_bytes: int, purpose: str) -> tuple[mmap.mmap, int]:
    """Return memory, and where in it so many bytes start, in huge pages but for the rest.

    It is no ndarray, so that views of views refer to the array. Nothing is resident behind them.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=flags)
    except OSError as error:
        raise MemoryError(f"no {num_bytes} bytes for {purpose}: {error}") from None
    start = -numpy.frombuffer(memory, numpy.uint8).ctypes.data % HUGE_PAGE_BYTES
    in_huge_pages = num_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if in_huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE, start, in_huge_pages)
    return memory, start


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
