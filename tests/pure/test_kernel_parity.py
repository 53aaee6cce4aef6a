"""The fast twins against the plain ones, over one table of shapes; and bits that depend on content alone.

Tolerance: 100 units in the last place of the largest value, since sums go in another order. What is said to have the same
bits is compared bit by bit.
"""
import inspect
from dataclasses import dataclass, field
from typing import Callable

import numpy
import pytest

from shardkit.array import kernels
from shardkit.array.kernels import cpu, reference
from shardkit.array.kernels.cpu.compiled import CodeFiles

ANY = [(0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4), (65, 129), (70_001,)]
ROWS = [(0, 5), (1, 1), (3, 1), (5, 7), (2, 64), (33, 47), (4, 1025), (300, 512)]
VECTORS = [(0,), (1,), (7,), (257,), (70_001,)]
# batch, heads, key heads, queries, keys, head dim, first query
ATTENTION = [(1, 1, 1, 1, 1, 2, 0), (2, 3, 3, 5, 5, 4, 0), (0, 2, 2, 3, 3, 4, 0), (2, 4, 2, 0, 3, 4, 0), (2, 6, 2, 5, 9, 4, 4),
             (2, 4, 2, 3, 9, 4, 2), (1, 2, 1, 65, 65, 8, 0), (1, 2, 2, 130, 700, 16, 570), (1, 2, 1, 1030, 1030, 8, 0)]
HEADS = [(0, 2, 3, 4), (1, 1, 1, 2), (2, 3, 5, 8), (2, 4, 33, 64)]


@dataclass(frozen=True)
class Line:
    """How to call a kernel: (n, shape) -> its positional arguments, where n(shape) makes normal numbers.

    in_place  numbers of the arguments that `out` may be (with several buffers: that the first may be)
    """

    shapes: list
    arguments: Callable
    keywords: dict = field(default_factory=dict)
    in_place: tuple = ()


def targets(count, stop):
    return numpy.arange(count) * 7919 % max(stop, 1)


def attention(n, s):
    q, k, v = n((s[0], s[1], s[3], s[5])), n((s[0], s[2], s[4], s[5])), n((s[0], s[2], s[4], s[5]))
    return q, k, v, 0.4, s[6]


def attention_backward(n, s):
    q, k, v, scale, first = attention(n, s)
    return n(q.shape), q, k, v, *reference.causal_attention(q, k, v, scale, first), scale, first


def layer_norm_backward(n, s):
    x, w = n(s), n(s[1:])
    return n(s), x, w, *reference.layer_norm(x, w, w, 1e-5)[1:]


def rms_norm_backward(n, s):
    x, w = n(s), n(s[1:])
    return n(s), x, w, *reference.rms_norm(x, w, 1e-6)[1:]


def cross_entropy_backward(n, s):
    x, t = n(s), targets(*s)
    t[::3] = -1
    return 0.7, x, t, reference.cross_entropy(x, t)[1], targets(s[0], 5) > 1


