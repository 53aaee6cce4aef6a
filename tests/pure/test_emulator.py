"""The emulator runs CUDA kernels as a GPU would, and says what would hang or be undefined there:
their C++, and the PTX that NVRTC makes of it.
"""

import threading

import numpy
import pytest
from nvrtc import library
from software_cuda.module import PtxModule
from stand_in.emulator import EmulatedModule, EmulationError, compiler, thread_order

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="the emulator needs g++, which was not found"
)

SOURCE = r"""
#define ALL 0xffffffffu
template <class T> __device__ __forceinline__ T warp_sum(T x) {
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(ALL, x, i);
    return x;
}
extern "C" __global__ void __launch_bounds__(1024) scale(float* x, int n, double times) {
    long long i = (blockIdx.y * (long long)gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= times;
}
extern "C" __global__ void reverse(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void reverse_without_barrier(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void warp_sums(float* x) { x[threadIdx.x] = warp_sum(x[threadIdx.x]); }
extern "C" __global__ void lanes(float* x) {
    float own = x[threadIdx.x];
    float y = __shfl_down_sync(ALL, own, 1, 8) + 100 * __shfl_up_sync(ALL, own, 1);
    if (__any_sync(ALL, threadIdx.x == 3) && !__all_sync(ALL, threadIdx.x == 3))
        y += 10000 * __shfl_sync(ALL, own, 2, 16);
    x[threadIdx.x] = y;
}
extern "C" __global__ void turn(float* x, int from) {
    extern __shared__ float s[];
    s[threadIdx.x + from] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x];
}
extern "C" __global__ void count(int* counts) { atomicAdd(counts + threadIdx.x % 2, 1); }
extern "C" __global__ void some_at_a_barrier() { if (threadIdx.x < 5) __syncthreads(); }
extern "C" __global__ void two_barriers() {
    if (threadIdx.x < 5) __syncthreads();
    else
        __syncthreads();
}
extern "C" __global__ void half_a_warp(float* x) { if (threadIdx.x < 16) x[0] = warp_sum(x[0]); }
extern "C" __global__ void misaligned(float* x) { *(float4*)(x + 1) = make_float4(1, 2, 3, 4); }
extern "C" __global__ void too_far(int i) { __shared__ volatile float s[20]; s[i] = 1; }
extern "C" __global__ void too_large() { __shared__ volatile float s[20000]; s[threadIdx.x] = 1; }
"""
NUMBERS = numpy.arange(64, dtype="float32")


FORMS = {"C++": EmulatedModule, "PTX": PtxModule}


@pytest.fixture(scope="module", params=FORMS)
def run(request):
    if request.param == "PTX" and library() is None:
        pytest.skip("PTX is made by NVRTC, which was not found")
    module = FORMS[request.param](SOURCE, ("--std=c++17",))

    def run(name, *extra, grid=(1,), block=(64,), shared_mem=0, order="forward"):
        x = NUMBERS.copy()
        with thread_order(order):
            module.function(name)(grid, block, (x.ctypes.data, *extra), shared_mem)
        return x

    run.module = module
    return run


@pytest.mark.thorough
def test_every_thread_of_the_grid_runs_once(run):
    numpy.testing.assert_array_equal(
        run("scale", numpy.int32(60), 2.0, grid=(2, 3), block=(10,)), NUMBERS * (1 + (NUMBERS < 60))
    )


