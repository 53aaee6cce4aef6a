"""What communication asks of CuPy."""

import platform
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy

from ...array.device import Device
from ...array.waits import await_address, await_device, await_event, await_stream
from ...comm.operations import CompleteHandle, Handle
from ...errors import DeviceError

_MOST_RANKS = 8  # named in a message
EVERY_STREAM = "all"  # instead of a stream's address: any stream of the GPU may compute the array


class CudaCopies:
    """Copies beside other work of the GPU, and page-locked host memory; imports CuPy.

    Copies to the host have one stream and copies to the GPU another, so that both directions of the
    bus are used together; copies within GPU memory have a third. None waits for the streams of
    kernels: the caller synchronizes those before it begins a copy.
    """

    def __init__(self):
        import cupy

        self._cupy = cupy
        self._cuda = cupy.cuda
        self._runtime = cupy.cuda.runtime
        self._loads, self._stores, self._within = (
            cupy.cuda.Stream(non_blocking=True) for _ in range(3)
        )

    def synchronize(self, stream):
        """Wait for this stream (its address).

        EVERY_STREAM: for the whole GPU, since the producer is not known.
        """
        if stream == EVERY_STREAM:
            await_device(self._cuda)
        else:
            await_address(self._cuda, stream)

    def begin_to_host(self, address: int, array) -> None:
        """Begin to copy array.nbytes bytes at this GPU address into a page-locked array.

        See loaded().
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
        """Begin to copy from one GPU address to another; see copied().

        The other one may be on another GPU that this one can reach.
        """
        if num_bytes:
            self._runtime.memcpyAsync(
                target, source, num_bytes, self._runtime.memcpyDefault, self._within.ptr
            )

    def copy_in_order(self, target: int, source: int, num_bytes: int, *ports) -> Handle:
        """Copy from one GPU address to another on the stream that computes these arrays.

        The host waits only if there is no such stream.
        """
        streams = {port.stream for port in ports} - {None}
        if len(streams) == 1 and EVERY_STREAM not in streams:
            kind = self._runtime.memcpyDeviceToDevice
            self._runtime.memcpyAsync(target, source, num_bytes, kind, streams.pop())
            return CompleteHandle()
        for port in ports:
            port.settle()
        self.begin_within(target, source, num_bytes)
        return self.copied()

    def loaded(self):
        """Return the end of the copies to the host so far; its wait() waits for it."""
        return CopiedHandle(_end_of(self._cuda, self._loads))

    def stored(self):
        """Return the end of the copies to the GPU so far; its wait() waits for it."""
        return CopiedHandle(_end_of(self._cuda, self._stores))

    def copied(self):
        """Return the end of the copies within GPU memory so far; its wait() waits for it."""
        return CopiedHandle(_end_of(self._cuda, self._within))

    def finish_kernels(self):
        """Wait for what CuPy has launched on this thread's current stream."""
        await_stream(self._cuda)

    def flat(self, port):
        """Return the port's array as CuPy's, [size], a view."""
        return self._cupy.asarray(port.array).reshape(-1)

    def pinned(self, size: int, dtype):
        """Return a page-locked array [size], contents undefined.

        It comes from CuPy's pool, which keeps it for the next one: to lock memory takes far longer
        than to copy it, and the messages of a run are alike.
        """
        memory = self._cuda.alloc_pinned_memory(max(size * dtype.itemsize, 1))
        return numpy.ndarray((size,), dtype, buffer=memory)


class CollectiveStream:
    """A stream for collectives on GPU memory, beside those of kernels; imports CuPy."""

    def __init__(self):
        import cupy

        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._ordinal = self._runtime.getDevice()
        self.address = self._stream.ptr

    def follow(self, *ports) -> None:
        """Let the stream wait for what has been launched on those that compute these arrays."""
        for producer in {port.stream for port in ports} - {None}:
            if producer == EVERY_STREAM:
                await_device(self._cupy.cuda)
            else:
                event = self._cupy.cuda.Event(disable_timing=True)
                self._runtime.eventRecord(event.ptr, producer)
                self._stream.wait_event(event)

    def current(self):
        """Return a context manager: CuPy launches kernels on this stream."""
        return self._stream

    def flat(self, port):
        """Return the port's array as CuPy's, [size], a view."""
        return self._cupy.asarray(port.array).reshape(-1)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy from one GPU address to another, on the stream."""
        if num_bytes and target != source:
            self._runtime.memcpyAsync(
                target, source, num_bytes, self._runtime.memcpyDeviceToDevice, self.address
            )

    def end(self):
        """Return the event after what is on the stream so far."""
        return _end_of(self._cupy.cuda, self._stream)

    def handle(self, end, ports) -> Handle:
        """Return the handle of what is on the stream up to this end, which uses these ports."""
        return StreamHandle(self._cupy.cuda, end, ports)

    def select_gpu(self) -> None:
        """Make the stream's GPU the current one of this thread, which may be a new one."""
        self._cupy.cuda.Device(self._ordinal).use()


