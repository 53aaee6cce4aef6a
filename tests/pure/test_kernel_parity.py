"""The fast twins against the plain ones, over one table of shapes; and bits that depend on content
alone.

Tolerance: 100 units in the last place of the largest value, since sums go in another order. What is
said to have the same bits is compared bit by bit.
"""

import inspect
import re
import sys
from collections import Counter

import numpy
import pytest
from each_case import check_each
from kernel_table import (
    CASES,
    DEFINED_ALONE_ON_CUDA,
    EXACT,
    IN_PLACE_RULES,
    TABLE,
    WITH_OUT,
    as_tuple,
    bits,
    buffers_like,
    cpu,
    cuda,
    flat,
    made,
    mapped,
    read_only,
    reference,
    results,
    strided,
    turned,
)

from shardkit.testing.array import KERNELS, Loop, compiled, dtype_named, kernels

every_kernel = pytest.mark.parametrize("name", TABLE)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


# ---- the same values -----------------------------------------------------------------------------


def test_every_kernel_has_both_twins_one_signature_and_a_line_in_the_table():
    assert set(kernels.__all__) == set(KERNELS) == set(TABLE)
    for name in TABLE:
        plain, fast, on_gpu, door = [
            inspect.signature(getattr(where, name)) for where in (reference, cpu, cuda, kernels)
        ]
        assert str(plain) == str(fast) == str(on_gpu) == str(door), name
        assert name == "rotary_tables" or getattr(reference, name) is not getattr(cpu, name)
        is_alone = getattr(reference, name) is getattr(cuda, name)
        assert is_alone == (name in DEFINED_ALONE_ON_CUDA), name


def cases_of(name, *more):
    """Return the cases of a kernel: {its name and the shape: what a check of it takes}."""
    return {
        f"{name} {number} {shape}": (name, line, shape, *more)
        for number, line in enumerate(TABLE[name])
        for shape in line.shapes
    }


@every_kernel
@every_dtype
def test_the_fast_twin_computes_what_the_plain_one_does(name, dtype):
    check_each(cases_of(name, dtype), check_fast_twin)


def check_fast_twin(name, line, shape, dtype):
    wanted = results(getattr(reference, name), made(line, shape, dtype), line)
    got = results(getattr(cpu, name), made(line, shape, dtype), line)
    assert [(array.shape, array.dtype) for array in got] == [
        (array.shape, array.dtype) for array in wanted
    ]
    if name in EXACT:
        assert bits(got) == bits(wanted)
        return
    for found, expected in zip(got, wanted, strict=True):
        largest = abs(expected).max(initial=1, where=numpy.isfinite(expected))
        tolerance = 100 * numpy.finfo(dtype).eps * largest
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@every_dtype
@pytest.mark.parametrize("name", ["layer_norm_backward", "rms_norm_backward", "bias_gelu_backward"])
def test_each_gradient_has_the_bits_it_has_alone_and_the_rest_is_none(name, dtype):
    line = TABLE[name][0]
    arguments = made(line, (33, 47), dtype)
    together = getattr(cpu, name)(*arguments)
    for alone in range(len(together)):
        wanted = tuple([number == alone for number in range(len(together))])
        for twin in (cpu, reference):
            got = getattr(twin, name)(*arguments, wanted=wanted)
            assert [array is not None for array in got] == list(wanted)
        assert (
            getattr(cpu, name)(*arguments, wanted=wanted)[alone].tobytes()
            == together[alone].tobytes()
        )


# ---- the same bits -------------------------------------------------------------------------------


@every_kernel
@pytest.mark.thorough(but=40)
def test_the_bits_do_not_depend_on_strides_and_inputs_may_be_read_only(name):
    check_each(cases_of(name), check_strides)


def check_strides(name, line, shape):
    wanted = bits(results(getattr(kernels, name), made(line, shape, "float32"), line))
    for change in (strided, turned) if name in IN_PLACE_RULES else (strided, turned, read_only):
        arguments = mapped(change, made(line, shape, "float32"))
        got = results(getattr(kernels, name), arguments, line)
        assert bits(got) == wanted, change.__name__


