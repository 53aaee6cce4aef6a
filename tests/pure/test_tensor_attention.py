"""Attention on tensor cores, run by the emulator: the values of the definition in float64, the same
bits in any order of threads, and faults that are seen.

Tolerance, of the largest value: float32 3e-6, with TF32 2e-3; halves 4 half last bits, since
weights are rounded to halves before they are multiplied, but 3e-6 for their log_sums, which are
float32.
"""

import numpy
import pytest
from nvrtc import library
from software_cuda.module import running_ptx
from stand_in import pretended_gpu
from stand_in.emulator import EmulatedModule, EmulationError, compiler, thread_order

from shardkit.testing.array import products
from shardkit.testing.array import reference_attention as reference
from shardkit.testing.gpu import Limits, tensor_attention
from shardkit.testing.gpu import cuda_attention as attention
from shardkit.testing.gpu import cuda_launch as launch

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="the emulator of CUDA kernels needs g++, which was not found"
)
TOLERANCE = {"float32": 3e-6, "tf32": 2e-3, "bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-11}
of_ptx = pytest.mark.skipif(library() is None, reason="PTX is made by NVRTC, which was not found")
GPUS = {  # compute capability, KB of shared memory of a block and of a multiprocessor
    "A100": Limits((8, 0), 163 << 10, 164 << 10),
    "RTX 4090": Limits((8, 9), 99 << 10, 100 << 10),
    "H100": Limits((9, 0), 227 << 10, 228 << 10),
}
ORDERS = ("forward", "backward", 2, 3)
# batch, heads, key heads, queries, keys, head dim, first query, and a window if there is one
GROUPED, ALL_KEYS = (1, 4, 2, 70, 81, 64, 11), (1, 2, 2, 37, 100, 128, 100)
CASES = [
    ("float32", GROUPED),
    ("bfloat16", ALL_KEYS),
    ("float32", (1, 4, 2, 150, 150, 64, 0, 20)),
    ("bfloat16", (1, 2, 2, 70, 300, 32, 230, 90)),
    pytest.param("float16", (2, 2, 1, 131, 131, 32, 0), marks=pytest.mark.sweep),
    *[
        pytest.param(*case, marks=pytest.mark.sweep)
        for case in [
            ("float32", ALL_KEYS),
            ("float32", (1, 2, 1, 150, 150, 96, 0)),
            ("float32", (1, 1, 1, 40, 60, 176, 20)),
            ("bfloat16", GROUPED),
            ("bfloat16", (1, 4, 1, 150, 151, 80, 1)),
            ("bfloat16", (1, 2, 1, 20, 70, 112, 50)),
            ("float16", (1, 2, 1, 70, 33, 208, 0)),
            ("float16", (1, 2, 1, 65, 65, 256, 0)),
            ("tf32", GROUPED),
            ("tf32", ALL_KEYS),
            ("tf32", (1, 2, 1, 150, 150, 96, 0, 30)),
            ("float32", (1, 2, 1, 140, 140, 128, 0, 75)),
            ("float32", (1, 1, 1, 200, 200, 176, 300, 401)),  # on both sides of a query
            ("bfloat16", (1, 4, 1, 300, 300, 80, 0, 70)),
            ("bfloat16", (1, 1, 1, 150, 120, 256, 30, 80)),
            ("float16", (2, 2, 1, 260, 260, 64, 9, 19)),
        ]
    ],
]


@pytest.fixture(scope="module")
def cupy():
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    with pretended_gpu() as machine:
        import cupy

        yield cupy
        machine.mistakes.clear()  # of faulty kernels
    tensor_attention.limits.cache_clear()


def made(dtype, shape):
    """Return q, k, v, the gradient of y, as float32 numbers that the dtype has, and what the
    kernels want to know of what queries see.
    """
    samples, heads, key_heads, num_queries, num_keys, dim, *sight = shape
    rng = numpy.random.default_rng(0)
    stored = numpy.dtype("float32" if dtype == "tf32" else dtype)
    sizes = [(heads, num_queries), (key_heads, num_keys), (key_heads, num_keys)]
    arrays = [rng.standard_normal((samples, *size, dim)) for size in [*sizes, sizes[0]]]
    return [x.astype(stored) for x in arrays], sight


def computed(xp, dtype, shape):
    """Return y, log_sums and the gradients of q, k, v, on the host."""
    (q, k, v, gradient), sight = made(dtype, shape)
    q, k, v, gradient = map(xp.asarray, (q, k, v, gradient))
    with products.precision("tf32" if dtype == "tf32" else "highest"):
        forward = attention.causal_attention(q, k, v, 0.2, *sight)
        gradients = attention.causal_attention_backward(gradient, q, k, v, *forward, 0.2, *sight)
    return [x.get() for x in (*forward, *gradients)]


def defined(dtype, shape):
    """Return the same by the definition, in float64."""
    arrays, sight = made(dtype, shape)
    q, k, v, gradient = [x.astype("float64") for x in arrays]
    forward = reference.causal_attention(q, k, v, 0.2, *sight)
    return [
        *forward,
        *reference.causal_attention_backward(gradient, q, k, v, *forward, 0.2, *sight),
    ]


def errors(got, wanted):
    """Return the largest errors of the results as parts of the largest values, by number."""
    pairs = zip(got, wanted, strict=True)
    return numpy.array(
        [abs(x.astype("float64") - y).max() / max(1, abs(y).max()) for x, y in pairs]
    )


def is_right(dtype, got, wanted):
    """Return False if an error is larger than what the dtype allows, or NaN."""
    tolerances = numpy.full(5, TOLERANCE[dtype])
    if dtype != "tf32":
        tolerances[1] = TOLERANCE["float32"]
    return (errors(got, wanted) < tolerances).all()


@pytest.mark.parametrize("dtype, shape", CASES)
@pytest.mark.thorough
def test_values_are_those_of_the_definition_and_no_order_of_threads_changes_a_bit(
    cupy, dtype, shape
):
    wanted = defined(dtype, shape)
    seen = set()
    for order in ORDERS[: 2 if dtype == "float32" else 4]:
        with thread_order(order):
            got = computed(cupy, dtype, shape)
        assert is_right(dtype, got, wanted), errors(got, wanted)
        seen.add(b"".join([x.tobytes() for x in got]))
    assert len(seen) == 1


@pytest.mark.parametrize("precision", ["highest", "tf32"])
def test_three_products_of_tf32_numbers_are_as_exact_as_float32_and_one_is_not(cupy, precision):
    shape = (1, 1, 1, 33, 200, 16, 200)
    got = computed(cupy, "tf32" if precision == "tf32" else "float32", shape)
    error = errors(got, defined("float32", shape)).max()
    assert error < 1e-6 if precision == "highest" else 1e-5 < error < 2e-3


FEW = (1, 2, 1, 37, 45, 32, 1)  # of a shape that code for PTX is soon compiled for
IN_PTX = [
    ("90", "bfloat16"),
    *[
        pytest.param(arch, dtype, marks=pytest.mark.sweep)
        for arch in ("80", "90", "100")
        for dtype in ("bfloat16", "float16", "float32", "tf32")
        if (arch, dtype) != ("90", "bfloat16")
    ],
]


@of_ptx
@pytest.mark.parametrize("arch, dtype", IN_PTX)
@pytest.mark.thorough
def test_the_ptx_of_a_gpu_has_the_values_of_the_definition(cupy, arch, dtype):
    with running_ptx(arch):
        for shape in (FEW, (*FEW, 9)):
            wanted = defined(dtype, shape)
            for order in ORDERS:
                with thread_order(order):
                    got = computed(cupy, dtype, shape)
                assert is_right(dtype, got, wanted), errors(got, wanted)


# ---- which kernel, which tiles -------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, dim, capability, is_served",
    [
        ("bfloat16", 256, (8, 0), True),
        ("bfloat16", 257, (9, 0), False),
        ("float32", 192, (8, 6), True),
        ("float32", 193, (8, 6), False),
        ("float32", 64, (7, 5), False),
        ("float64", 64, (9, 0), False),
    ],
)
def test_the_capability_of_the_device_and_the_dtype_choose_the_kernel(
    cupy, monkeypatch, dtype, dim, capability, is_served
):
    device = Limits(capability, 99 << 10, 100 << 10)
    monkeypatch.setattr(tensor_attention, "limits", lambda xp, ordinal: device)
    started = []
    monkeypatch.setattr(attention, "launch", lambda x, file, name, *rest, **_: started.append(name))
    monkeypatch.setattr(
        tensor_attention, "launch", lambda x, file, name, *rest, **_: started.append(name)
    )
    q = cupy.zeros((1, 1, 5, dim), dtype)
    assert attention.fits(q)
    attention.causal_attention(q, q, q, 1.0, 0)
    assert started == ["tensor_attention" if is_served else "attention"]


