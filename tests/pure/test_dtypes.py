"""What each operation makes of booleans, integers and floats: values and dtypes, all by one table.

Every public operation of nn.ops and every method of a Tensor has a line in TABLE: what it makes of
what is not floating, an example, and for what is not refused its definition in NumPy. The examples
hold whole numbers whose sums and products do not fit into 8 bits.
"""

import inspect
import math

import numpy
import pytest
from each_case import check_each

from shardkit import ShapeError
from shardkit.nn import ForwardContext, Tensor, ops
from shardkit.testing.nn import doors, methods, operators

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

COUNTED = ["bool", "uint8", "int8", "int16", "int32", "int64"]
FLOATS = ["float32", "float64"]
HALVES = ["float16", *(["bfloat16"] if ml_dtypes else [])]
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
IDS = numpy.array([0, 0, 2, 0])
PLACES = numpy.array([[0, 1, 1], [2, 2, 0], [0, 0, 0], [1, 2, 0]])
MASK = numpy.array([True, False, True])

# What an operation makes of booleans and of integers: a dtype, theirs ("same"), or nothing.
SUM = ("int64", "int64")
MEAN = ("float32", "float32")
SAME = ("same", "same")
NUMBERS = ("refused", "same")
POWERS = ("int64", "same")
PLACE = ("int64", "int64", "int64")  # the third: of floats
TRUTH = ("bool", "bool", "bool")
REFUSED = ("refused", "refused")
HOLDS_SUMS = ("refused", "int64 alone")


def small(name, shape=(4, 3)):
    """Return whole numbers of a dtype, most of them not 0, whose sums exceed 8 bits."""
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
    count = math.prod(shape)
    numbers = numpy.array([90, 7, 3, 120, 2, 11, 1, 5, 100, 0, 2, 1, 4, 9])
    numbers = numbers % 12 if name in HALVES + FLOATS else numbers
    return numpy.resize(numbers, count).reshape(shape).astype(dtype)


def op(name, *arguments, **more):
    return lambda of: getattr(ops, name)(of(4, 3), *arguments, **more)


def refused(example):
    return REFUSED, example, None


def pools():
    for dims in (1, 2, 3):
        shape = (2, 2) + (4,) * dims
        for kind in ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool"):
            name = f"{kind}{dims}d"
            yield name, refused(lambda of, f=getattr(ops, name), s=shape: f(of(*s), 2))
        for name in (f"conv{dims}d", f"conv_transpose{dims}d"):
            weight = (2, 2) + (2,) * dims
            yield (
                name,
                refused(lambda of, f=getattr(ops, name), s=shape, w=weight: f(of(*s), of(*w))),
            )


def scattered(x, index, source):
    y = x.copy()
    numpy.add.at(y, (index, numpy.arange(3)[None, :]), source)
    return y


def segments(x, reduce):
    rows = [x[IDS == segment] for segment in range(4)]
    return numpy.stack([reduce(part) if len(part) else x[0] * 0 for part in rows])


def sums(function, **more):
    return lambda x: function(x.astype("int64"), **more)


def means(function):
    return lambda x: function(x.astype("float64"))


ATTENTION = lambda of: [of(1, 2, 4, 4)] * 3  # noqa: E731
RECURRENT = lambda of, gates: (of(8, 3)[: 2 * gates], of(8, 2)[: 2 * gates])  # noqa: E731