def test_compiled_functions_that_one_function_makes_have_names_of_their_own():
    """Processes link loops that others compiled by these names (compiled.py)."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith(f"{compiled.__package__}.")
    ]
    found, todo = {}, [value for module in modules for value in vars(module).values()]
    while todo:
        value = todo.pop()
        function = getattr(value, "py_func", None)
        if isinstance(value, (tuple, list)):
            todo += value
        elif isinstance(value, dict) and len(value) < 100:
            todo += value.values()
        elif function is not None and id(value) not in found:
            found[id(value)] = function.__module__, function.__qualname__
            todo += [cell.cell_contents for cell in function.__closure__ or ()]
    names = Counter(found.values())
    assert sum(name.endswith("_multiply") for _, name in names) > 1  # made by one function
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.thorough(but=30)
@every_kernel
def test_the_bits_do_not_depend_on_where_in_memory_the_inputs_lie(name):
    for line in TABLE[name]:
        for shape in line.shapes[:-1]:

            def moved(x):
                memory = numpy.empty(x.size + 32, x.dtype)
                view = memory[offset : offset + x.size].reshape(x.shape)
                view[...] = x
                return view

            seen = set()
            for offset in (0, 1, 3, 8, 15):
                seen.add(
                    str(
                        bits(
                            results(
                                getattr(kernels, name),
                                mapped(moved, made(line, shape, "float32")),
                                line,
                            )
                        )
                    )
                )
            assert len(seen) == 1


@every_dtype
@pytest.mark.thorough
def test_every_loop_is_compiled_once_for_a_dtype_whatever_the_strides(dtype):
    for name, line, shape in CASES:
        for change in (strided, read_only)[: 1 if name in IN_PLACE_RULES else 2]:
            results(getattr(cpu, name), mapped(change, made(line, shape, dtype)), line)
    cpu.add_row(x := numpy.ones((3, 5), dtype), x[0].copy(), out=x)
    halves = cpu.to_half(
        numpy.ones(5, "float32"), out=numpy.empty(5, dtype_named("bfloat16"))
    )  # loops without twins on GPUs
    halves.flags.writeable = False
    assert (cpu.from_half(halves[::2], "float32") == 1).all()
    loops = [
        loop
        for module in {inspect.getmodule(loop) for loop in vars(cpu).values()}
        for loop in vars(module).values()
        if isinstance(loop, Loop)
    ]
    assert len(loops) > 30
    for loop in loops:
        dtypes = {re.sub(r"\[\d\]", "[]", " ".join(line)) for line in loop.signatures}
        assert 1 <= len(loop.signatures) == len(dtypes)


twins = pytest.mark.parametrize("twin", [cpu, reference], ids=["cpu", "reference"])


@twins
@pytest.mark.parametrize("name", WITH_OUT)
def test_results_go_into_the_buffers_given_with_the_same_bits(name, twin):
    kernel = getattr(twin, name)
    for line in TABLE[name]:
        for shape in line.shapes:
            arguments = made(line, shape, "float32")
            returned = as_tuple(kernel(*arguments))
            out, buffers, wanted = buffers_like(name, returned)
            again = as_tuple(kernel(*arguments, out=out))
            assert all(got is buffer for got, buffer in zip(again, buffers))
            assert bits(again) == bits(returned)
            assert bits(buffers) == bits(wanted)


@twins
@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name][0].in_place])
def test_results_may_overwrite_an_input_with_the_same_bits(name, twin):
    kernel = getattr(twin, name)
    for line in TABLE[name]:
        for shape in line.shapes:
            returned = as_tuple(kernel(*made(line, shape, "float32")))
            for number in line.in_place:
                arguments = made(line, shape, "float32")
                _, buffers, _ = buffers_like(name, returned)
                buffers = (arguments[number], *buffers[1:])
                again = as_tuple(
                    kernel(*arguments, out=buffers if len(buffers) > 1 else buffers[0])
                )
                assert again[0] is arguments[number]
                assert bits(again) == bits(returned)


def test_both_results_of_swiglu_may_overwrite_inputs():
    n, shape = numpy.random.default_rng(0).standard_normal, 70_001
    g, x, y = [n(shape).astype("float32") for _ in range(3)]
    wanted = bits(cpu.swiglu_backward(g, x, y))
    assert bits(cpu.swiglu_backward(g, x, y, out=(x, y))) == wanted


# ---- numbers that are not finite -----------------------------------------------------------------


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
        "cross_entropy_with_gradient",
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
    ],
)
def test_a_nan_that_goes_in_comes_out(name):
    line = TABLE[name][-1] if name in ("adam", "sgd") else TABLE[name][0]
    shape = line.shapes[1] if name == "causal_attention" else line.shapes[3]
    arguments = made(line, shape, "float32")
    flat(arguments)[0].reshape(-1)[-1] = numpy.nan
    out = getattr(cpu, name)(*arguments, **line.keywords)
    first = out[0] if isinstance(out, tuple) else arguments[0] if out is None else out
    assert numpy.isnan(first).any()


@every_dtype
def test_huge_inputs_do_not_overflow_to_nan(dtype):
    x = numpy.array([-1e4, -89, -88, 88, 89, 1e4], dtype)
    for name in ("gelu", "silu", "sigmoid", "softmax"):
        y = getattr(cpu, name)(x)
        assert numpy.isfinite(y).all()
        numpy.testing.assert_allclose(y, getattr(reference, name)(x), rtol=1e-6, atol=1e-30)


def test_logits_of_minus_infinity_have_probability_zero():
    x = numpy.array([[0, -numpy.inf, 1]], "float32")
    losses, log_sums = cpu.cross_entropy(x, numpy.array([2]))
    assert losses[0] == pytest.approx(numpy.log1p(numpy.exp(-1)), rel=1e-6)
    gradient = cpu.cross_entropy_backward(1.0, x, numpy.array([2]), log_sums)
    assert gradient[0, 1] == 0 and gradient.sum() == pytest.approx(0, abs=1e-6)
    at_once, again = cpu.cross_entropy_with_gradient(x, numpy.array([2]))
    numpy.testing.assert_allclose(at_once, gradient, atol=1e-6)
    assert again[0] == losses[0]


@every_dtype
def test_a_row_of_a_product_by_row_has_the_same_bits_among_any_others(dtype):
    x, weight = made(TABLE["product_by_row"][0], (13, 600, 70), dtype)
    together = cpu.product_by_row(x, weight)
    for rows in (slice(0, 1), slice(2, 4), slice(5, 8), slice(4, 13)):
        assert cpu.product_by_row(x[rows], weight).tobytes() == together[rows].tobytes()
    assert (cpu.product_by_row(x, weight[9:12]) == together[:, 9:12]).all()
