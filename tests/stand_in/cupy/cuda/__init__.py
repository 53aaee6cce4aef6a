"""Devices, streams, events and memory."""

from contextlib import contextmanager

from .._machine import machine
from . import cublas, device, graph, memory, nvrtc, pinned_memory, runtime, stream
from .graph import Graph
from .memory import Memory, MemoryPointer, MemoryPool, UnownedMemory
from .pinned_memory import PinnedMemory, PinnedMemoryPointer, PinnedMemoryPool
from .stream import Event, ExternalStream, Stream, get_current_stream, get_elapsed_time


class Device:
    """One GPU, by its number; None: the current one."""

    def __init__(self, device=None):
        self.id = machine.device if device is None else int(device)
        self._before = []

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __enter__(self):
        self._before.append(machine.device)
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *args):
        runtime.setDevice(self._before.pop())

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def use(self):
        runtime.setDevice(self.id)

    def synchronize(self):
        with self:
            runtime.deviceSynchronize()

    @property
    def mem_info(self):
        with self:
            return runtime.memGetInfo()

    @property
    def compute_capability(self):
        return "90"

    @property
    def pci_bus_id(self):
        return runtime.deviceGetPCIBusId(self.id)


def alloc_pinned_memory(size):
    return pinned_memory.pool.malloc(size)


@contextmanager
def using_allocator(allocator=None):
    before = getattr(machine.here, "allocator", None)
    machine.here.allocator = allocator
    try:
        yield
    finally:
        machine.here.allocator = before


def is_available():
    return machine.num_devices > 0


__all__ = [
    "Device",
    "Event",
    "ExternalStream",
    "Graph",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "Stream",
    "UnownedMemory",
    "alloc_pinned_memory",
    "cublas",
    "device",
    "get_current_stream",
    "get_elapsed_time",
    "graph",
    "is_available",
    "memory",
    "nvrtc",
    "pinned_memory",
    "runtime",
    "stream",
    "using_allocator",
]
