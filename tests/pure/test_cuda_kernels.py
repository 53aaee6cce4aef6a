"""The CUDA twins of the kernels, run by the emulator on the CPU: the plain twins' values, bits that
depend on content alone.
"""

import inspect
from functools import partial

import device_kernels as checks
import numpy
import pytest
from each_case import check_each
from kernel_table import (
    DEFINED_ALONE_ON_CUDA,
    EXACT,
    ON_DEVICE,
    TABLE,
    WITH_OUT_ON_DEVICE,
    bits,
    cuda,
    made,
    reference,
)
from nvrtc import library
from software_cuda.module import running_ptx
from stand_in import pretended_gpu
from stand_in.emulator import compiler, thread_order

from shardkit.testing.array import KERNELS, kernels

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="the emulator of CUDA kernels needs g++, which was not found"
)
every_dtype = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.sweep)]
)
# float64 compiles other code, which takes g++ as long again: by default what has to be exact, the
# rest in the sweep; so are shapes of attention that take as long as all others together, but one
LARGE = (800, 850)


def cases_of(name, dtype, is_large):
    """Return the cases of a kernel: {line and shape: what a check of it takes}."""
    return {
        f"{number} {shape} {dtype}": (name, line, shape, dtype)
        for number, line in enumerate(TABLE[name])
        for shape in line.shapes
        if (shape[3:5] == LARGE) == is_large
    }


def is_of_the_sweep(name, dtype, is_large):
    return is_large or dtype == "float64" and name not in EXACT - {"embedding_backward", "dropout"}


PARITY = [
    pytest.param(
        name,
        dtype,
        is_large,
        id=f"{name}-{dtype}" + "-large" * is_large,
        marks=[pytest.mark.sweep] * is_of_the_sweep(name, dtype, is_large),
    )
    for name in ON_DEVICE
    for dtype in ("float32", "float64")
    for is_large in (False, True)
    if cases_of(name, dtype, is_large)
]
SOME_HALVES = {("layer_norm", "bfloat16"), ("dropout", "float16")}
HALVES = [
    pytest.param(name, dtype, marks=[pytest.mark.sweep] * ((name, dtype) not in SOME_HALVES))
    for name in checks.OF_HALVES
    for dtype in checks.HALVES
]
every_kernel = pytest.mark.parametrize("name", ON_DEVICE)


@pytest.fixture(scope="module")
def cupy():
    with pretended_gpu():
        import cupy

        yield cupy


def small(name):
    """(line, shape) of the table that are not large: for what is not about size."""
    return [
        (line, shape)
        for line in TABLE[name]
        for shape in line.shapes
        if max(shape) < 700 and numpy.prod(shape) < 20_000 or len(shape) == 2 and max(shape) > 1000
    ]


def test_every_kernel_has_a_cuda_twin_of_the_same_signature():
    assert set(vars(cuda)) == set(vars(reference)) == set(TABLE)
    for name in TABLE:
        is_plain = getattr(cuda, name) is getattr(reference, name)
        assert is_plain == (name in DEFINED_ALONE_ON_CUDA), name
        assert str(inspect.signature(getattr(cuda, name))) == str(
            inspect.signature(getattr(reference, name))
        ), name


@pytest.mark.parametrize("name, dtype, is_large", PARITY)
@pytest.mark.thorough(but=20)
def test_the_cuda_twin_computes_what_the_plain_one_does(cupy, name, dtype, is_large):
    check_each(cases_of(name, dtype, is_large), partial(checks.check_parity, cupy))


@pytest.mark.skipif(library() is None, reason="PTX is made by NVRTC, which was not found")
@every_kernel
@pytest.mark.thorough(but=2)
def test_the_ptx_of_a_gpu_computes_what_the_plain_twin_does(cupy, name):
    with running_ptx("90"):
        for line, shape in small(name)[:3]:
            checks.check_parity(cupy, name, line, shape, "float32")