@pytest.mark.parametrize("order", ["forward", "backward", 2, 3])
def test_barriers_and_shuffles_do_what_they_do_on_a_gpu_in_any_order(run, order):
    numpy.testing.assert_array_equal(run("reverse", order=order), NUMBERS[::-1])
    numpy.testing.assert_array_equal(
        run("warp_sums", order=order), numpy.repeat(NUMBERS.reshape(2, 32).sum(1), 32)
    )
    below = numpy.where(NUMBERS % 8 == 7, NUMBERS, NUMBERS + 1)
    above = numpy.where(NUMBERS % 32 == 0, NUMBERS, NUMBERS - 1)
    numpy.testing.assert_array_equal(
        run("lanes", order=order) - below - 100 * above,
        numpy.where(NUMBERS < 32, 10000 * (NUMBERS // 16 * 16 + 2), 0),
    )


@pytest.mark.thorough
def test_a_race_shows_as_a_dependence_on_the_order(run):
    assert (
        run("reverse_without_barrier").tobytes()
        != run("reverse_without_barrier", order="backward").tobytes()
    )


def test_shared_memory_that_nobody_wrote_is_nan(run):
    assert numpy.isnan(run("reverse_without_barrier")[:32]).all()


@pytest.mark.thorough
def test_dynamic_shared_memory_is_as_large_as_asked_for(run):
    numpy.testing.assert_array_equal(
        run("turn", numpy.int32(0), shared_mem=256), numpy.roll(NUMBERS, -1)
    )
    with pytest.raises(EmulationError, match="past the end of 256 bytes|outside all arrays"):
        run("turn", numpy.int32(1), shared_mem=256)
    with pytest.raises(EmulationError, match="50000 bytes of dynamic shared memory"):
        run("turn", numpy.int32(0), shared_mem=50000)
    function = run.module.function("turn")
    function.max_dynamic_shared_size_bytes = 50000
    function((1,), (64,), (NUMBERS.copy().ctypes.data, numpy.int32(0)), 50000)


def test_atomics_count_everything(run):
    counts = numpy.zeros(2, "int32")
    run.module.function("count")((7,), (9,), (counts.ctypes.data,))
    assert counts.tolist() == [35, 28]


@pytest.mark.parametrize(
    "name, arguments, words",
    [
        ("some_at_a_barrier", (), "5 of 64 threads wait at the barrier"),
        ("two_barriers", (), "different barriers"),
        ("half_a_warp", (NUMBERS.ctypes.data,), "has ended|never come"),
        ("misaligned", (NUMBERS.ctypes.data,), "misaligned"),
        ("too_far", (numpy.int32(20),), "outside (its array|all arrays)"),
        ("too_large", (), "80000 bytes of shared memory"),
        ("reverse", (), "0 arguments; the kernel takes 1"),
        ("too_far", (3,), "argument 0 has 8 bytes; the kernel takes 4"),
    ],
)
def test_what_would_hang_or_be_undefined_is_an_error_and_the_next_launch_works(
    run, name, arguments, words
):
    with pytest.raises(EmulationError, match=words):
        run.module.function(name)((1,), (64,), arguments)
    numpy.testing.assert_array_equal(run("reverse"), NUMBERS[::-1])


@pytest.mark.parametrize(
    "grid, block",
    [((0,), (1,)), ((1, 70000), (1,)), ((1,), (2048,)), ((1,), (64, 32)), ((1,), (1, 1, 65))],
)
@pytest.mark.thorough
def test_a_grid_that_no_gpu_takes_is_refused(run, grid, block):
    with pytest.raises(EmulationError, match="wanted a grid"):
        run("reverse", grid=grid, block=block)


def test_a_source_that_does_not_compile_and_a_name_that_is_not_there_are_errors(run):
    with pytest.raises(EmulationError, match="(?s)refuses.*unheard_of"):
        EmulatedModule('extern "C" __global__ void f() { unheard_of(); }')
    with pytest.raises(EmulationError, match="no kernel 'nothing'.*reverse"):
        run.module.function("nothing")


@pytest.mark.thorough
def test_macros_come_from_the_options():
    module = EmulatedModule(
        'extern "C" __global__ void f(T* x) { *x = N; }', ("-DT=double", "-DN=7")
    )
    x = numpy.zeros(1)
    module.function("f")((1,), (1,), (x.ctypes.data,))
    assert x[0] == 7


def test_threads_of_one_process_may_launch_the_same_kernel_together(run):
    wrong = []

    def launch():
        for _ in range(50):
            if run("reverse").tobytes() != NUMBERS[::-1].tobytes():
                wrong.append(1)

    threads = [threading.Thread(target=launch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