TABLE = {
    # sums and products
    "sum": (SUM, op("sum", 0), sums(numpy.sum, axis=0)),
    "prod": (SUM, op("prod", 1), sums(numpy.prod, axis=1)),
    "cumsum": (SUM, op("cumsum", 0), sums(numpy.cumsum, axis=0)),
    "cumprod": (SUM, op("cumprod", 1), sums(numpy.cumprod, axis=1)),
    "segment_sum": (
        SUM,
        op("segment_sum", IDS, 4),
        lambda x: segments(x.astype("int64"), lambda rows: rows.sum(0)),
    ),
    "einsum": (SUM, lambda of: ops.einsum("ij->j", of(4, 3)), sums(numpy.sum, axis=0)),
    "index_add": (
        HOLDS_SUMS,
        lambda of: ops.index_add(of(4, 3), 0, IDS, of(4, 3)),
        lambda x: scattered(x, IDS[:, None], x),
    ),
    "scatter_add": (
        HOLDS_SUMS,
        lambda of: ops.scatter_add(of(4, 3), 0, PLACES, of(4, 3)),
        lambda x: scattered(x, PLACES, x),
    ),
    # means, norms, deviations
    "mean": (MEAN, op("mean", 0), means(lambda x: x.mean(0))),
    "var": (MEAN, op("var", 0), means(lambda x: x.var(0, ddof=1))),
    "variance": (MEAN, op("variance", 0), means(lambda x: x.var(0))),
    "std": (MEAN, op("std", 0), means(lambda x: x.std(0, ddof=1))),
    "norm": (MEAN, op("norm", 2, 0), means(lambda x: numpy.sqrt((x * x).sum(0)))),
    "logsumexp": (
        MEAN,
        op("logsumexp", 0),
        means(lambda x: x.max(0) + numpy.log(numpy.exp(x - x.max(0)).sum(0))),
    ),
    "segment_mean": (
        MEAN,
        op("segment_mean", IDS, 4),
        means(lambda x: segments(x, lambda rows: rows.mean(0))),
    ),
    # order
    "max": (SAME, op("max", 0), lambda x: x.max(0)),
    "min": (SAME, op("min", 0), lambda x: x.min(0)),
    "segment_max": (
        SAME,
        op("segment_max", IDS, 4),
        lambda x: segments(x, lambda rows: rows.max(0)),
    ),
    "sort": (SAME, lambda of: ops.sort(of(4, 3), 0)[0], lambda x: numpy.sort(x, 0)),
    "topk": (SAME, lambda of: ops.topk(of(4, 3), 2, 0)[0], lambda x: numpy.sort(x, 0)[:1:-1]),
    "argmax": (PLACE, op("argmax", 0), lambda x: x.argmax(0)),
    "argmin": (PLACE, op("argmin", 0), lambda x: x.argmin(0)),
    "argsort": (PLACE, op("argsort", 0), lambda x: x.argsort(0, kind="stable")),
    "any": (TRUTH, op("any", 0), lambda x: (x != 0).any(0)),
    "all": (TRUTH, op("all", 0), lambda x: (x != 0).all(0)),
    "compare": (
        TRUTH,
        lambda of: ops.compare("gt", of(4, 3), of(3)),
        lambda x: x > small(x.dtype.name, (3,)),
    ),
    "maximum": (SAME, lambda of: ops.maximum(of(4, 3), of(3)), lambda x: numpy.maximum(x, x[0])),
    "minimum": (SAME, lambda of: ops.minimum(of(4, 3), of(3)), lambda x: numpy.minimum(x, x[0])),
    "where": (
        SAME,
        lambda of: ops.where(MASK, of(4, 3), of(3)),
        lambda x: numpy.where(MASK, x, x[0]),
    ),
    "masked_fill": (SAME, op("masked_fill", MASK, 0), lambda x: x * ~MASK),
    # arithmetic
    "add": (SAME, lambda of: of(4, 3) + of(3), lambda x: x + x[0]),
    "add_bias": (SAME, lambda of: ops.add_bias(of(4, 3), of(3)), lambda x: x + x[0]),
    "multiply": (SAME, lambda of: of(4, 3) * of(3), lambda x: x * x[0]),
    "outer": (SAME, lambda of: ops.outer(of(3), of(3)), lambda x: x[0][:, None] * x[0]),
    "subtract": (NUMBERS, lambda of: of(4, 3) - of(3), lambda x: x - x[0]),
    "negative": (NUMBERS, lambda of: -of(4, 3), lambda x: -x),
    "abs": (NUMBERS, op("abs"), lambda x: numpy.abs(x)),
    "sign": (NUMBERS, op("sign"), lambda x: numpy.sign(x)),
    "floor": (NUMBERS, op("floor"), lambda x: x),
    "ceil": (NUMBERS, op("ceil"), lambda x: x),
    "round": (NUMBERS, op("round"), lambda x: x),
    "relu": (NUMBERS, op("relu"), lambda x: numpy.maximum(x, 0)),
    "clamp": (NUMBERS, op("clamp", 2, 100), lambda x: numpy.clip(x, 2, 100)),
    "clip": (NUMBERS, op("clip", 2, 100), lambda x: numpy.clip(x, 2, 100)),
    "square": (POWERS, op("square"), lambda x: x * x),
    "power": (POWERS, op("power", 2), lambda x: x * x),
    "divide": (MEAN, lambda of: of(4, 3) / 3, lambda x: x / 3),
    "arctan2": (MEAN, lambda of: ops.arctan2(of(4, 3), 3), means(lambda x: numpy.arctan2(x, 3))),
    # arrangement
    "cast": (("int16", "int16", "int16"), op("cast", "int16"), lambda x: x.astype("int16")),
    "chunk": (SAME, lambda of: ops.chunk(of(4, 3), 2)[1], lambda x: x[2:]),
    "concatenate": (SAME, lambda of: ops.concatenate([of(4, 3), of(1, 3)]), None),
    "cat": (SAME, lambda of: ops.cat([of(4, 3), of(1, 3)], dim=0), None),
    "stack": (SAME, lambda of: ops.stack([of(4, 3), of(4, 3)]), lambda x: numpy.stack([x, x])),
    "diagonal": (SAME, op("diagonal"), lambda x: numpy.diagonal(x)),
    "embedding": (SAME, op("embedding", IDS), lambda x: x[IDS]),
    "expand": (SAME, op("expand", (2, 4, 3)), lambda x: numpy.broadcast_to(x, (2, 4, 3))),
    "flatten": (SAME, op("flatten"), lambda x: x.reshape(-1)),
    "flip": (SAME, op("flip", 0), lambda x: x[::-1]),
    "gather": (SAME, op("gather", 0, PLACES), lambda x: numpy.take_along_axis(x, PLACES, 0)),
    "take_along_dim": (
        SAME,
        op("take_along_dim", PLACES, 0),
        lambda x: numpy.take_along_axis(x, PLACES, 0),
    ),
    "getitem": (SAME, op("getitem", IDS), lambda x: x[IDS]),
    "index_select": (SAME, op("index_select", 0, IDS), lambda x: x[IDS]),
    "one_hot": (PLACE, lambda of: ops.one_hot(IDS, 3), lambda x: numpy.eye(3)[IDS]),
    "pad": (SAME, op("pad", (1, 1)), lambda x: numpy.pad(x, ((0, 0), (1, 1)))),
    "permute": (SAME, op("permute", (1, 0)), lambda x: x.T),
    "transpose": (SAME, op("transpose", 0, 1), lambda x: x.T),
    "repeat": (SAME, op("repeat", (2, 1)), lambda x: numpy.tile(x, (2, 1))),
    "tile": (SAME, op("tile", (2, 1)), lambda x: numpy.tile(x, (2, 1))),
    "repeat_interleave": (SAME, op("repeat_interleave", 2, 0), lambda x: numpy.repeat(x, 2, 0)),
    "reshape": (SAME, op("reshape", (3, 4)), lambda x: x.reshape(3, 4)),
    "roll": (SAME, op("roll", 1, 0), lambda x: numpy.roll(x, 1, 0)),
    "split": (SAME, lambda of: ops.split(of(4, 3), [1, 3])[1], lambda x: x[1:]),
    "squeeze": (SAME, lambda of: ops.squeeze(of(4, 1), 1), lambda x: x.reshape(-1)[:4]),
    "unsqueeze": (SAME, op("unsqueeze", 0), lambda x: x[None]),
    "tril": (SAME, op("tril"), lambda x: numpy.tril(x)),
    "triu": (SAME, op("triu"), lambda x: numpy.triu(x)),
    # functions that PyTorch computes of integers in float32, too
    **{
        name: (
            MEAN,
            lambda of, f=getattr(ops, name): f(of(1, 3)),
            lambda x, f=getattr(ops, name): f(Tensor(x[:1].astype("float32"))).array,
        )
        for name in doors.OF_INTEGERS
    },
    # functions of floats alone
    **{
        name: refused(op(name))
        for name in """
        celu elu erf_gelu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_softmax
        logsigmoid mish normalize relu6 selu silu softmax softplus softshrink softsign tanhshrink
        """.split()
    },
    **dict(pools()),
    "glu": refused(lambda of: ops.glu(of(3, 4))),
    "threshold": refused(lambda of: ops.threshold(of(4, 3), 2.0, 0.0)),
    "prelu": refused(lambda of: ops.prelu(of(4, 3), of(1))),
    "cosine_similarity": refused(lambda of: ops.cosine_similarity(of(4, 3), of(4, 3))),
    "pairwise_distance": refused(lambda of: ops.pairwise_distance(of(4, 3), of(4, 3))),
    "grid_sample": refused(lambda of: ops.grid_sample(of(1, 1, 2, 2), of(1, 1, 1, 2))),
    "ctc_loss": refused(lambda of: ops.ctc_loss(of(3, 1, 3), [[1]], [3], [1])),
    "unfold": (SAME, lambda of: ops.unfold(of(1, 2, 3, 3), 2, padding=1), None),
    "fold": (HOLDS_SUMS, lambda of: ops.fold(of(1, 4, 4), 3, 2), None),
    "pixel_shuffle": (SAME, lambda of: ops.pixel_shuffle(of(4, 3, 1), 2), None),
    "pixel_unshuffle": (SAME, lambda of: ops.pixel_unshuffle(of(1, 4, 2), 2), None),
    "bias_gelu": refused(lambda of: ops.bias_gelu(of(4, 3), of(3))),
    "swiglu": refused(lambda of: ops.swiglu(of(4, 3), of(4, 3))),
    "matmul": refused(lambda of: ops.matmul(of(4, 3), of(3, 4))),
    "bmm": refused(lambda of: ops.bmm(of(2, 4, 3), of(2, 3, 4))),
    "linear": refused(lambda of: ops.linear(of(4, 3), of(2, 3), of(2))),
    "layer_norm": refused(lambda of: ops.layer_norm(of(4, 3), of(3), of(3))),
    "rms_norm": refused(lambda of: ops.rms_norm(of(4, 3), of(3))),
    "add_layer_norm": refused(lambda of: ops.add_layer_norm(of(4, 3), of(4, 3), of(3), of(3))[1]),
    "add_rms_norm": refused(lambda of: ops.add_rms_norm(of(4, 3), of(4, 3), of(3))[1]),
    "batch_norm": refused(lambda of: ops.batch_norm(of(4, 3), weight=of(3), bias=of(3))[0]),
    "group_norm": refused(lambda of: ops.group_norm(of(4, 6), 2, of(6), of(6))),
    "instance_norm": refused(
        lambda of: ops.instance_norm(of(2, 3, 4), weight=of(3), bias=of(3))[0]
    ),
    "interpolate": refused(lambda of: ops.interpolate(of(2, 2, 4), 6)),
    "dropout": refused(
        lambda of: ops.dropout(of(4, 3), 0.5, "here", ForwardContext(True, 1, 2, 0))
    ),
    "attention_weights": refused(lambda of: ops.attention_weights(*ATTENTION(of)[:2])),
    "causal_attention": refused(lambda of: ops.causal_attention(*ATTENTION(of))),
    "scaled_dot_product_attention": refused(
        lambda of: ops.scaled_dot_product_attention(*ATTENTION(of))
    ),
    "rotary": refused(lambda of: ops.rotary(of(1, 2, 4, 4))),
    "gru": refused(lambda of: ops.gru(of(2, 4, 3), of(4, 2), *RECURRENT(of, 3))),
    "lstm": refused(lambda of: ops.lstm(of(2, 4, 3), of(4, 2), of(4, 2), *RECURRENT(of, 4))[0]),
    "cross_entropy": refused(lambda of: ops.cross_entropy(of(4, 3), IDS)),
    "mse": refused(lambda of: ops.mse(of(4, 3), of(4, 3) * 2)),
    "binary_cross_entropy_with_logits": refused(
        lambda of: ops.binary_cross_entropy_with_logits(of(4, 3), PLACES > 0)
    ),
    # the Fourier transforms, of fft
    **{
        name: refused(lambda of, f=getattr(ops.fft, name): f(of(4, 2)))
        for name in "rfft rfftn irfft irfftn fft fftn ifft ifftn".split()
    },
    "complex_multiply": refused(lambda of: ops.fft.complex_multiply(of(4, 2), of(4, 2))),
    "complex_einsum": refused(
        lambda of: ops.fft.complex_einsum("ij,jk->ik", of(2, 3, 2), of(3, 2, 2))
    ),
    # methods of another form than the operation
    "amax": (SAME, lambda of: of(4, 3).amax(0), lambda x: x.max(0)),
    "amin": (SAME, lambda of: of(4, 3).amin(0), lambda x: x.min(0)),
    "clone": (SAME, lambda of: of(4, 3).clone(), lambda x: x),
    "dim": (("int", "int", "int"), lambda of: of(4, 3).dim(), lambda x: 2),
    "numel": (("int", "int", "int"), lambda of: of(4, 3).numel(), lambda x: 12),
    "double": (("float64",) * 3, lambda of: of(4, 3).double(), lambda x: x),
    "float": (("float32",) * 3, lambda of: of(4, 3).float(), lambda x: x),
    "long": (("int64",) * 3, lambda of: of(4, 3).long(), lambda x: x),
    "t": (SAME, lambda of: of(4, 3).t(), lambda x: x.T),
    "view": (SAME, lambda of: of(4, 3).view(3, 4), lambda x: x.reshape(3, 4)),
    "view_as": (SAME, lambda of: of(4, 3).view_as(of(3, 4)), lambda x: x.reshape(3, 4)),
    "pow": (POWERS, lambda of: of(4, 3).pow(2), lambda x: x * x),
    # in place
    "add_": (SAME, lambda of: of(4, 3).add_(of(3)), lambda x: x + x[0]),
    "mul_": (SAME, lambda of: of(4, 3).mul_(of(3)), lambda x: x * x[0]),
    "copy_": (SAME, lambda of: of(4, 3).copy_(of(3)), lambda x: numpy.resize(x[0], (4, 3))),
    "zero_": (SAME, lambda of: of(4, 3).zero_(), lambda x: x * 0),
    "numpy": (SAME, lambda of: Tensor(of(4, 3).numpy()), lambda x: x),
    "detach": (SAME, lambda of: of(4, 3).detach(), lambda x: x),
}
NO_OPERATIONS = {"backward", "empty_gradient", "item", "stale_views"}  # of a Tensor


