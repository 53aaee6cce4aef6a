"""Blocks of GPU memory, and the pool that they come from."""

from .._machine import Lease, machine


class OutOfMemoryError(MemoryError):
    """The GPU has no room for a block."""

    def __init__(self, size, total, limit=0):
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
            + (f", limit set to: {limit:,} bytes)." if limit else ").")
        )


class Memory:
    """A block of its own."""

    def __init__(self, size):
        self._allocation = machine.allocate(size)
        self.ptr, self.size, self.device_id = (
            self._allocation.address,
            size,
            self._allocation.device,
        )

    @classmethod
    def of(cls, allocation):
        self = cls.__new__(cls)
        self._allocation = allocation
        self.ptr, self.size, self.device_id = (
            allocation.address,
            allocation.memory.nbytes,
            allocation.device,
        )
        return self

    @property
    def device(self):
        from . import Device

        return Device(self.device_id)


class UnownedMemory:
    """Bytes at an address that somebody else owns."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self._owner, self.ptr, self.size = owner, ptr, size
        self.device_id = machine.device if device_id == -1 else device_id
        self._allocation = machine.find(ptr, size)


class MemoryPointer:
    """A place in a block."""

    def __init__(self, mem, offset):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class MemoryPool:
    """Blocks that are used again. The one that all have counts what a pool that never gives a block
    back would hold.

    allocator   (bytes) -> MemoryPointer, what others get their blocks from, which they keep
    """

    def __init__(self, allocator=None):
        self._allocator = allocator or (lambda size: MemoryPointer(Memory(size), 0))
        self._idle: dict[tuple, list] = {}  # (stream, bytes) -> blocks

    def used_bytes(self):
        return machine.used_bytes.get(machine.device, 0)

    def total_bytes(self):
        return max(machine.peak_bytes.get(machine.device, 0), self.used_bytes())

    def free_bytes(self):
        return self.total_bytes() - self.used_bytes()

    def free_all_blocks(self, stream=None):
        machine.peak_bytes[machine.device] = self.used_bytes()

    def get_limit(self):
        return machine.limit_bytes.get(machine.device, 0)

    def set_limit(self, size=None, fraction=None):
        machine.limit_bytes[machine.device] = (
            int(machine.capacity_bytes * fraction) if size is None else size
        )

    def malloc(self, size):
        if self is pool:
            return MemoryPointer(Memory(size), 0)
        rounded = max(-(-size // 512), 1) * 512
        idle = self._idle.setdefault((machine.stream.address, rounded), [])
        block = idle.pop() if idle else self._allocator(rounded).mem._allocation.block
        return MemoryPointer(Memory.of(Lease(block, idle.append)), 0)


pool = MemoryPool()
