"""Devices: where arrays live, who made them, and how many bytes of them are alive.

    device = Device("cpu")                  or "cuda", which imports CuPy and needs a GPU
    weights = device.empty(1000, "float32", purpose="parameters")
    device.bytes_in_use("parameters")       4000, until the last view of `weights` is garbage

CuPy is imported when a CUDA device is asked for (gpu/library.py), and not before.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy

from ..on_gpu import gpu_part
from .accounts import Accounts, bytes_text
from .arena import ALIGNMENT_BYTES, HUGE_PAGE_BYTES, mapped
from .copies import Copies
from .waits import await_stream


class Device:
    """A place for arrays: `kind` is "cpu" or "cuda"; `xp` is the module that computes there.

    ordinal  which GPU, counted over those that are visible, and round again: a rank gives its
             number on its node
    Errors: DeviceError if "cuda" is asked for and CuPy, the driver or the GPU is missing;
    ValueError on another name.
    """

    def __init__(self, kind: str = "cpu", *, ordinal: int = 0):
        if kind not in ("cpu", "cuda"):
            raise ValueError(f'device {kind!r} is unknown; wanted "cpu" or "cuda"')
        self.kind = kind
        self.xp = numpy if kind == "cpu" else gpu_part("library").cupy_with_gpu()
        self.ordinal = ordinal % self.xp.cuda.runtime.getDeviceCount() if kind == "cuda" else 0
        self.accounts = Accounts()
        self._heap = None
        self.select()

    def select(self) -> None:
        """Make it the device of this thread: a new thread has the first GPU, whichever is ours."""
        if self.kind == "cuda":
            self.xp.cuda.Device(self.ordinal).use()

    def drawing_on(self, heap) -> "Device":
        """Take arrays on the CPU from this heap from now on, while it has room; returns self.

        heap   has empty(shape, dtype) -> array that starts on a cache line, or None; None: ordinary
               memory
        """
        self._heap = heap
        return self

    def empty(self, shape, dtype="float32", *, purpose: str):
        """Return an uninitialized array, counted under `purpose`, that starts on a cache line.

        Errors: DeviceMemoryError, a MemoryError, if the GPU has no room; it names what takes the
        most there.
        """
        if self.kind == "cpu":
            base = self._aligned(shape, dtype, purpose)
        else:
            base = gpu_part("memory").empty(self, shape, dtype, purpose)
        return self.accounts.watch(base, purpose)

    def memory(self) -> "DeviceMemory":
        """Return what the GPU holds beside what the accounts know; zeros on the CPU."""
        if self.kind == "cpu":
            return DeviceMemory(0, 0, 0, 0)
        pool = self.xp.get_default_memory_pool()
        return DeviceMemory(
            pool.used_bytes(), pool.total_bytes(), *self.xp.cuda.runtime.memGetInfo()
        )

    def memory_text(self) -> str:
        """Describe what takes most memory; on a GPU also what the pool and other processes have."""
        table = sorted(self.accounts.table().items(), key=lambda entry: -entry[1])
        held = ", ".join(f"{purpose} {bytes_text(count)}" for purpose, count in table)
        total = bytes_text(sum(count for _, count in table))
        text = f"the arrays of the model take {total} there ({held})"
        return text if self.kind == "cpu" else f"{text}; {self.memory()}"

    def zeros(self, shape, dtype="float32", *, purpose: str):
        """Return an array like that of `empty`, filled with zero."""
        array = self.empty(shape, dtype, purpose=purpose)
        array.fill(0)
        return array

    def _aligned(self, shape, dtype, purpose):
        """Return an array of fixed alignment: results must not depend on the allocator.

        A large one is in huge pages, which one core reads 1.3 times as fast as small ones.
        """
        dtype = numpy.dtype(dtype)
        array = None if self._heap is None else self._heap.empty(shape, dtype)
        if array is not None:
            return array
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        num_bytes = dtype.itemsize * prod(shape)
        if num_bytes >= HUGE_PAGE_BYTES:
            return numpy.ndarray(shape, dtype, *mapped(num_bytes, purpose))
        block = numpy.empty(num_bytes + ALIGNMENT_BYTES, numpy.uint8)
        start = -block.ctypes.data % ALIGNMENT_BYTES
        return block[start : start + num_bytes].view(dtype).reshape(shape)

    def from_host(self, array):
        """Return the array on this device: itself on the CPU, a copy on a GPU."""
        return self.xp.asarray(array)

    def pinned(self, shape, dtype="float32", *, purpose: str = "staging"):
        """Return a host array for staging: page-locked where a GPU will read it, plain on the CPU.

        Errors: DeviceMemoryError if the system does not lock so much.
        """
        if self.kind == "cpu":
            return self.empty(shape, dtype, purpose=purpose)
        memory = gpu_part("memory").page_locked_array(self, shape, dtype, purpose)
        return self.accounts.watch(memory, purpose)

    @cached_property
    def copies(self) -> Copies:
        """Copies to and from the host, on a GPU beside the computation; for one thread."""
        if self.kind == "cpu":
            return Copies()
        lane_copies = gpu_part("copies").LaneCopies
        return lane_copies(self.xp, BufferPool(self, "uint8", purpose="staging", make=self.pinned))

    def synchronize(self):
        """Wait until everything that was launched on this device is done; no wait on the CPU."""
        if self.kind == "cuda":
            await_stream(self.xp.cuda)

    def bytes_in_use(self, *purposes: str) -> int:
        """Return the bytes alive now, of these purposes or of all."""
        return self.accounts.live_bytes(*purposes)

    def __repr__(self):
        return (
            f"Device({self.kind!r})"
            if self.kind == "cpu"
            else f"Device('cuda', ordinal={self.ordinal})"
        )


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one GPU, as CuPy and the driver count them.

    pool_used   in arrays that are alive, temporaries among them
    pool_held   that CuPy's pool has from the driver; what is not used waits there to be used again
    free, total   of the whole GPU, for all processes
    """

    pool_used: int
    pool_held: int
    free: int
    total: int

    def __str__(self):
        return (
            f"of {bytes_text(self.total)} on the GPU {bytes_text(self.free)} are free, "
            f"{bytes_text(self.pool_held)} are this process's, {bytes_text(self.pool_used)} of "
            "them in use"
        )