def public(owner):
    names = owner.__all__ if hasattr(owner, "__all__") else [n for n in dir(owner) if n[0] != "_"]
    return {name for name in names if callable(getattr(owner, name))}


def test_every_operation_and_method_has_a_line():
    of_fft = {n for n in public(ops.fft) if getattr(ops.fft, n).__module__ == ops.fft.__name__}
    methods_there = {n for n in public(Tensor) if callable(getattr(Tensor, n))}
    there = public(ops) | of_fft | methods_there
    assert there - NO_OPERATIONS == set(TABLE)
    assert all(getattr(Tensor, name) is getattr(ops, name) for name in methods.PLAIN)
    behind = {inspect.unwrap(getattr(ops, name)) for name in set(ops.__all__) - {"fft"}}
    assert set(operators.BINARY.values()) <= behind


def made(name, dtype):
    """Return the result of an example, and its dtype, as they are of this dtype."""
    with numpy.errstate(all="ignore"):
        result = TABLE[name][1](lambda *shape: Tensor(small(dtype, shape)))
    if isinstance(result, int):
        return result, "int"
    return result.array, result.dtype.name


def wanted_dtype(name, dtype):
    rule = TABLE[name][0]
    if dtype in COUNTED:
        wanted = rule[dtype != "bool"]
        if wanted == "int64 alone":
            wanted = "int64" if dtype == "int64" else "refused"
    else:
        wanted = rule[2] if len(rule) > 2 else "same"
        if name in ("cross_entropy", "mse", "binary_cross_entropy_with_logits") and dtype in HALVES:
            wanted = "float32"
    return dtype if wanted == "same" else wanted