@pytest.mark.parametrize("gpu", GPUS)
def test_tiles_of_every_width_fit_into_shared_memory(gpu):
    for name in tensor_attention.TILES:
        for itemsize, widest in tensor_attention.WIDEST_HEAD.items():
            for dim in range(16, widest + 1, 16):
                tiles = tensor_attention.chosen(name, itemsize, dim, GPUS[gpu])
                taken = tensor_attention.shared_bytes(name, itemsize, dim, tiles)
                assert taken <= GPUS[gpu].block_bytes, (name, itemsize, dim)


def test_tiles_go_by_the_shared_memory_of_the_device():
    def warps(gpu):
        name = tensor_attention.FOR_QUERIES
        return tensor_attention.chosen(name, 4, 128, GPUS[gpu])

    assert [(warps(gpu).warps, warps(gpu).passing) for gpu in GPUS] == [(8, 16), (4, 16), (8, 32)]


# ---- faults --------------------------------------------------------------------------------------

AWAIT, BARRIER, GAP = "        await_copies();\n", "        __syncthreads();", " " * 45
VALUES, KEYS = [f"{BARRIER}{GAP}// {name} are there" for name in ("values", "keys")]
TILE = f"{BARRIER}{GAP}// this tile is there"
FAULTS = {  # what: (file, what stands there, what is put there)
    "parts of the left operand exchanged": (
        "tensor_tiles.cuh",
        "pair_of(T(), x[2], x[3]), pair_of(T(), y[0], y[1])",
        "pair_of(T(), y[0], y[1]), pair_of(T(), x[2], x[3])",
    ),
    "parts of the right operand exchanged": (
        "tensor_tiles.cuh",
        "threadIdx.x / 8 % 2 * 16",
        "(1 - threadIdx.x / 8 % 2) * 16",
    ),
    "a matrix that is not turned": (
        "tensor_tiles.cuh",
        "load_turned_matrices(x,",
        "load_matrices(x,",
    ),
    "columns of a lane confused": ("tensor_tiles.cuh", "% 4 * 2 + e", "% 4 + 4 * e"),
    "rows of a lane confused": ("tensor_tiles.cuh", "threadIdx.x / 4; }", "threadIdx.x % 8; }"),
    "keys not waited for": ("tensor_attention.cu", AWAIT + KEYS, KEYS),
    "values not waited for": ("tensor_attention.cu", AWAIT + VALUES, VALUES),
    "no barrier before keys are read": ("tensor_attention.cu", KEYS, "//"),
    "no barrier before values are read": ("tensor_attention.cu", VALUES, "//"),
    "gradients of queries: not waited for": (
        "tensor_attention_for_queries.cu",
        AWAIT + TILE,
        TILE,
    ),
    "gradients of queries: no barrier": ("tensor_attention_for_queries.cu", TILE, "//"),
    "gradients of queries: one place for two tiles": (
        "tensor_attention_for_queries.cu",
        "passing + start / TILE % STAGES",
        "passing + start * 0",
    ),
    "gradients of keys: not waited for": ("tensor_attention_for_keys.cu", AWAIT, ""),
    "gradients of keys: no barrier": ("tensor_attention_for_keys.cu", BARRIER, ""),
    "the diagonal hidden": ("tensor_attention.cu", "column > seen + row", "column >= seen + row"),
    "keys past the last one": ("tensor_attention.cu", " || column > last", ""),
    "a warp that is too early": ("tensor_attention.cu", "own + OWN - 1, num_keys", "own, num_keys"),
    "sums not scaled by the new maximum": (
        "tensor_attention.cu",
        "sums[b][c][2 * h] *= factor, ",
        "",
    ),
}
# Of instructions, which the emulator of C++ has functions for: (what stands there, what is put).
FAULTS_OF_ASM = {
    "fragments of the left operand exchanged": ('"r"(a[1]), "r"(a[2])', '"r"(a[2]), "r"(a[1])'),
    "fragments of the right operand exchanged": ('"r"(b[0]), "r"(b[1])', '"r"(b[1]), "r"(b[0])'),
    "halves of a pair exchanged": ('"f"(high), "f"(low)', '"f"(low), "f"(high)'),
    "copies are not waited for": ('asm volatile("cp.async.wait_all;"', 'asm volatile(""'),
    "an address of all memory": ("cvta.to.shared.u64 x, %1;", "mov.u64 x, %1;"),
    "a matrix that is not turned": ("x4.trans.shared", "x4.shared"),
    "too many bytes of a copy": ("16, %2;", "16, 16;"),
}
SOME_FAULTS = {
    "a matrix that is not turned",
    "keys not waited for",
    "gradients of keys: no barrier",
}