class BufferPool:
    """1-D buffers that are taken and given back, so that a run allocates in its first step only.

    take(n) returns the first n elements of the smallest idle buffer that is large enough. If there
    is none, an idle one that is too small is dropped for a new one of n elements: the pool grows to
    the largest set of buffers ever taken together, and no further. FSDP's gathered unit comes from
    here: its memory is one unit, however many there are.
    """

    outlives_views = True  # a buffer that was given back is another's, views of it or not

    def __init__(self, device: Device, dtype, *, purpose: str, make=None):
        self.device = device
        self.dtype = dtype
        self.purpose = purpose
        self._make = make or device.empty  # device.pinned: buffers of page-locked host memory
        self._idle: list = []
        self._out: dict[int, tuple] = {}  # id of the view -> (the view, its buffer)

    def take(self, size: int):
        """Return an array [size], contents undefined."""
        large_enough = [b for b in self._idle if b.size >= size]
        if large_enough:
            # The same one in every step that takes alike.
            buffer = min(large_enough, key=lambda b: (b.size, id(b)))
            self._remove(buffer)
        else:
            if self._idle:
                self._remove(max(self._idle, key=lambda b: b.size))
            buffer = self._make(size, self.dtype, purpose=self.purpose)
        view = buffer[:size]
        self._out[id(view)] = (view, buffer)
        return view

    def give(self, view):
        """Give back exactly what take() returned; no view of it may be used afterwards."""
        self._idle.append(self._out.pop(id(view))[1])

    def places(self) -> list[tuple]:
        """Return [(address, bytes)] of the idle buffers on a GPU, sorted.

        Where the next buffers will lie depends on nothing else.
        """
        return sorted((buffer.data.ptr, buffer.nbytes) for buffer in self._idle)

    def _remove(self, buffer):
        self._idle = [b for b in self._idle if b is not buffer]


class OwnBuffers:
    """1-D buffers that are taken and given back like those of a pool, but each for itself: one that
    was given back keeps its values while there are views of it, and is freed with the last one.

    For buffers of many sizes: no more bytes are alive than are in use.
    """

    outlives_views = False

    def __init__(self, device: Device, dtype, *, purpose: str):
        self.device = device
        self.dtype = dtype
        self.purpose = purpose

    def take(self, size: int):
        """Return an array [size], contents undefined."""
        return self.device.empty(size, self.dtype, purpose=self.purpose)

    def give(self, view):
        """Do nothing: the caller's array is no view of another."""

    def places(self) -> list[tuple]:
        """Return nothing: no buffer is idle."""
        return []
