"""The CUDA twins on a GPU: the checks that the emulator makes in tests/pure/test_cuda_kernels.py,
on the same table.
"""

import device_kernels as checks
import pytest
from gpus import why_no_gpu
from kernel_table import DEVICE_CASES, ON_DEVICE, TABLE, WITH_OUT_ON_DEVICE, bits

if why_no_gpu():  # thousands of cases are not even collected
    pytest.skip(f"needs a real GPU: {why_no_gpu()}", allow_module_level=True)
pytestmark = pytest.mark.real
every_case = pytest.mark.parametrize(
    "name, line, shape",
    DEVICE_CASES,
    ids=[f"{c[0]}-{'x'.join(map(str, c[2]))}" for c in DEVICE_CASES],
)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@pytest.fixture
def cupy(gpu):
    return gpu.device.xp


@every_dtype
@every_case
def test_the_cuda_twin_computes_what_the_plain_one_does(cupy, name, line, shape, dtype):
    checks.check_parity(cupy, name, line, shape, dtype)


@every_case
def test_the_same_call_gives_the_same_bits_again(cupy, name, line, shape):
    first, *rest = [
        bits(checks.device_results(cupy, name, line, shape, "float32")) for _ in range(4)
    ]
    assert all(again == first for again in rest)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_bits_do_not_depend_on_strides_and_places_in_memory(cupy, name):
    for line in TABLE[name]:
        for shape in line.shapes:
            checks.check_places(cupy, name, line, shape)


@pytest.mark.parametrize("name", WITH_OUT_ON_DEVICE)
def test_results_go_into_the_buffers_given_and_over_inputs_with_the_same_bits(cupy, name):
    for line in TABLE[name]:
        for shape in line.shapes:
            checks.check_out(cupy, name, line, shape)


@every_dtype
@pytest.mark.parametrize("name", ["layer_norm_backward", "rms_norm_backward", "bias_gelu_backward"])
def test_each_gradient_has_the_bits_it_has_alone_and_the_rest_is_none(cupy, name, dtype):
    checks.check_alone(cupy, name, dtype)


@every_dtype
def test_rows_with_gaps_and_several_matrices_are_summed(cupy, dtype):
    checks.check_sums_of_rows(cupy, dtype)


@pytest.mark.parametrize("dtype", checks.HALVES)
def test_the_softmax_of_huge_half_floats_follows_their_differences(cupy, dtype):
    if dtype == "bfloat16" and int(cupy.__version__.split(".")[0]) < 14:
        pytest.skip("CuPy has bfloat16 from version 14 on")
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    checks.check_softmax_of_huge_halves(cupy, dtype)


@pytest.mark.parametrize("width, names", checks.WIDE_ROWS)
def test_wide_rows_are_shared_by_more_threads(cupy, width, names):
    checks.check_wide_rows(cupy, width, names)


@pytest.mark.parametrize("width", [1, 3, 64, 257, 700, 5000, 40000])
def test_each_row_has_the_bits_it_has_alone(cupy, width):
    checks.check_rows_alone(cupy, width)


@every_dtype
def test_huge_inputs_do_not_overflow_to_nan(cupy, dtype):
    checks.check_huge(cupy, dtype)


def test_denormal_numbers_are_at_worst_zero(cupy):
    checks.check_denormals(cupy)


@every_dtype
@pytest.mark.parametrize("head_dim", [32, 40, 64, 80, 96, 128, 200, 256, 400])
def test_attention_of_any_head_dim(cupy, head_dim, dtype):
    checks.check_attention(cupy, head_dim, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", checks.OF_HALVES)
def test_half_floats_are_computed_in_float32_and_rounded(cupy, name, dtype):
    if dtype == "bfloat16" and int(cupy.__version__.split(".")[0]) < 14:
        pytest.skip("CuPy has bfloat16 from version 14 on")
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    for line in TABLE[name]:
        for shape in line.shapes:
            checks.check_half_parity(cupy, name, line, shape, dtype)


@pytest.mark.parametrize("dtype", checks.HALVES)
@pytest.mark.parametrize("name", ["gelu", "gelu_backward", "sigmoid", "silu"])
def test_every_half_float_is_rounded_as_by_float64(cupy, name, dtype):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    checks.check_every_half(cupy, name, dtype)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dtype, width", [("float32", 50257), ("float64", 37), ("bfloat16", 50257)])
def test_rows_of_odd_width_have_the_bits_of_aligned_ones(cupy, dtype, width, first):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    checks.check_odd_rows(cupy, dtype, width, first)
