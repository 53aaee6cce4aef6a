"""What communication asks of CuPy, which is imported here and in array/ only."""
import platform
from dataclasses import dataclass

import numpy

from ..array.backend import Device
from ..errors import DeviceError

EVERY_STREAM = "all"            # instead of a stream's address: any stream of the GPU may compute the array


class CudaCopies:
    """Copies, beside whatever else runs on the GPU, and page-locked host memory. Imports CuPy when it is made.

    Copies to the host have one stream and copies to the GPU another, so that both directions of the bus are used at once; copies
    within GPU memory have a third. None waits for the streams of kernels: whoever begins a copy has synchronized those.
    """

    def __init__(self):
        import cupy
        self._cupy, self._cuda, self._runtime = cupy, cupy.cuda, cupy.cuda.runtime
        self._loads, self._stores, self._within = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))

    def synchronize(self, stream):
        """Wait for this stream (its address); EVERY_STREAM: for the whole GPU, since the producer did not say."""
        self._runtime.deviceSynchronize() if stream == EVERY_STREAM else self._runtime.streamSynchronize(stream)

    def begin_to_host(self, address: int, array) -> None:
        """Begin to copy array.nbytes bytes at this GPU address into the array, which is page-locked; see loaded()."""
        self._runtime.memcpyAsync(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost, self._loads.ptr)

    def begin_to_device(self, array, address: int) -> None:
        """Begin to copy the array, which is page-locked, to the GPU address; see stored()."""
        self._runtime.memcpyAsync(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice, self._stores.ptr)

    def begin_within(self, target: int, source: int, num_bytes: int) -> None:
        """Begin to copy from one GPU address to another, on this GPU or another one that it can reach; see copied()."""
        if num_bytes:
            self._runtime.memcpyAsync(target, source, num_bytes, self._runtime.memcpyDeviceToDevice, self._within.ptr)

    def loaded(self):
        """The end of all copies to the host begun so far; synchronize() waits for it."""
        return _end_of(self._cuda, self._loads)

    def stored(self):
        """The end of all copies to the GPU begun so far; synchronize() waits for it."""
        return _end_of(self._cuda, self._stores)

    def copied(self):
        """The end of all copies within GPU memory begun so far; synchronize() waits for it."""
        return _end_of(self._cuda, self._within)

    def finish_kernels(self):
        """Wait for what CuPy has launched on this thread's current stream."""
        self._cuda.get_current_stream().synchronize()

    def flat(self, port):
        """port's array as CuPy's, [size], a view."""
        return self._cupy.asarray(port.array).reshape(-1)

    def pinned(self, size: int, dtype):
        """size -> [size] page-locked, contents undefined."""
        memory = self._cuda.alloc_pinned_memory(max(size * dtype.itemsize, 1))
        return numpy.ndarray((size,), dtype, buffer=memory)


class CollectiveStream:
    """A stream for collectives that work on GPU memory, beside the streams of kernels. Imports CuPy when it is made."""

    def __init__(self):
        import cupy
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.address = self._stream.ptr

    def follow(self, *ports) -> None:
        """What is put on the stream from now on comes after what has been launched on those that compute these arrays."""
        for producer in {port.stream for port in ports} - {None}:
            if producer == EVERY_STREAM:
                self._runtime.deviceSynchronize()
            else:
                event = self._cupy.cuda.Event(disable_timing=True)
                self._runtime.eventRecord(event.ptr, producer)
                self._stream.wait_event(event)

    def current(self):
        """Context manager: CuPy launches kernels on this stream."""
        return self._stream

    def flat(self, port):
        """port's array as CuPy's, [size], a view."""
        return self._cupy.asarray(port.array).reshape(-1)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """From one GPU address to another, on the stream."""
        if num_bytes and target != source:
            self._runtime.memcpyAsync(target, source, num_bytes, self._runtime.memcpyDeviceToDevice, self.address)

    def end(self):
        """The end of all that has been put on the stream; synchronize() waits for it, `done` says whether it is reached."""
        return _end_of(self._cupy.cuda, self._stream)


def _end_of(cuda, stream):
    event = cuda.Event(disable_timing=True)
    event.record(stream)
    return event


def nccl_module():
    """CuPy's bindings of NCCL. Errors: DeviceError that says what is missing."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise DeviceError(f"CuPy finds no NCCL ({error}); install nvidia-nccl-cu12 or nvidia-nccl-cu13, or load the site's "
                          "module") from None
    if not getattr(nccl, "available", True):
        raise DeviceError("this CuPy was built without NCCL; install the cupy-cuda12x or cupy-cuda13x wheel")
    return nccl


@dataclass(frozen=True)
class GpuSeat:
    """The GPU that a rank takes.

    host     of the rank; with bus, the PCI address, it names the GPU in the job
    ordinal  among those that the rank sees; num_visible: how many these are
    """

    host: str
    bus: str
    ordinal: int
    num_visible: int
    name: str
    total_bytes: int
    free_bytes: int

    @property
    def place(self) -> str:
        """Names the GPU in messages."""
        return f"GPU {self.bus} on {self.host}"


def gpu_seat(local_rank: int) -> GpuSeat:
    """The GPU of the rank with this number on its node, which becomes the current one. Errors: DeviceError if there is none."""
    device = Device("cuda", ordinal=local_rank)
    runtime = device.xp.cuda.runtime
    name = runtime.getDeviceProperties(device.ordinal)["name"]
    free, total = runtime.memGetInfo()
    return GpuSeat(platform.node(), runtime.deviceGetPCIBusId(device.ordinal), device.ordinal, runtime.getDeviceCount(),
                   name.decode() if isinstance(name, bytes) else name, total, free)
