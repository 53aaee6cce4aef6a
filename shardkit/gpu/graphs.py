"""CUDA graphs of what a thread computes on a GPU: one launch instead of many kernels.

    recorder = GraphRecorder(memory, buffers)
    y = recorder.captured(work)         nothing is computed: what work() launches is noted, y and
                                        temporaries lie in `memory`
    recorder.calls.run(buffers)         all of it is computed, from what lies in its inputs and the
                                        buffers now

A graph has the addresses of all arrays in it: `buffers` must lie where they lay. Its work is
captured on a stream of the memory's own, which others never wait for, and launched on the current
one; numbers of the host are what they were. An error of CUDA or CuPy in a capture ends it: it
cannot be recorded.
Source: CUDA Programming Guide, stream capture; cupy.cuda.Stream.begin_capture, whose default mode
lets the pool grow meanwhile.
"""

from contextlib import suppress

import numpy

from ..array.capture import captured_by
from ..errors import DeviceMemoryError, ShardingError


class GraphMemory:
    """A pool of GPU memory that stays reserved after its arrays are gone, with a stream.

    device    a Device
    purpose   what its bytes are counted under in device.accounts
    """

    def __init__(self, device, *, purpose: str):
        self._device, self._purpose = device, purpose
        self._cuda = device.xp.cuda
        self.stream = self._cuda.Stream(non_blocking=True)
        self._begin()

    def _begin(self):
        self._pool = self._cuda.MemoryPool(self._block)
        self._workspace = None
        self.num_bytes = 0

    def _block(self, size):
        """Return memory for the pool.

        Errors: DeviceMemoryError; unlike CuPy's own pool, this one has nothing to give back then.
        """
        try:
            memory = self._cuda.Memory(size)
        except (MemoryError, self._cuda.runtime.CUDARuntimeError) as error:
            raise DeviceMemoryError(
                f"{self._device!r} has no room for {size} bytes of a recording ({error})",
                self._device.memory_text(),
            ) from None
        self.num_bytes += size
        self._device.accounts.add(self._purpose, size)
        return self._cuda.MemoryPointer(memory, 0)

    def clear(self) -> None:
        """Release the memory, as soon as no array is in it."""
        self._device.accounts.add(self._purpose, -self.num_bytes)
        self._begin()

    def in_use(self):
        """Inside, all arrays that this thread makes lie here."""
        return self._cuda.using_allocator(self._pool.malloc)

    def empty(self, shape, dtype):
        """Return an array, contents undefined, that shares no memory with any capture."""
        with self.in_use():
            return self._device.xp.empty(shape, dtype)

    def workspace(self, num_bytes):
        """Return scratch outside of the pool, the same at each call."""
        if self._workspace is None or self._workspace.nbytes < num_bytes:
            pointer = self._device.xp.get_default_memory_pool().malloc(num_bytes)
            self._workspace = self._device.accounts.watch(
                self._device.xp.ndarray((num_bytes,), numpy.uint8, pointer), self._purpose
            )
        return self._workspace

    def same_place(self, array):
        """Return the array in memory that the pool may reuse."""
        if array.size == 0:
            return array
        steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
        num_bytes = sum(steps) + array.itemsize
        memory = self._cuda.UnownedMemory(
            array.data.ptr, num_bytes, self._pool, self._device.ordinal
        )
        return self._device.xp.ndarray(
            array.shape, array.dtype, self._cuda.MemoryPointer(memory, 0), array.strides
        )


class GraphCalls:
    """What was captured: a graph, and the arrays that it needs."""

    def __init__(self, buffers: dict):
        self._addresses = _addresses(buffers)
        self.kept: list = []  # arrays that others made and may forget
        self.graph = None

    def run(self, buffers: dict) -> None:
        """Launch the computation. Errors: ShardingError if a buffer has moved."""
        if _addresses(buffers) != self._addresses:
            raise ShardingError(
                "parameters or gradients have moved within a step that is replayed; make the model "
                "anew and train it uncompiled"
            )
        self.graph.launch()


class GraphRecorder:
    """Capture what this thread computes.

    memory   a GraphMemory, where all that is made lies
    buffers  {name: contiguous array} of the caller's
    reason   why it cannot be recorded; None: it can
    """

    def __init__(self, memory: GraphMemory, buffers: dict):
        self._memory = memory
        self.calls = GraphCalls(buffers)
        self.reason = None

    def captured(self, compute):
        """Return the result of compute(), without contents yet; None if it cannot be captured."""
        stream = self._memory.stream
        result = None
        try:
            with captured_by(self), stream, self._memory.in_use():
                stream.begin_capture()
                try:
                    result = compute()
                except BaseException:
                    # A capture that has failed says so again when it ends.
                    with suppress(RuntimeError):
                        stream.end_capture()
                    raise
                self.calls.graph = stream.end_capture()
        except Exception as error:  # of the capture: the same work has just been done uncaptured
            self.refuse(f"{type(error).__name__}: {error}")
        return result

    def refuse(self, reason: str) -> None:
        """Note that it cannot be recorded; the first reason is kept."""
        self.reason = self.reason or reason

    def keep(self, arrays) -> None:
        """Keep arrays that others made and may forget."""
        self.calls.kept.extend(arrays)

    def workspace(self, num_bytes):
        """Return scratch outside of the pool of graphs, which all of them share."""
        return self._memory.workspace(num_bytes)


def _addresses(buffers: dict) -> dict:
    return {name: buffer.data.ptr for name, buffer in buffers.items()}
