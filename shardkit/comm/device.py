"""What communication asks of CuPy, which is imported here and in array/ only."""
import numpy


class CudaCopies:
    """Copies between host and GPU, beside whatever else runs there, and page-locked host memory. Imports CuPy when it is made.

    Copies to the host have one stream and copies to the GPU another, so that both directions of the bus are used at once.
    Neither waits for the streams of kernels: whoever begins a copy has synchronized those.
    """

    def __init__(self):
        import cupy
        self._cuda, self._runtime = cupy.cuda, cupy.cuda.runtime
        self._loads, self._stores = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)

    def synchronize(self, stream: int | None):
        """Wait for this stream (its address); None: for the whole GPU, since the producer did not say."""
        self._runtime.deviceSynchronize() if stream is None else self._runtime.streamSynchronize(stream)

    def begin_to_host(self, address: int, array) -> None:
        """Begin to copy array.nbytes bytes at this GPU address into the array, which is page-locked; see loaded()."""
        self._runtime.memcpyAsync(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost, self._loads.ptr)

    def begin_to_device(self, array, address: int) -> None:
        """Begin to copy the array, which is page-locked, to the GPU address; see stored()."""
        self._runtime.memcpyAsync(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice, self._stores.ptr)

    def loaded(self):
        """The end of all copies to the host begun so far; synchronize() waits for it."""
        return self._mark(self._loads)

    def stored(self):
        """The end of all copies to the GPU begun so far; synchronize() waits for it."""
        return self._mark(self._stores)

    def _mark(self, stream):
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def pinned(self, size: int, dtype):
        """size -> [size] page-locked, contents undefined."""
        memory = self._cuda.alloc_pinned_memory(max(size * dtype.itemsize, 1))
        return numpy.ndarray((size,), dtype, buffer=memory)