@every_kernel
@pytest.mark.thorough(but=4)
def test_the_order_in_which_threads_run_changes_no_bit(cupy, name):
    for line, shape in small(name):
        wanted = bits(checks.device_results(cupy, name, line, shape, "float32"))
        for order in ("backward", 2):
            with thread_order(order):
                assert bits(checks.device_results(cupy, name, line, shape, "float32")) == wanted, (
                    shape,
                    order,
                )


@every_kernel
@pytest.mark.thorough(but=4)
def test_bits_do_not_depend_on_strides_and_places_in_memory(cupy, name):
    for line, shape in small(name):
        checks.check_places(cupy, name, line, shape)


@pytest.mark.parametrize("name", WITH_OUT_ON_DEVICE)
@pytest.mark.thorough(but=8)
def test_results_go_into_the_buffers_given_and_over_inputs_with_the_same_bits(cupy, name):
    for line, shape in small(name):
        checks.check_out(cupy, name, line, shape)


@every_dtype
@pytest.mark.parametrize("name", ["layer_norm_backward", "rms_norm_backward", "bias_gelu_backward"])
def test_each_gradient_has_the_bits_it_has_alone_and_the_rest_is_none(cupy, name, dtype):
    checks.check_alone(cupy, name, dtype)


@pytest.mark.thorough
@every_dtype
def test_rows_with_gaps_and_several_matrices_are_summed(cupy, dtype):
    checks.check_sums_of_rows(cupy, dtype, many_rows=(1,))  # two pieces take a minute on a CPU


@pytest.mark.parametrize("dtype", checks.HALVES)
def test_the_softmax_of_huge_half_floats_follows_their_differences(cupy, dtype):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    checks.check_softmax_of_huge_halves(cupy, dtype)


@pytest.mark.parametrize("width, names", checks.WIDE_ROWS)
@pytest.mark.thorough
def test_wide_rows_are_shared_by_more_threads(cupy, width, names):
    checks.check_wide_rows(cupy, width, names)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dtype, width", [("float32", 269), ("float64", 37), ("bfloat16", 269)])
def test_rows_of_odd_width_have_the_bits_of_aligned_ones(cupy, dtype, width, first):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    checks.check_odd_rows(cupy, dtype, width, first)


@pytest.mark.parametrize("width", [1, 3, 64, 257, 700, 40_000])
def test_each_row_has_the_bits_it_has_alone(cupy, width):
    checks.check_rows_alone(cupy, width)


@pytest.mark.parametrize(
    "name",
    [
        "gelu",
        "silu",
        "sigmoid",
        "softmax",
        "swiglu",
        "bias_gelu",
        "layer_norm",
        "rms_norm",
        "cross_entropy",
        "gelu_backward",
        "silu_backward",
        "softmax_backward",
        "tree_sum",
        "block_squares",
        "sgd",
        "adam",
        "momentum",
        "lion",
        "causal_attention",
        "largest_magnitude",
    ],
)
def test_a_nan_that_goes_in_comes_out(cupy, name):
    checks.check_nan(cupy, name)


@every_dtype
def test_huge_inputs_do_not_overflow_to_nan(cupy, dtype):
    checks.check_huge(cupy, dtype)


def test_denormal_numbers_are_at_worst_zero(cupy):
    checks.check_denormals(cupy)


@pytest.mark.parametrize(
    "head_dim, dtype",
    [
        (40, "float32"),
        (400, "float32"),
        *[
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in ((96, "float32"), (200, "float32"), (64, "float64"))
        ],
    ],
)
@pytest.mark.thorough
def test_attention_of_wide_heads_goes_by_smaller_tiles_and_the_widest_to_the_plain_twin(
    cupy, head_dim, dtype
):
    checks.check_attention(cupy, head_dim, dtype)


