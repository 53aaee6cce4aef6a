"""PTX on the CPU: instructions have the values that their definitions say, accesses outside of the
arrays are errors, and so is what is not known.
"""

import numpy
import pytest
from nvrtc import library
from software_cuda.module import PtxModule
from stand_in.emulator import EmulationError, compiler

pytestmark = pytest.mark.skipif(
    compiler() is None or library() is None, reason="needs g++ and NVRTC"
)
EDGES = {
    "int": [0, 1, -1, 2, -7, 31, 2**31 - 1, -(2**31), 123456789, -987654321],
    "long long": [0, 1, -1, 3, 2**63 - 1, -(2**63), 2**33 + 5, -(2**40), 63],
    "unsigned": [0, 1, 2, 31, 32, 2**31, 2**32 - 1, 4000000000, 77],
    "float": [0.0, -0.0, 1.5, -2.25, 1e-39, -1e-38, 3e38, -3e38, 1e9, -1e19, numpy.inf, numpy.nan],
    "double": [0.0, -0.0, 1.5, -1e-310, 1e300, -3.75, 1e19, numpy.inf, numpy.nan],
}
DTYPES = {"int": "i4", "long long": "i8", "unsigned": "u4", "float": "f4", "double": "f8"}


def flushed(x):
    is_tiny = abs(x) < numpy.float32(1.17549435e-38)
    return numpy.where(is_tiny, numpy.copysign(numpy.float32(0), x), x)


def of_integers(value):
    """Return a function of two arrays whose values are those of `value` for two Python numbers."""
    return lambda x, y: numpy.array(
        [value(int(a), int(b)) % 2**64 for a, b in zip(x, y)], dtype="u8"
    )