def of_dtypes(name, dtypes):
    """Return the cases of one operation: {dtype: what a check of it takes}."""
    return {dtype: (name, dtype) for dtype in dtypes}


every_line = pytest.mark.parametrize("name", sorted(TABLE))


@every_line
@pytest.mark.thorough(but=50)
def test_what_is_counted_is_computed_by_definition_or_refused(name):
    check_each(of_dtypes(name, COUNTED), check_counted)


def check_counted(name, dtype):
    wanted = wanted_dtype(name, dtype)
    if wanted == "refused":
        with pytest.raises(ShapeError, match="cast|wanted"):
            made(name, dtype)
        return
    values, got = made(name, dtype)
    assert got == wanted
    definition = TABLE[name][2]
    if definition is not None:
        with numpy.errstate(all="ignore"):
            expected = numpy.asarray(definition(small(dtype)))
        if wanted == "float32":
            numpy.testing.assert_allclose(values, expected, rtol=2e-7)
        else:
            numpy.testing.assert_array_equal(values, expected)


@every_line
@pytest.mark.thorough(but=50)
def test_floats_keep_their_dtype(name):
    check_each(of_dtypes(name, FLOATS + HALVES), check_floats)


def check_floats(name, dtype):
    values, got = made(name, dtype)
    assert got == wanted_dtype(name, dtype)
    expected = numpy.asarray(made(name, "float64")[0], "float64")
    at_most = numpy.abs(expected[numpy.isfinite(expected)]).max(initial=1)
    error = TOLERANCE[dtype]
    values = numpy.asarray(values, "float64")
    numpy.testing.assert_allclose(values, expected, rtol=error, atol=error * at_most)