@pytest.fixture
def put(monkeypatch):
    """put(file, right, wrong): the sources that are compiled have `wrong` in place of `right`."""

    def put(file, right, wrong):
        text = (launch.FOLDER / file).read_text()
        assert right in text
        whole = launch.source
        faulty = text.replace(right, wrong, 1)
        monkeypatch.setattr(launch, "source", lambda name: whole(name).replace(text, faulty))
        launch._function.cache_clear()

    yield put
    launch._function.cache_clear()


def is_seen(cupy, shape):
    """Return whether some order of threads ends in an error, or has wrong values."""
    wanted = defined("bfloat16", shape)
    for order in ORDERS:
        with thread_order(order):
            try:
                got = computed(cupy, "bfloat16", shape)
            except EmulationError:
                return True
        if not is_right("bfloat16", got, wanted):
            return True
    return False


@pytest.mark.parametrize(
    "fault",
    [pytest.param(x, marks=[pytest.mark.sweep] * (x not in SOME_FAULTS)) for x in FAULTS],
)
@pytest.mark.thorough
def test_a_fault_gives_an_error_or_wrong_values_in_some_order(cupy, put, fault):
    put(*FAULTS[fault])
    assert is_seen(cupy, (1, 2, 1, 150, 143, 32, 1))


@of_ptx
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(x, marks=[pytest.mark.sweep] * (number > 1))
        for number, x in enumerate(FAULTS_OF_ASM)
    ],
)
@pytest.mark.thorough
def test_a_fault_in_an_instruction_is_seen_too(cupy, put, fault):
    put("tensor_cores.cuh", *FAULTS_OF_ASM[fault])
    with running_ptx("90"):
        assert is_seen(cupy, FEW)


