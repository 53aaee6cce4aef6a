"""What communication asks of CuPy, which is imported here and in array/ only."""

import platform
from contextlib import contextmanager
from dataclasses import dataclass

import numpy

from ...array.device import Device
from ...errors import DeviceError

EVERY_STREAM = "all"  # instead of a stream's address: any stream of the GPU may compute the array


class CudaCopies:
    """Copies, beside whatever else runs on the GPU, and page-locked host memory. Imports CuPy when
    it is made.

    Copies to the host have one stream and copies to the GPU another, so that both directions of the
    bus are used at once; copies within GPU memory have a third. None waits for the streams of
    kernels: whoever begins a copy has synchronized those.
    """

    def __init__(self):
        import cupy

        self._cupy, self._cuda, self._runtime = cupy, cupy.cuda, cupy.cuda.runtime
        self._loads, self._stores, self._within = (
            cupy.cuda.Stream(non_blocking=True) for _ in range(3)
        )

    def synchronize(self, stream):
        """Wait for this stream (its address); EVERY_STREAM: for the whole GPU, since the producer
        did not say.
        """
        self._runtime.deviceSynchronize() if stream == EVERY_STREAM else self._runtime.streamSynchronize(
            stream
        )

    def begin_to_host(self, address: int, array) -> None:
        """Begin to copy array.nbytes bytes at this GPU address into the array, which is
        page-locked; see loaded().
        """
        self._runtime.memcpyAsync(
            array.ctypes.data,
            address,
            array.nbytes,
            self._runtime.memcpyDeviceToHost,
            self._loads.ptr,
        )

    def begin_to_device(self, array, address: int) -> None:
        """Begin to copy the array, which is page-locked, to the GPU address; see stored()."""
        self._runtime.memcpyAsync(
            address,
            array.ctypes.data,
            array.nbytes,
            self._runtime.memcpyHostToDevice,
            self._stores.ptr,
        )

    def begin_within(self, target: int, source: int, num_bytes: int) -> None:
        """Begin to copy from one GPU address to another, on this GPU or another one that it can
        reach; see copied().
        """
        if num_bytes:
            self._runtime.memcpyAsync(
                target, source, num_bytes, self._runtime.memcpyDefault, self._within.ptr
            )

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
    """A stream for collectives that work on GPU memory, beside the streams of kernels. Imports CuPy
    when it is made.
    """

    def __init__(self):
        import cupy

        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.address = self._stream.ptr

    def follow(self, *ports) -> None:
        """What is put on the stream from now on comes after what has been launched on those that
        compute these arrays.
        """
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
            self._runtime.memcpyAsync(
                target, source, num_bytes, self._runtime.memcpyDeviceToDevice, self.address
            )

    def end(self):
        """The end of all that has been put on the stream; synchronize() waits for it, `done` says
        whether it is reached.
        """
        return _end_of(self._cupy.cuda, self._stream)


def _end_of(cuda, stream):
    event = cuda.Event(disable_timing=True)
    event.record(stream)
    return event


class SharedBlock:
    """An allocation of this rank's GPU that other processes of the node may open, and those of
    theirs that it has opened.

    handle   64 bytes for the others
    Errors: DeviceError where CUDA refuses: in containers that do not share processes, on GPUs that
    cannot reach each other.
    """

    def __init__(self, num_bytes: int):
        import cupy

        self._runtime, self.num_bytes = cupy.cuda.runtime, num_bytes
        self._others: dict[int, int] = {}  # rank -> address in this process
        with _cuda_errors(self._runtime, "GPU memory cannot be shared between processes"):
            self.address = self._runtime.malloc(num_bytes)
            self.handle = self._runtime.ipcGetMemHandle(self.address)

    def open(self, rank: int, handle: bytes) -> None:
        """Make the block that this rank gave the handle of readable here."""
        with _cuda_errors(self._runtime, f"the GPU memory of rank {rank} cannot be opened"):
            self._others[rank] = self._runtime.ipcOpenMemHandle(handle)

    def of_rank(self, rank: int) -> int:
        """Where the rank's block is in this process."""
        return self._others[rank]

    def fill(self, value: int) -> None:
        """Set all bytes of this rank's block."""
        self._runtime.memset(self.address, value, self.num_bytes)
        self._runtime.deviceSynchronize()

    def look(self, rank: int) -> int:
        """The last byte of the rank's block."""
        byte = numpy.zeros(1, numpy.uint8)
        with _cuda_errors(self._runtime, f"the GPU memory of rank {rank} cannot be read"):
            self._runtime.memcpy(
                byte.ctypes.data,
                self._others[rank] + self.num_bytes - 1,
                1,
                self._runtime.memcpyDeviceToHost,
            )
        return int(byte[0])

    def close_others(self) -> None:
        """What was opened; before any of its owners closes it."""
        while self._others:
            self._runtime.ipcCloseMemHandle(self._others.popitem()[1])

    def close(self) -> None:
        """Give all back."""
        self.close_others()
        self._runtime.free(self.address)


@contextmanager
def _cuda_errors(runtime, what: str):
    """An error of the CUDA runtime as a DeviceError."""
    try:
        yield
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f'{what}: CUDA reports "{error}"') from None


def nccl_module():
    """CuPy's bindings of NCCL. Errors: DeviceError that says what is missing."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise DeviceError(
            f"CuPy finds no NCCL ({error}); install nvidia-nccl-cu12 or nvidia-nccl-cu13, or load the site's "
            "module"
        ) from None
    if not getattr(nccl, "available", True):
        raise DeviceError(
            "this CuPy was built without NCCL; install the cupy-cuda12x or cupy-cuda13x wheel"
        )
    return nccl


def nccl_version() -> str:
    """As "2.27.3". Errors: DeviceError that says what is missing."""
    number = nccl_module().get_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


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
    """The GPU of the rank with this number on its node, which becomes the current one. Errors:
    DeviceError if there is none.
    """
    device = Device("cuda", ordinal=local_rank)
    runtime = device.xp.cuda.runtime
    name = runtime.getDeviceProperties(device.ordinal)["name"]
    free, total = runtime.memGetInfo()
    return GpuSeat(
        platform.node(),
        runtime.deviceGetPCIBusId(device.ordinal),
        device.ordinal,
        runtime.getDeviceCount(),
        name.decode() if isinstance(name, bytes) else name,
        total,
        free,
    )