def divided(x, y):
    """Return x / y towards zero, or 0."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0


def saturated(low, high):
    def value(x, y):
        wanted = [0 if v != v else int(min(max(float(v), low), high)) % 2**64 for v in x]
        return numpy.array(wanted, "u8")

    return value


def largest(x, y):
    """Return the larger numbers, of which 0 is larger than -0."""
    both_zero = numpy.where(numpy.signbit(x), y, x)
    return numpy.where((x == 0) & (y == 0), both_zero, numpy.fmax(x, y))


LOW = 2**32 - 1
# (type of operands, C++ of them, their value by definition, dtype of the result)
VALUES = [
    ("int", "y ? x / y : 0", of_integers(divided), "i4"),
    ("int", "y ? x % y : 0", of_integers(lambda x, y: x - y * divided(x, y) if y else 0), "i4"),
    ("int", "x < y ? x : y", numpy.minimum, "i4"),
    ("int", "__mulhi(x, y)", of_integers(lambda x, y: x * y >> 32), "i4"),
    ("int", "(long long)x * y", of_integers(lambda x, y: x * y), "i8"),
    ("int", "__clz(x)", of_integers(lambda x, y: 32 - (x & LOW).bit_length()), "i4"),
    ("int", "__popc(x)", of_integers(lambda x, y: (x & LOW).bit_count()), "i4"),
    ("int", "x >> (y & 31)", of_integers(lambda x, y: x >> (y & 31)), "i4"),
    (
        "int",
        "__funnelshift_l(x, y, 7)",
        of_integers(lambda x, y: (y << 7 | (x & LOW) >> 25) & LOW),
        "u4",
    ),
    (
        "int",
        "__byte_perm(x, y, 0x5421)",
        of_integers(lambda x, y: x >> 8 & 0xFFFF | (y & 0xFFFF) << 16),
        "u4",
    ),
    ("int", "(float)x", lambda x, y: x.astype("f4"), "f4"),
    ("unsigned", "y < 32 ? x << y : 0", of_integers(lambda x, y: x << y if y < 32 else 0), "u4"),
    ("unsigned", "x / (y | 1)", of_integers(lambda x, y: x // (y | 1)), "u4"),
    ("unsigned", "max(x, y)", numpy.maximum, "u4"),
    ("unsigned", "__umulhi(x, y)", of_integers(lambda x, y: x * y >> 32), "u4"),
    ("long long", "y ? x / y : 0", of_integers(divided), "i8"),
    ("long long", "x + y", of_integers(lambda x, y: x + y), "i8"),
    ("long long", "x > y", lambda x, y: x > y, "i4"),
    ("float", "x + y", lambda x, y: flushed(flushed(x) + flushed(y)), "f4"),
    ("float", "x * y", lambda x, y: flushed(flushed(x) * flushed(y)), "f4"),
    ("float", "x / y", lambda x, y: flushed(flushed(x) / flushed(y)), "f4"),
    ("float", "fminf(x, y)", lambda x, y: -largest(-flushed(x), -flushed(y)), "f4"),
    ("float", "fabsf(x)", lambda x, y: abs(flushed(x)), "f4"),
    ("float", "copysignf(x, y)", numpy.copysign, "f4"),
    ("float", "x < y", lambda x, y: flushed(x) < flushed(y), "i4"),
    ("float", "!(x < y)", lambda x, y: ~(flushed(x) < flushed(y)), "i4"),
    ("float", "x == y", lambda x, y: flushed(x) == flushed(y), "i4"),
    ("float", "(int)x", saturated(-(2**31), 2**31 - 1), "i4"),
    ("float", "(unsigned)x", saturated(0, 2**32 - 1), "u4"),
    ("float", "(double)x", lambda x, y: flushed(x).astype("f8"), "f8"),
    ("float", "sqrtf(fabsf(x))", lambda x, y: numpy.sqrt(abs(flushed(x))), "f4"),
    (
        "float",
        "__saturatef(x)",
        lambda x, y: numpy.where(x == x, numpy.clip(flushed(x), 0, 1), 0) + 0,
        "f4",
    ),
    ("float", "rintf(x)", lambda x, y: numpy.rint(flushed(x)), "f4"),
    (
        "float",
        "__fadd_rd(x, y) <= __fadd_rn(x, y)",
        lambda x, y: ~numpy.isnan(flushed(x) + flushed(y)),
        "i4",
    ),
    ("double", "x - y", lambda x, y: x - y, "f8"),
    ("double", "fma(x, y, 1.0)", lambda x, y: x * y + 1, "f8"),
    ("double", "fmax(x, y)", largest, "f8"),
    ("double", "(float)x", lambda x, y: flushed(x.astype("f4")), "f4"),
    ("double", "(long long)x", saturated(-(2**63), 2**63 - 1), "i8"),
]
WORD = {
    "i4": "int",
    "u4": "unsigned",
    "i8": "long long",
    "u8": "unsigned long long",
    "f4": "float",
    "f8": "double",
}


def kernel(number, of, text, result):
    return (
        f"static __device__ {WORD[result]} value{number}({of} x, {of} y) {{ return {text}; }}\n"
        f'extern "C" __global__ void f{number}(const {of}* a, const {of}* b, {WORD[result]}* c) '
        f"{{ int i = threadIdx.x; c[i] = value{number}(a[i], b[i]); }}\n"
    )


@pytest.fixture(scope="module")
def values():
    text = "".join(kernel(number, *each[:2], each[3]) for number, each in enumerate(VALUES))
    return PtxModule(text, ("--std=c++17", "--fmad=false"))


@pytest.mark.parametrize("number", range(len(VALUES)), ids=[f"{x[0]}: {x[1]}" for x in VALUES])
def test_instructions_have_the_values_of_their_definitions(values, number):
    of, _, defined, result = VALUES[number]
    edges = numpy.array(EDGES[of], DTYPES[of])
    x, y = [each.ravel() for each in numpy.meshgrid(edges, edges)]
    got = numpy.zeros(len(x), result)
    run = values.function(f"f{number}")
    run((1,), (len(x),), tuple([each.ctypes.data for each in (x, y, got)]), memory=[x, y, got])
    with numpy.errstate(all="ignore"):
        wanted = defined(x, y).astype(result)
    numpy.testing.assert_array_equal(got, wanted)
    if result[0] == "f":
        signs = [numpy.signbit(each[each == each]).tolist() for each in (got, wanted)]
        assert signs[0] == signs[1]


HALVES = r"""
extern "C" __global__ void halves(const float* x, unsigned short* y, int n) {
    for (int i = 0; i < n; i++) {
        unsigned both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(x[i]), "f"(-x[i]));
        y[2 * i] = both >> 16;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y[2 * i + 1]) : "f"(x[i]));
    }
}
"""


def test_half_floats_are_rounded_to_the_nearest_even_one():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    near = [1 + 2.0**-8 * k / 2 for k in range(9)] + [1 + 2.0**-11 * k / 2 for k in range(9)]
    x = numpy.array([*near, 65519, 65520, 3.4e38, -0.0, numpy.inf], "f4")
    y = numpy.zeros((len(x), 2), "u2")
    run = PtxModule(HALVES).function("halves")
    run((1,), (1,), (x.ctypes.data, y.ctypes.data, numpy.int32(len(x))), memory=[x, y])
    with numpy.errstate(over="ignore"):
        wanted = [x.astype(ml_dtypes.bfloat16).view("u2"), x.astype("f2").view("u2")]
    assert y.T.tolist() == [each.tolist() for each in wanted]


LANES = r"""
extern "C" __global__ void lanes(int* x) {
    int lane = threadIdx.x;
    x[lane] = __shfl_down_sync(~0u, lane, 3, 8);
    x[32 + lane] = __shfl_up_sync(~0u, lane, 2, 16);
    x[64 + lane] = __shfl_xor_sync(~0u, lane, 5);
    x[96 + lane] = __shfl_sync(~0u, lane, 9, 8);
    x[128 + lane] = __ballot_sync(~0u, lane % 3 == 0);
    atomicMax(x + 160, lane);
    atomicAdd(x + 161, lane);
}
"""


def test_lanes_read_each_other_within_segments():
    x, lane = numpy.zeros(162, "i4"), numpy.arange(32)
    PtxModule(LANES).function("lanes")((1,), (32,), (x.ctypes.data,), memory=[x])
    down = numpy.where(lane % 8 < 5, lane + 3, lane)
    up = numpy.where(lane % 16 >= 2, lane - 2, lane)
    votes = numpy.full(32, sum(1 << int(each) for each in lane[::3]), "u4").view("i4")
    wanted = [*down, *up, *(lane ^ 5), *(lane // 8 * 8 + 1), *votes, 31, 31 * 16]
    assert x.tolist() == [int(each) for each in wanted]


OF_CUPY = r"""
static __device__ const float table[5] = {1, 2, 4, 8, 16};
extern "C" __global__ void tabled(double* x, int i) { x[0] = table[i]; }
extern "C" __global__ void added(double* x, int n) {
    atomicAdd(x, 0.25);
    atomicAdd((float*)(x + 1), 1.5f);
}
static __device__ __noinline__ double called(double x, int n) {
    return n ? 1.5 * called(x, n - 1) : x;
}
extern "C" __global__ void calls(double* x, int n) { x[0] = called(3, n); }
extern "C" __global__ void local(double* x, int n) {
    double own[8];
    for (int i = 0; i < 8; i++) own[i * n % 8] = i;
    x[0] = own[x[0] > 0 ? 3 : n];
}
extern "C" __global__ void carried(double* x, int n) {
    unsigned low, high;
    asm("{ add.cc.u32 %0, %2, %3; addc.u32 %1, %2, 0; }"
        : "=r"(low), "=r"(high) : "r"(n), "r"(~0u));
    x[0] = low, x[1] = high;
}
"""
# {kernel: (number that it is given, what it leaves in two doubles)}
RESULTS = {
    "tabled": (3, [8, 0]),
    "added": (0, [2, numpy.array([12, 0], "f4").view("f8")[0]]),
    "calls": (4, [3 * 1.5**4, 0]),
    "local": (5, [1, 0]),
    "carried": (7, [6, 8]),
}


@pytest.fixture(scope="module")
def of_cupy():
    return PtxModule(OF_CUPY)


@pytest.mark.parametrize("name", RESULTS)
def test_what_kernels_of_cupy_are_made_of_has_its_value(of_cupy, name):
    """Tables of the program, atomic sums of floats, functions, memory of a thread, carries."""
    number, wanted = RESULTS[name]
    x = numpy.zeros(2)
    threads = 8 if name == "added" else 1
    arguments = (x.ctypes.data, numpy.int32(number))
    of_cupy.function(name)((1,), (threads,), arguments, memory=[x])
    assert x.tolist() == wanted


def test_an_access_outside_of_a_table_of_the_program_is_an_error(of_cupy):
    x = numpy.zeros(2)
    with pytest.raises(EmulationError, match="outside of the arrays"):
        of_cupy.function("tabled")((1,), (1,), (x.ctypes.data, numpy.int32(1 << 20)), memory=[x])


TOUCHING = r"""
extern "C" __global__ void stored(float* x, int i) { x[i] = 1; }
extern "C" __global__ void loaded(float* x, int i) { x[0] = x[i]; }
extern "C" __global__ void copied(float* x, int i) {
    __shared__ float s[4];
    unsigned long long place = (unsigned long long)s;
    asm volatile("{ .reg .u64 p; .reg .u32 q; cvta.to.shared.u64 p, %0; cvt.u32.u64 q, p;"
                 "cp.async.ca.shared.global [q], [%1], 4; cp.async.wait_all; }"
                 : : "l"(place), "l"(x + i) : "memory");
    __syncthreads();
    x[0] = s[0];
}
"""


@pytest.mark.parametrize("name", ["stored", "loaded", "copied"])
@pytest.mark.parametrize("place, is_inside", [(0, True), (63, True), (64, False), (-1, False)])
def test_an_access_one_element_outside_of_an_array_is_an_error(name, place, is_inside):
    whole = numpy.zeros(100, "f4")
    start = -(whole.ctypes.data // 4) % 4 + 4  # a load may touch a whole pack of 16 bytes
    x = whole[start : start + 64]
    run = PtxModule(TOUCHING).function(name)
    arguments = (1,), (1,), (x.ctypes.data, numpy.int32(place))
    if is_inside:
        run(*arguments, memory=[x])
    else:
        with pytest.raises(EmulationError, match="outside of the arrays of the kernel"):
            run(*arguments, memory=[x])


@pytest.mark.parametrize(
    "text, named",
    [
        ("bar.sync 1, 64;", "bar.sync 1, 64"),
        ("nanosleep.u32 7;", "nanosleep.u32"),
        ("{ .reg .f16 h; mov.b16 h, 0; add.f16 h, h, h; }", "f16"),
    ],
)
def test_instructions_that_are_not_known_are_refused_by_name(text, named):
    with pytest.raises(EmulationError, match=named):
        PtxModule(f'extern "C" __global__ void f() {{ asm volatile("{text}"); }}')


def test_what_nvrtc_refuses_is_an_error_with_its_words():
    with pytest.raises(EmulationError, match="unheard_of"):
        PtxModule('extern "C" __global__ void f() { unheard_of(); }')