class StreamHandle(Handle):
    """The handle of work on a stream: wait() holds back later work of the GPU, and not the host.

    Later work is that on the streams that compute the arrays, and on the current one. Where it is
    not known what computes them, the host waits.
    end     the event at the end of the work
    ports   of the arrays, which stay alive until then
    """

    def __init__(self, cuda, end, ports):
        self._cuda, self._end, self._ports = cuda, end, ports

    def wait(self) -> None:
        streams = {port.stream for port in self._ports} - {None}
        if EVERY_STREAM in streams:
            await_event(self._end)
        elif self._ports:
            for stream in streams | {self._cuda.get_current_stream().ptr}:
                self._cuda.runtime.streamWaitEvent(stream, self._end.ptr)
        self._ports = ()

    def test(self) -> bool:
        return self._end.done


def _end_of(cuda, stream):
    event = cuda.Event(disable_timing=True)
    event.record(stream)
    return event


class CopiedHandle(Handle):
    """The handle of work on a stream that ends at this event."""

    def __init__(self, end):
        self._end = end

    def wait(self) -> None:
        await_event(self._end)

    def test(self) -> bool:
        return self._end.done


class SharedBlock:
    """An allocation of this rank's GPU that other processes of the node may open.

    And those of theirs that it has opened.
    handle   64 bytes for the others
    Errors: DeviceError where CUDA refuses: in containers that do not share processes, on GPUs that
    cannot reach each other.
    """

    def __init__(self, num_bytes: int):
        import cupy

        self._cuda = cupy.cuda
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
        """Return the address of the rank's block in this process."""
        return self._others[rank]

    def fill(self, value: int) -> None:
        """Set all bytes of this rank's block."""
        self._runtime.memset(self.address, value, self.num_bytes)
        await_device(self._cuda)

    def look(self, rank: int) -> int:
        """Return the last byte of the rank's block."""
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
        """Close the blocks of others; before any of their owners frees its own."""
        while self._others:
            self._runtime.ipcCloseMemHandle(self._others.popitem()[1])

    def close(self) -> None:
        """Give all back."""
        self.close_others()
        self._runtime.free(self.address)


@contextmanager
def _cuda_errors(runtime, what: str):
    """Turn an error of the CUDA runtime into a DeviceError."""
    try:
        yield
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f'{what}: CUDA reports "{error}"') from None


def nccl_module():
    """Return CuPy's bindings of NCCL. Errors: DeviceError that names what is missing."""
    import cupy

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy's own words about a library it does not find
            from cupy.cuda import nccl
        reason = "" if nccl.available else "libnccl.so.2 is not found"
    except ImportError as error:
        reason = str(error)
    if reason:
        cuda = cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise DeviceError(
            f'CuPy finds no NCCL ({reason}); run pip install "nvidia-nccl-cu{cuda}", which is in '
            f"\"shardkit[cuda{cuda}]\" and not in CuPy's wheel, or load the site's module of NCCL"
        )
    return nccl


def nccl_version() -> str:
    """Return the version, "2.27.3". Errors: DeviceError that names what is missing."""
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
    """Return the GPU of the rank with this number on its node, and make it the current one.

    Errors: DeviceError if the rank has no GPU.
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


def shared_text(gpus: Sequence[str]) -> str:
    """Return which ranks share a GPU, and what to do; "" if each has its own.

    gpus   of each rank
    """
    users = Counter(gpus)
    for gpu, n in users.items():
        if n > 1:
            ranks = [rank for rank, other in enumerate(gpus) if other == gpu]
            more = f", ... ({n} of them)" if n > _MOST_RANKS else ""
            return (
                f"ranks {', '.join(map(str, ranks[:_MOST_RANKS]))}{more} share {gpu}; start as "
                "many ranks per node as there are GPUs"
            )
    return ""