ADAM = {"step": 3, "lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "gradient_scale": 0.3}
MOMENTUM = {"lr": 0.1, "beta": 0.9, "weight_decay": 0.01, "gradient_scale": 0.3}
TABLE = {
    "adam": [Line(VECTORS, lambda n, s: (n(s), n(s), n(s), abs(n(s))), {**ADAM, "decoupled": decoupled})
             for decoupled in (False, True)],
    "add_layer_norm": [Line(ROWS, lambda n, s: (n(s), n(s), n(s[1:]), n(s[1:]), 1e-5), in_place=(0, 1))],
    "add_rms_norm": [Line(ROWS, lambda n, s: (n(s), n(s), n(s[1:]), 1e-6), in_place=(0, 1))],
    "bias_gelu": [Line(ROWS, lambda n, s: (n(s), n(s[1:])), in_place=(0,))],
    "bias_gelu_backward": [Line(ROWS, lambda n, s: (n(s), n(s), n(s[1:])), in_place=(0, 1))],
    "block_squares": [Line(VECTORS, lambda n, s: (n(s),)), Line(VECTORS, lambda n, s: (n(s), 100))],
    "causal_attention": [Line(ATTENTION, attention)],
    "causal_attention_backward": [Line(ATTENTION, attention_backward)],
    "cross_entropy": [Line(ROWS, lambda n, s: (n(s), targets(*s))),
                      Line(ROWS, lambda n, s: (n(s), targets(*s) - 1, targets(s[0], 5) > 1))],
    "cross_entropy_backward": [Line(ROWS, cross_entropy_backward, in_place=(1,))],
    "dropout": [Line(ANY, lambda n, s: (n(s), 2 ** 63 + 17, 5, 0.3), in_place=(0,)),
                Line([(0,), (5000,)], lambda n, s: (n(s), 3, 4 * 10 ** 10 + 2, 0.0), in_place=(0,))],
    "dropout_mask": [Line(VECTORS, lambda n, s: (2 ** 64 - 1, 6, 6 + s[0], 0.3))],
    "embedding_backward": [Line(ROWS, lambda n, s: (n(s), targets(s[0], 11), 11))],
    "from_half": [Line(VECTORS, lambda n, s: ((3 * n(s)).astype("float16"), n(1).dtype))],
    "gelu": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "gelu_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "largest_magnitude": [Line(VECTORS, lambda n, s: (n(s),)), Line(VECTORS, lambda n, s: (-abs(n(s)),))],
    "layer_norm": [Line(ROWS, lambda n, s: (n(s), n(s[1:]), n(s[1:]), 1e-5), in_place=(0,))],
    "layer_norm_backward": [Line(ROWS, layer_norm_backward, in_place=(0, 1))],
    "momentum": [Line(VECTORS, lambda n, s: (n(s), n(s), n(s)), {**MOMENTUM, "nesterov": nesterov})
                 for nesterov in (False, True)],
    "rms_norm": [Line(ROWS, lambda n, s: (n(s), n(s[1:]), 1e-6), in_place=(0,))],
    "rms_norm_backward": [Line(ROWS, rms_norm_backward, in_place=(0, 1))],
    "rotary": [Line(HEADS, lambda n, s: (n(s), n((s[2], s[3] // 2)), n((s[2], s[3] // 2))))],
    "rotary_tables": [Line([(0, 4), (5, 6)], lambda n, s: (numpy.arange(s[0]), s[1], 1e4, n(1).dtype))],
    "sgd": [Line(VECTORS, lambda n, s: (n(s), n(s)), {"lr": 0.1, "weight_decay": 0.01, "gradient_scale": 0.3}),
            Line(VECTORS, lambda n, s: (n(s), n(s)), {"lr": 0.1})],
    "sigmoid": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "silu": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "silu_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "softmax": [Line(ANY, lambda n, s: (n(s),), in_place=(0,)), Line([(3, 5), (2, 3, 4)], lambda n, s: (n(s), 0), in_place=(0,))],
    "softmax_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1)),
                         Line([(3, 5), (2, 3, 4)], lambda n, s: (n(s), n(s), 0), in_place=(0, 1))],
    "swiglu": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "swiglu_backward": [Line(ANY, lambda n, s: (n(s), n(s), n(s)), in_place=(0, 1, 2))],
    "to_half": [Line(VECTORS, lambda n, s: (n(s),)), Line(VECTORS, lambda n, s: (n(s) * 10 ** (4 * n(s)), 0.7))],
    "tree_sum": [Line(VECTORS, lambda n, s, count=count: ([n(s) for _ in range(count)],)) for count in (1, 2, 3, 4, 5, 7, 8)],
}
EXACT = {"adam", "dropout", "dropout_mask", "embedding_backward", "from_half", "largest_magnitude", "momentum",
         "rotary_tables", "sgd", "to_half", "tree_sum"}
IN_PLACE_RULES = {"adam", "momentum", "sgd"}
CASES = [(name, line, shape) for name, lines in TABLE.items() for line in lines for shape in line.shapes]
every_case = pytest.mark.parametrize("name, line, shape", CASES, ids=[f"{c[0]}-{'x'.join(map(str, c[2]))}" for c in CASES])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def made(line, shape, dtype):
    """The arguments of a line, the same numbers each time."""
    rng = numpy.random.default_rng(0)
    return line.arguments(lambda size: rng.standard_normal(size).astype(dtype), shape)


def results(kernel, arguments, line):
    """Everything that comes out, and the arguments after the call: rules work in place, and nothing else may write."""
    returned = [numpy.float64(x) if isinstance(x, float) else x for x in as_tuple(kernel(*arguments, **line.keywords))]
    return [array for array in [*returned, *flat(arguments)] if isinstance(array, (numpy.ndarray, numpy.float64))]


def as_tuple(returned):
    return returned if isinstance(returned, tuple) else (returned,)


def flat(arguments):
    return [each for argument in arguments for each in (argument if isinstance(argument, list) else [argument])]


def mapped(change, arguments):
    """The arguments with every floating-point array changed."""
    def one(x):
        if isinstance(x, list):
            return [one(each) for each in x]
        return change(x) if isinstance(x, numpy.ndarray) and x.dtype.kind == "f" else x
    return tuple([one(argument) for argument in arguments])


def bits(arrays):
    return [(array.shape, array.dtype.str, array.tobytes()) for array in arrays]


# ---- the same values ---------------------------------------------------------------------------------------------

def test_every_kernel_has_both_twins_one_signature_and_a_line_in_the_table():
    assert set(reference.__all__) == set(cpu.__all__) == set(kernels.__all__) == set(TABLE)
    for name in TABLE:
        plain, fast, door = [inspect.signature(getattr(module, name)) for module in (reference, cpu, kernels)]
        assert str(plain) == str(fast) == str(door), name


@every_case
@every_dtype
def test_the_fast_twin_computes_what_the_plain_one_does(name, line, shape, dtype):
    wanted = results(getattr(reference, name), made(line, shape, dtype), line)
    got = results(getattr(cpu, name), made(line, shape, dtype), line)
    assert [(array.shape, array.dtype) for array in got] == [(array.shape, array.dtype) for array in wanted]
    if name in EXACT:
        assert bits(got) == bits(wanted)
        return
    for found, expected in zip(got, wanted, strict=True):
        tolerance = 100 * numpy.finfo(dtype).eps * max(1, abs(expected).max(initial=0))
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
        assert getattr(cpu, name)(*arguments, wanted=wanted)[alone].tobytes() == together[alone].tobytes()


# ---- the same bits -------------------------------------------------------------------------------------------------

def strided(x):
    """The same numbers, every other element of a larger array."""
    wide = numpy.full(tuple(2 * size for size in x.shape), numpy.nan, x.dtype)
    view = wide[tuple([slice(None, None, 2)] * x.ndim)]
    view[...] = x
    return view


def turned(x):
    """The same numbers, the first dimension last in memory."""
    return numpy.moveaxis(numpy.ascontiguousarray(numpy.moveaxis(x, 0, -1)), -1, 0)


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@every_case
@pytest.mark.parametrize("change", [strided, turned, read_only])
def test_the_bits_do_not_depend_on_strides_and_inputs_may_be_read_only(name, line, shape, change):
    if change is read_only and name in IN_PLACE_RULES:
        return
    got = results(getattr(kernels, name), mapped(change, made(line, shape, "float32")), line)
    assert bits(got) == bits(results(getattr(kernels, name), made(line, shape, "float32"), line))


@pytest.mark.parametrize("name", TABLE)
def test_the_bits_do_not_depend_on_where_in_memory_the_inputs_lie(name):
    for line in TABLE[name]:
        for shape in line.shapes[:-1]:
            def moved(x):
                memory = numpy.empty(x.size + 32, x.dtype)
                view = memory[offset:offset + x.size].reshape(x.shape)
                view[...] = x
                return view
            seen = set()
            for offset in (0, 1, 3, 8, 15):
                seen.add(str(bits(results(getattr(kernels, name), mapped(moved, made(line, shape, "float32")), line))))
            assert len(seen) == 1


def test_every_loop_is_compiled_once_for_a_dtype_whatever_the_strides():
    for dtype in ("float32", "float64"):
        for name, line, shape in CASES:
            for change in (strided, read_only)[:1 if name in IN_PLACE_RULES else 2]:
                results(getattr(cpu, name), mapped(change, made(line, shape, dtype)), line)
    loops = [loop for module in vars(cpu).values() if inspect.ismodule(module) for loop in vars(module).values()
             if isinstance(getattr(loop, "_cache", None), CodeFiles)]
    assert len(loops) > 30 and all(1 <= len(loop.signatures) <= 2 for loop in loops)


WITH_OUT = [name for name in TABLE if "out" in inspect.signature(getattr(reference, name)).parameters]
twins = pytest.mark.parametrize("twin", [cpu, reference], ids=["cpu", "reference"])


def buffers_like(name, returned):
    """NaN-filled buffers for what a kernel returned, in the form that its `out` takes; and that part of what it returned."""
    default = inspect.signature(getattr(reference, name)).parameters["out"].default
    parts = returned[:len(default)] if isinstance(default, tuple) else returned[:1]
    buffers = tuple([numpy.full(part.shape, numpy.nan, part.dtype) for part in parts])
    return (buffers if isinstance(default, tuple) else buffers[0]), buffers, parts


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
                again = as_tuple(kernel(*arguments, out=buffers if len(buffers) > 1 else buffers[0]))
                assert again[0] is arguments[number]
                assert bits(again) == bits(returned)


def test_both_results_of_swiglu_may_overwrite_inputs():
    n, shape = numpy.random.default_rng(0).standard_normal, 70_001
    g, x, y = [n(shape).astype("float32") for _ in range(3)]
    wanted = bits(cpu.swiglu_backward(g, x, y))
    assert bits(cpu.swiglu_backward(g, x, y, out=(x, y))) == wanted


# ---- numbers that are not finite -----------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "softmax", "swiglu", "bias_gelu", "layer_norm", "rms_norm",
                                  "cross_entropy", "gelu_backward", "silu_backward", "softmax_backward", "tree_sum",
                                  "block_squares", "sgd", "adam", "momentum", "causal_attention"])
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