# ---- two operands --------------------------------------------------------------------------------

FORMS = {
    "tensor": lambda array: Tensor(array),
    "array": lambda array: array,
    "number of NumPy": lambda array: array[0],
    "array of one": lambda array: array[0].reshape(()),
    "list": lambda array: array.tolist(),
}
TWO = {
    "add": numpy.add,
    "subtract": numpy.subtract,
    "multiply": numpy.multiply,
    "divide": numpy.divide,
    "maximum": numpy.maximum,
    "minimum": numpy.minimum,
    "power": numpy.power,
    "where": lambda x, y: numpy.where(numpy.array([True, False, True]), x, y),
    "concatenate": lambda x, y: numpy.concatenate([x, y]),
}


def called(name, x, y):
    if name == "concatenate":
        return ops.concatenate([x, y])
    if name == "where":
        return ops.where(numpy.array([True, False, True]), x, y)
    return getattr(ops, name)(x, y)


def joined(name, *dtypes):
    """Return the dtype that operands of these have together, by PyTorch's rules."""
    torch = pytest.importorskip("torch")
    whole = torch.promote_types(*[getattr(torch, dtype) for dtype in dtypes])
    if name == "divide" and not whole.is_floating_point:
        return "float32"
    if name == "power" and dtypes == ("bool", "bool"):
        return "int64"
    return str(whole).removeprefix("torch.")