# ---- the instructions ----------------------------------------------------------------------------

# Fragments are filled by the formulas of the PTX ISA for element i of a lane, which differ in form
# from those that the emulator reads them by.
PRODUCT = r"""
extern "C" __global__ void product(const float* a, const float* b, float* c) {
    int group = threadIdx.x >> 2, in_group = threadIdx.x % 4;
    const bool half = sizeof(STORED) == 2;
    const int k = half ? 16 : 8;
    unsigned x[4] = {}, y[2] = {};
    for (int i = 0; i < (half ? 8 : 4); i++) {
        bool is_below = half ? !(i < 2 || (4 <= i && i < 6)) : i % 2;
        int row = is_below ? group + 8 : group;
        int column = half ? in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0) : in_group + (i < 2 ? 0 : 4);
        put(x[half ? i / 2 : i], a[row * k + column], i);
    }
    for (int i = 0; i < (half ? 4 : 2); i++) {
        int row = half ? in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0) : in_group + 4 * i;
        put(y[half ? i / 2 : i], b[row * 8 + group], i);
    }
    float z[4];
    for (int i = 0; i < 4; i++) z[i] = c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)];
    mma(STORED(), z, x, y);
    for (int i = 0; i < 4; i++) c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = z[i];
}
"""
PUT = {
    2: """
static void put(unsigned& word, float x, int i) {
    word |= (unsigned)rounded<STORED>(x).bits << 16 * (i & 1);
}
""",
    4: "static void put(unsigned& word, float x, int i) { word = float_as_bits(x); }",
}
COPIES = r"""
extern "C" __global__ void turned(const STORED* x, STORED* y, int waits) {
    __shared__ __align__(16) STORED s[256];
    int lane = threadIdx.x;
    copy_pack(address_of(s + 8 * lane), x + 8 * lane, lane == 31 ? 6 : 16);
    if (waits) await_copies();
    __syncwarp();
    unsigned words[4];
    load_turned_matrices(words, address_of(s + 8 * lane));
    for (int i = 0; i < 8; i++) {
        int column = lane % 4 * 2 + i % 2;
        y[i / 2 * 64 + lane / 4 * 8 + column].bits = words[i / 2] >> i % 2 * 16;
    }
}
"""


