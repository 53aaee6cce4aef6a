"""The CUDA runtime, by address."""

import ctypes

from .._machine import Queue, machine
from . import memory
from . import stream as streams
from .pinned_memory import PinnedMemory

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = (
    range(5)
)
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = range(4)
eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
streamDefault, streamNonBlocking, streamLegacy, streamPerThread = 0, 1, 1, 2
hostAllocDefault, hostAllocPortable, hostAllocMapped, hostAllocWriteCombined = 0, 1, 2, 4
is_hip = False
_ERRORS = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    801: "cudaErrorNotSupported: operation not supported",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    901: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during "
    "capture",
}
_held: dict[int, object] = {}  # what malloc, hostAlloc and streamCreate gave out


class CUDARuntimeError(RuntimeError):
    """What the runtime answers to a wrong call."""

    def __init__(self, status):
        self.status = status
        super().__init__(_ERRORS.get(status, f"cudaError{status}"))


class PointerAttributes:
    """What is known about an address."""

    def __init__(self, device, devicePointer, hostPointer, type):
        self.device, self.devicePointer, self.hostPointer, self.type = (
            device,
            devicePointer,
            hostPointer,
            type,
        )


# ---- devices -------------------------------------------------------------------------------------


def getDeviceCount():
    if machine.num_devices == 0:
        raise CUDARuntimeError(100)
    return machine.num_devices


def getDevice():
    return machine.device


def setDevice(device):
    if not 0 <= device < machine.num_devices:
        raise CUDARuntimeError(101)
    machine.device = device


def deviceSynchronize():
    machine.waits()
    for queue in machine.all_streams(machine.device):
        queue.complete()


def deviceCanAccessPeer(device, peerDevice):
    return 0


def deviceGetPCIBusId(device):
    return f"0000:{device + 1:02X}:00.0"


def getDeviceProperties(device):
    return {
        "name": b"stand-in",
        "totalGlobalMem": machine.capacity_bytes,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "sharedMemPerBlockOptin": 227 << 10,
        "sharedMemPerMultiprocessor": 228 << 10,
        "pciBusID": device + 1,
    }


def runtimeGetVersion():
    return 12090


def driverGetVersion():
    return 12090


def memGetInfo():
    return machine.capacity_bytes - memory.pool.total_bytes(), machine.capacity_bytes


# ---- memory --------------------------------------------------------------------------------------


def malloc(size):
    block = memory.Memory(size)
    _held[block.ptr] = block
    return block.ptr


def free(ptr):
    if _held.pop(ptr, None) is None:
        raise CUDARuntimeError(1)


def hostAlloc(size, flags):
    block = PinnedMemory(size, flags)
    _held[block.ptr] = block
    return block.ptr


def freeHost(ptr):
    free(ptr)


def hostRegister(ptr, size, flags):
    if machine.is_pinned(ptr, size):
        raise CUDARuntimeError(1)
    with machine.lock:
        machine.pinned[ptr] = size


def hostUnregister(ptr):
    with machine.lock:
        if machine.pinned.pop(ptr, None) is None:
            raise CUDARuntimeError(1)


def pointerGetAttributes(ptr):
    allocation = machine.find(ptr)
    if allocation is not None:
        return PointerAttributes(allocation.device, ptr, 0, memoryTypeDevice)
    is_pinned = machine.is_pinned(ptr)
    return PointerAttributes(
        -2 if not is_pinned else 0, 0, ptr, memoryTypeHost if is_pinned else memoryTypeUnregistered
    )


def memcpy(dst, src, size, kind):
    if size:
        queue = machine.null_stream(machine.device)
        ends = _ends(queue, dst, src, size, kind)
        queue.synchronize()
        ctypes.memmove(dst, src, size)
        _mark_written(ends[1], queue, dst, size)


def memcpyAsync(dst, src, size, kind, stream):
    if size:
        queue = machine.stream_at(stream)
        ends = _ends(queue, dst, src, size, kind)
        host = src if kind == memcpyHostToDevice else dst
        if kind in (memcpyHostToDevice, memcpyDeviceToHost) and not machine.is_pinned(host, size):
            machine.mistake(
                "memcpyAsync of host memory that is not page-locked, which makes the host wait"
            )
        places = [
            (address, size) for address, end in ((src, ends[0]), (dst, ends[1])) if end is not None
        ]
        machine.on_the_way.extend(places)

        def work():
            for place in places:
                machine.on_the_way.remove(place)
            ctypes.memmove(dst, src, size)

        queue.put(work)
        _mark_written(ends[1], queue, dst, size)


def memset(ptr, value, size):
    queue = machine.null_stream(machine.device)
    queue.synchronize()
    allocation = machine.find(ptr, size)
    machine.check_seen(queue, allocation, "memset")
    ctypes.memset(ptr, value, size)
    _mark_written(allocation, queue, ptr, size)


def memsetAsync(ptr, value, size, stream):
    queue, allocation = machine.stream_at(stream), machine.find(ptr, size)
    machine.check_seen(queue, allocation, "memsetAsync")
    queue.put(lambda: ctypes.memset(ptr, value, size))
    _mark_written(allocation, queue, ptr, size)


def _ends(queue, dst, src, size, kind):
    """The allocations (source, target) of a copy, None for the host; checked and noted."""
    source, target = machine.find(src, size), machine.find(dst, size)
    found = {(False, False): 0, (False, True): 1, (True, False): 2, (True, True): 3}[
        source is not None, target is not None
    ]
    if kind not in (found, memcpyDefault):
        raise CUDARuntimeError(1)
    for allocation, address in ((source, src), (target, dst)):
        if allocation is not None:
            start = address - allocation.address
            machine.check_seen(queue, allocation, "a copy", start, start + size)
    if found in (memcpyHostToDevice, memcpyDeviceToHost):
        machine.note("copy to device" if found == memcpyHostToDevice else "copy to host", size)
    return source, target


def _mark_written(allocation, queue, address, size):
    if allocation is not None:
        queue.tick += 1
        machine.note_written(
            allocation, queue, address - allocation.address, address - allocation.address + size
        )


def ipcGetMemHandle(devPtr):
    raise CUDARuntimeError(801)  # fake_ipc.py has one that works, for ranks that are threads


# ---- streams and events --------------------------------------------------------------------------


def streamCreate():
    return streamCreateWithFlags(streamDefault)


def streamCreateWithFlags(flags):
    address = next(streams._addresses)
    queue = Queue(machine, machine.device, address, non_blocking=bool(flags & streamNonBlocking))
    with machine.lock:
        machine.streams[address] = _held[address] = queue
    return address


def streamDestroy(stream):
    _stream(stream).finish()
    del _held[stream]


def _stream(address):
    try:
        return machine.stream_at(address)
    except KeyError:
        raise CUDARuntimeError(400) from None


def streamSynchronize(stream):
    _stream(stream).synchronize()


def streamQuery(stream):
    """600: not ready; what is late on purpose is done when it has been asked for."""
    return 600 if _stream(stream).waiting else 0


def streamWaitEvent(stream, event, flags=0):
    streams.wait_for(_stream(stream), streams.points[event])


def eventCreate():
    return eventCreateWithFlags(eventDefault)


def eventCreateWithFlags(flags):
    address = next(streams._addresses)
    streams.points[address] = streams.Point()
    return address


def eventDestroy(event):
    if streams.points.pop(event, None) is None:
        raise CUDARuntimeError(400)


def eventRecord(event, stream):
    streams.points[event].set(_stream(stream))


def eventSynchronize(event):
    streams.points[event].synchronize()


def eventQuery(event):
    return 0 if streams.points[event].ask() else 600