@pytest.mark.parametrize("form", ["tensor", "array", "number of NumPy", "array of one"])
@pytest.mark.parametrize("name", TWO)
def test_two_operands_have_the_dtype_that_pytorch_gives_their_tensors(name, form):
    everything = [dtype for dtype in COUNTED + FLOATS + HALVES]
    wrong = []
    for first in everything:
        for second in everything:
            if name == "subtract" and first == second == "bool":
                continue
            if name == "concatenate" and "of" in form:
                continue
            if {first, second} == {"float16", "bfloat16"}:
                continue  # which ml_dtypes does not join
            x, y = small(first, (3,)), numpy.array([2, 3, 1]).astype(small(second).dtype)
            expected = TWO[name](
                *[
                    each.astype("float64")
                    for each in (x, y[0] if "one" in form or "number" in form else y)
                ]
            )
            wanted = joined(name, first, second)
            with numpy.errstate(all="ignore"):
                result = called(name, Tensor(x), FORMS[form](y))
                fits = numpy.array_equal(
                    expected.astype(wanted if wanted in FLOATS else "float64"),
                    result.array.astype("float64"),
                )
            is_exact = name not in ("divide", "power") and wanted in FLOATS + ["int32", "int64"]
            if result.dtype.name != wanted or is_exact and not fits:
                wrong.append((first, second, result.dtype.name, wanted))
    assert not wrong


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum", "power", "where"])
def test_a_number_of_python_has_no_width(name):
    cases = [(name, number, d) for number in (True, 2, 2.5) for d in COUNTED + FLOATS + HALVES]
    check_each({case[1:]: case for case in cases}, check_number)


def check_number(name, number, dtype):
    x = Tensor(small(dtype, (3,)))
    kind = "float32" if isinstance(number, float) else "int64" if dtype == "bool" else dtype
    if dtype == "bool" and number is True and name != "power":
        kind = "bool"
    if name == "divide" and dtype in COUNTED:
        kind = "float32"
    wanted = dtype if dtype in FLOATS + HALVES else kind
    for result in (called(name, x, number), called(name, number, x)):
        assert result.dtype.name == wanted


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "power"])
def test_a_gradient_passes_what_is_counted_in_its_own_dtype(name):
    others = ("bool", "uint8", "int64")
    cases = [(name, dtype, other) for dtype in FLOATS + HALVES for other in others]
    check_each({case[1:]: case for case in cases}, check_gradient)