def emulated(dtype, text):
    whole = "".join(
        [(launch.FOLDER / name).read_text() for name in ("common.cuh", "tensor_cores.cuh")]
    )
    return EmulatedModule(whole + text, launch.options(dtype))


@pytest.mark.parametrize("dtype, k", [("float16", 16), ("bfloat16", 16), ("float32", 8)])
@pytest.mark.thorough
def test_a_product_of_a_warp_is_that_of_the_matrices_in_its_fragments(dtype, k):
    rng = numpy.random.default_rng(k)
    a, b, c = [
        rng.integers(-8, 9, shape).astype("float32") / 4 for shape in ((16, k), (k, 8), (16, 8))
    ]
    wanted = a @ b + c
    size = 4 if dtype == "float32" else 2
    emulated(dtype, PUT[size] + PRODUCT).function("product")(
        (1,), (32,), tuple([x.ctypes.data for x in (a, b, c)])
    )
    numpy.testing.assert_array_equal(c, wanted)


def test_matrices_are_turned_and_copies_are_there_when_they_were_waited_for():
    x = numpy.arange(256, dtype="uint16")
    run = emulated("bfloat16", COPIES).function("turned")
    wanted = x.copy()
    wanted[251:] = 0  # only six of the last bytes are copied
    wanted = wanted.reshape(4, 8, 8).swapaxes(1, 2)
    for order, waits, is_there in (
        ("forward", 1, True),
        ("backward", 0, True),
        ("forward", 0, False),
    ):
        y = numpy.zeros((4, 8, 8), "uint16")
        with thread_order(order):
            run((1,), (32,), (x.ctypes.data, y.ctypes.data, numpy.int32(waits)))
        assert (y.tobytes() == wanted.tobytes()) is is_there


@pytest.mark.thorough
def test_addresses_that_matrices_and_copies_cannot_have_are_errors():
    x = numpy.zeros(300, "uint16")
    run = emulated("bfloat16", COPIES).function("turned")
    with pytest.raises(EmulationError, match="misaligned"):
        run((1,), (32,), (x.ctypes.data + 2, x.ctypes.data, numpy.int32(1)))
    with pytest.raises(EmulationError, match="a warp of 16 lanes"):
        run((1,), (16,), (x.ctypes.data, x.ctypes.data, numpy.int32(1)))


def test_tiles_are_chosen_once_for_arrays_of_one_form(cupy, monkeypatch):
    """The host's time of a launch: a table is looked into, and nothing is weighed again."""
    shape = (1, 1, 1, 9, 9, 16, 0)
    first = computed(cupy, "float32", shape)
    monkeypatch.setattr(tensor_attention, "chosen", None)
    again = computed(cupy, "float32", shape)
    assert [x.tobytes() for x in again] == [x.tobytes() for x in first]