@pytest.mark.parametrize("name, dtype", HALVES)
@pytest.mark.thorough
def test_half_floats_are_computed_in_float32_and_rounded(cupy, name, dtype):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    for line, shape in small(name):
        checks.check_half_parity(cupy, name, line, shape, dtype)


@pytest.mark.parametrize("dtype", checks.HALVES)
@pytest.mark.parametrize("name", ["gelu", "gelu_backward", "sigmoid", "silu"])
@pytest.mark.thorough
def test_every_half_float_is_rounded_as_by_float64(cupy, name, dtype):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    checks.check_every_half(cupy, name, dtype)


def test_a_sum_of_more_buffers_than_a_launch_takes_is_the_same_tree(cupy):
    for count in (9, 16, 17, 21):
        line = TABLE["tree_sum"][0]
        buffers = [
            made(line, (257,), "float32")[0][0] * (1 + number) ** 0.5 for number in range(count)
        ]
        got = cuda.tree_sum([cupy.asarray(buffer) for buffer in buffers])
        assert got.get().tobytes() == reference.tree_sum(buffers).tobytes()


def test_a_gradient_of_another_dtype_is_taken_by_its_numbers(cupy):
    x, g = [
        numpy.random.default_rng(seed).standard_normal((5, 8)).astype("float32")
        for seed in range(2)
    ]
    for name, rest in (
        ("softmax_backward", ()),
        ("bias_gelu_backward", (x[0],)),
        ("swiglu_backward", (x,)),
    ):
        wanted = checks.call(cupy, name, checks.on_device(cupy, (g, x, *rest)))
        got = checks.call(cupy, name, checks.on_device(cupy, (g.astype("float64"), x, *rest)))
        assert bits(checks.on_host(list(got))) == bits(checks.on_host(list(wanted)))


# ---- the door ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, is_taken", [("float32", True), ("float16", True), ("int32", False)]
)
def test_the_door_takes_the_cuda_twin_for_the_dtypes_that_it_computes(
    cupy, monkeypatch, dtype, is_taken
):
    taken = []
    entry = KERNELS["block_squares"]
    entry.load("cuda")
    monkeypatch.setattr(entry, "cuda", lambda x, block: taken.append(x))
    x = cupy.asarray(numpy.arange(512, dtype=dtype))
    kernels.block_squares(x, 256)
    assert (taken == [x]) if is_taken else not taken


def test_what_is_too_wide_for_a_gpu_goes_to_the_plain_twin(cupy):
    for dtype, widest_head, widest_row in (
        ("float32", 368, 8192),
        ("float64", 176, 4096),
        ("bfloat16", 368, 8192),
    ):
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
        for extra, fits in ((0, True), (1, False)):
            assert (
                KERNELS["causal_attention"].computes_on_cuda(
                    cupy.empty((1, 1, 1, widest_head + extra), dtype)
                )
                is fits
            )
            assert (
                KERNELS["layer_norm_backward"].computes_on_cuda(
                    cupy.empty((1, widest_row + extra), dtype)
                )
                is fits
            )


def test_the_door_gives_the_mask_of_the_cpu_on_the_device(cupy):
    mask = kernels.dropout_mask(5, 3, 1000, 0.3, cupy)
    assert isinstance(mask, cupy.ndarray)
    assert mask.get().tobytes() == kernels.dropout_mask(5, 3, 1000, 0.3).tobytes()


@pytest.mark.thorough
def test_only_the_kernel_that_returns_a_number_copies_to_the_host():
    with pretended_gpu() as machine:
        import cupy

        for name in ON_DEVICE:
            line, shape = small(name)[-1]
            arguments = checks.on_device(cupy, made(line, shape, "float32"))
            machine.transfers.clear()
            checks.call(cupy, name, arguments, **line.keywords)
            found = [transfer.kind for transfer in machine.transfers]
            if name.startswith("pool_maxima"):  # its windows are tables on the host
                found = [kind for kind in found if kind != "to device"]
            assert found == (["to host"] if name == "largest_magnitude" else []), name
