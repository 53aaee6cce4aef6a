"""What is wrong on a GPU is found on the software CUDA, with the real CuPy: each mistake is an
error there, or a number that cannot be missed. tests/software_cuda/real_cupy.py makes the
environment.
"""

import numpy
import pytest

pytestmark = pytest.mark.real
SIZE = 1000


@pytest.fixture
def cupy(gpu):
    cupy = gpu.device.xp
    if cupy.cuda.runtime.getDeviceProperties(0)["name"] != b"software CUDA":
        pytest.skip("a real GPU tells nothing of these, or ends the process")
    return cupy


def kernel(cupy, text):
    return cupy.RawKernel(f'extern "C" __global__ {text}', "f")


def error_of(cupy, work):
    """Return what CUDA says about this work."""
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as caught:
        work()
        cupy.cuda.runtime.deviceSynchronize()
    return str(caught.value)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [SIZE, -1])
@pytest.mark.parametrize("how", ["x[i] = 1", "x[0] = x[i]"], ids=["store", "load"])
def test_an_access_one_element_outside_of_an_array(cupy, how, place):
    run = kernel(cupy, f"void f(float* x, int i) {{ {how}; }}")
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        x = cupy.zeros(SIZE, "float32")
        run((1,), (1,), (x, numpy.int32(SIZE - 1)))
        text = error_of(cupy, lambda: run((1,), (1,), (x, numpy.int32(place))))
    assert "outside of the arrays of the kernel" in text and "kernel f" in text


def test_a_misaligned_access(cupy):
    run = kernel(cupy, "void f(float4* x) { x[0] = x[1]; }")
    x = cupy.zeros(SIZE, "float32")
    assert "misaligned" in error_of(cupy, lambda: run((1,), (1,), (x[1:],)))


def test_memory_that_nobody_has_filled_is_nan(cupy):
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        assert numpy.isnan((cupy.empty(SIZE, "float32") + 1).get()).all()


# ---- threads -------------------------------------------------------------------------------------

SHARED = """void f(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER
    x[threadIdx.x] = s[63 - threadIdx.x];
}"""


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""], ids=["there", "missing"])
def test_a_barrier_that_is_missing(cupy, barrier):
    x = cupy.arange(64, dtype="float32")
    kernel(cupy, SHARED.replace("BARRIER", barrier))((1,), (64,), (x,))
    is_right = x.get().tolist() == list(range(64))[::-1]
    assert is_right == bool(barrier)


def test_threads_that_wait_at_different_barriers(cupy):
    x = cupy.arange(64, dtype="float32")
    text = SHARED.replace("BARRIER", "if (threadIdx.x != 7) __syncthreads(); __syncthreads();")
    assert "different barriers" in error_of(cupy, lambda: kernel(cupy, text)((1,), (64,), (x,)))


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
def test_work_that_does_not_wait_for_another_stream(cupy, waits):
    first, second = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    with first:
        x = cupy.empty(SIZE, "float32")
        x.fill(3)
    if waits:
        second.wait_event(first.record())
    with second:
        y = x + 1
        found = y.get()
    assert (found == 4).all() if waits else numpy.isnan(found).all()


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_to_the_host_that_is_read_too_early(cupy, waits):
    x, stream = cupy.full(SIZE, 3, "float32"), cupy.cuda.Stream(non_blocking=True)
    memory = cupy.cuda.alloc_pinned_memory(x.nbytes)
    host = numpy.frombuffer(memory, "float32", SIZE)
    host[:] = 0
    stream.wait_event(cupy.cuda.get_current_stream().record())
    x.data.copy_to_host_async(host.ctypes.data, x.nbytes, stream)
    if waits:
        stream.synchronize()
    assert (host == (3 if waits else 0)).all()
    stream.synchronize()


def test_a_captured_stream_that_waits_for_one_that_is_not(cupy):
    inside, outside = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    inside.begin_capture()
    text = error_of(cupy, lambda: inside.wait_event(outside.record()))
    assert "905" in text  # cudaErrorStreamCaptureIsolation
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="901"):
        inside.end_capture()


def test_a_captured_stream_that_the_host_waits_for(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    assert "900" in error_of(cupy, stream.synchronize)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="901"):
        stream.end_capture()


def test_what_is_captured_is_computed_at_each_launch(cupy):
    x, stream = cupy.zeros(SIZE, "float32"), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        x += 1
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch()
        assert (x.get() == 3).all()
