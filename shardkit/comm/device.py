"""What communication asks of CuPy, which is imported here and in array/ only."""
import numpy


class CudaCopies:
    """Blocking copies between host and GPU, and page-locked host memory. Imports CuPy when it is made."""

    def __init__(self):
        import cupy
        self._runtime = cupy.cuda.runtime
        self._pinned_memory = cupy.cuda.alloc_pinned_memory

    def synchronize(self, stream: int | None):
        """Wait for this stream (its address); None: for the whole GPU, since the producer did not say."""
        self._runtime.deviceSynchronize() if stream is None else self._runtime.streamSynchronize(stream)

    def to_host(self, address: int, array) -> None:
        """array.nbytes bytes at this GPU address -> array."""
        self._runtime.memcpy(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost)

    def to_device(self, array, address: int) -> None:
        """array -> the GPU address."""
        self._runtime.memcpy(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice)

    def pinned(self, size: int, dtype):
        """size -> [size] page-locked, contents undefined."""
        memory = self._pinned_memory(max(size * dtype.itemsize, 1))
        return numpy.ndarray((size,), dtype, buffer=memory)