def check_gradient(name, dtype, other):
    y = small(other, (3,)) % 3 + small(other, (3,)) * 0 + numpy.array(1, other)
    gradients = []
    for of in (dtype, "float64"):
        x = Tensor(small(of, (3,)) / small(of, (1,)) + small(of, (3,)), requires_grad=True)
        other_side = Tensor(y if of == dtype else y.astype("float64"))
        called(name, x, other_side).sum().backward()
        gradients.append(x.grad)
    assert gradients[0].dtype.name == dtype
    error = TOLERANCE[dtype]
    numpy.testing.assert_allclose(gradients[0].astype("float64"), gradients[1], rtol=error)


def test_a_masked_mean_is_the_mean_of_what_counts():
    mask = Tensor(numpy.array([True, True, True, False]))
    loss = Tensor(numpy.array([1, 2, 3, 100], "float32"), requires_grad=True)
    mean = (loss * mask).sum() / mask.sum()
    mean.backward()
    assert (mean.item(), mean.dtype.name, loss.grad.tolist()) == (
        2.0,
        "float32",
        [*[numpy.float32(1 / 3)] * 3, 0],
    )


@pytest.mark.parametrize("name", ["sum", "cumsum", "prod", "cumprod", "segment_sum"])
def test_no_reduction_wraps_at_the_largest_number(name):
    check_each(of_dtypes(name, COUNTED), check_reduction)


def check_reduction(name, dtype):
    most = 1 if dtype == "bool" else numpy.iinfo(dtype).max // (4 if dtype == "int64" else 1)
    most = min(most, 2**31 - 1) if "prod" in name else most
    x = Tensor(numpy.array([most, most], dtype))
    result = {
        "segment_sum": lambda: ops.segment_sum(x, [0, 0], 1),
    }.get(name, lambda: getattr(ops, name)(x, 0))()
    expected = int(most) ** 2 if "prod" in name else 2 * int(most)
    assert int(result.array.reshape(-1)[-1]) == expected


BIG = Tensor(numpy.array([2**63 + 5], "uint64"))
INTS = Tensor(numpy.array([3, 4], "uint8"))
TRUE = Tensor(numpy.array([True, False]))
REFUSALS = {
    "a sum beyond int64": lambda: ops.sum(BIG),
    "uint64 and int64": lambda: BIG + Tensor(numpy.array([-1])),
    "a number that does not fit": lambda: INTS + 300,
    "a negative number": lambda: INTS * -1,
    "a negative power": lambda: INTS ** Tensor(numpy.array([-1, 2])),
    "a negative power of Python": lambda: INTS**-1,
    "the difference of booleans": lambda: TRUE - TRUE,
    "one less than true": lambda: ops.negative(TRUE),
    "strings": lambda: ops.sum(Tensor(numpy.array(["a"]))),
    "strings and numbers": lambda: Tensor(numpy.array(["a"])) + 1,
    "nothing": lambda: INTS + None,
    "dates": lambda: Tensor(numpy.array(["2020-01-01"], "datetime64[D]")) * 2,
    "limits that do not fit": lambda: ops.clamp(INTS, 300, 400),
    "padding that does not fit": lambda: ops.pad(INTS, (1, 1), value=0.5),
    "padding below zero": lambda: ops.pad(INTS, (1, 1), value=-1),
    "floats into integers": lambda: Tensor(numpy.array([1, 2])).add_(0.5),
    "more than fits, in place": lambda: Tensor(numpy.array([1], "uint8")).mul_(300),
    "floats scattered into integers": lambda: ops.index_add(
        Tensor(numpy.zeros(2, "int64")), 0, [0, 1], Tensor(numpy.array([0.5, 0.5]))
    ),
    "integers that fill with halves": lambda: ops.masked_fill(INTS, [True, False], -1),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_would_be_silently_another_number_is_refused(name):
    with pytest.raises(ShapeError, match="cast|wanted"):
        REFUSALS[name]()


def test_integers_between_fractions_are_floats():
    assert (2.0 ** Tensor(numpy.array([-1, 1]))).array.tolist() == [0.5, 2]
    assert ops.clamp(INTS, max=3.5).dtype == "float32"
    assert ops.clamp(INTS, max=3.5).array.tolist() == [3, 3.5]
    assert ops.clamp(INTS, -5, 300).array.tolist() == [3, 4]
    assert ops.masked_fill(INTS, numpy.array([True, False]), 0.5).array.tolist() == [0.5, 4]
    assert ops.masked_fill(TRUE, numpy.array([True, False]), 0).dtype == "bool"
