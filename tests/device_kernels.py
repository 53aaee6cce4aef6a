"""What the kernels for CuPy arrays must do, on a GPU or in the emulator: checks that take the
module `xp` to make arrays with.
"""

import numpy
from kernel_table import (
    EXACT,
    TABLE,
    as_tuple,
    bits,
    buffers_like,
    cuda,
    flat,
    made,
    reference,
)

from shardkit.testing.array import KERNELS, halves, is_device_array, kernels, registry
from shardkit.testing.gpu import real_dtype

HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a last bit of 1
STAY_FLOAT32 = {
    "add_layer_norm": (2, 3),
    "add_rms_norm": (2,),
    "bias_gelu_backward": (1,),
    "causal_attention": (1,),
    "cross_entropy": (0, 1),
    "cross_entropy_with_gradient": (1,),
    "embedding_backward": (0,),
    "layer_norm": (1, 2),
    "layer_norm_backward": (1, 2),
    "rms_norm": (1,),
    "rms_norm_backward": (1,),
    "sum_of_rows": (0,),
}  # results of half floats, by number
OF_PRODUCTS = {"convolve", "convolve_input", "convolve_weight", "product_by_row"}
ALL_KINDS = "".join(registry.CHARACTERS.values())
OF_HALVES = [
    name for name in TABLE if KERNELS[name].cuda_kinds == ALL_KINDS and name != "dropout_mask"
]


def moved(move, value):
    """Return the value with every array in it, or in lists in it, moved."""
    if isinstance(value, (list, tuple)):
        return type(value)([moved(move, each) for each in value])
    return move(value)


def on_device(xp, value):
    return moved(lambda x: xp.asarray(x) if isinstance(x, numpy.ndarray) else x, value)


def on_host(value):
    return moved(lambda x: x.get() if is_device_array(x) else x, value)


def call(xp, name, arguments, **keywords):
    """Return what the CUDA twin returns for arguments of the device, as a tuple."""
    extra = (xp,) if name == "dropout_mask" else ()
    return as_tuple(getattr(cuda, name)(*arguments, *extra, **keywords))


def everything(returned, arguments):
    """Return the results and the arguments after the call, on the host.

    Rules work in place, and nothing else may write.
    """
    arrays = [
        numpy.float64(x) if isinstance(x, float) else x
        for x in on_host([*returned, *flat(arguments)])
    ]
    return [x for x in arrays if isinstance(x, (numpy.ndarray, numpy.float64))]


def device_results(xp, name, line, shape, dtype, change=lambda x: x):
    """Return everything that the CUDA twin computes for a line of the table.

    change: applied to each array on the device.
    """
    arguments = moved(
        lambda x: change(x) if is_device_array(x) else x, on_device(xp, made(line, shape, dtype))
    )
    return everything(call(xp, name, arguments, **line.keywords), arguments)


def check_parity(xp, name, line, shape, dtype):
    """Check results within 100 units in the last place of the largest value: sums go in another
    order.
    """
    arguments = made(line, shape, dtype)
    wanted = everything(as_tuple(getattr(reference, name)(*arguments, **line.keywords)), arguments)
    got = device_results(xp, name, line, shape, dtype)
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in wanted]
    if name in EXACT:
        assert bits(got) == bits(wanted)
        return
    for found, expected in zip(got, wanted, strict=True):
        largest = abs(expected).max(initial=1, where=numpy.isfinite(expected))
        tolerance = 100 * numpy.finfo(dtype).eps * largest
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def check_denormals(xp):
    """Check that a denormal number is at worst taken as zero: CuPy compiles with -ftz=true.

    So results that are exact elsewhere may be off by the smallest normal number per operation.
    """
    tiny = numpy.finfo("float32").tiny
    a = (tiny * numpy.array([0.5, -0.3, 1e-7, 0.9, -1.5, 3.0, 0.0])).astype("float32")
    b = (tiny * numpy.array([0.25, 0.3, 1.0, -0.95, 1.4, -2.9, 0.1])).astype("float32")
    there = [xp.asarray(x) for x in (a, b)]
    assert abs(cuda.tree_sum(there).get() - (a + b)).max() <= 2 * tiny
    cuda.sgd(*there, lr=0.5)
    assert abs(there[0].get() - (a - numpy.float32(0.5) * b)).max() <= 3 * tiny
    rows = xp.asarray(numpy.stack([a, b]))
    assert abs(cuda.softmax(rows).get() - 1 / a.size).max() < 1e-6


def check_half_parity(xp, name, line, shape, dtype, of_half=None):
    """Check that results are those of the plain twin in float32, rounded.

    One number per row, and sums over rows, stay float32.
    """
    import ml_dtypes  # noqa: F401  tells NumPy of bfloat16

    half = numpy.dtype(dtype)
    arguments = moved(lambda x: x.astype(half) if is_float(x) else x, made(line, shape, "float32"))
    wide = moved(
        lambda x: x.astype("float32") if getattr(x, "dtype", None) == half else x, arguments
    )
    wanted = as_tuple(getattr(reference, name)(*wide, **line.keywords))
    got = on_host(call(xp, name, on_device(xp, arguments), **line.keywords))
    for number, (found, expected) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(found, float) or name == "block_squares":
            numpy.testing.assert_allclose(found, expected, rtol=1e-12)
            continue
        assert found.dtype == (numpy.float32 if number in STAY_FLOAT32.get(name, ()) else half)
        scale = max(1, abs(expected).max(initial=0))
        numpy.testing.assert_allclose(
            found.astype("float32"), expected, rtol=0, atol=4 * HALVES[dtype] * scale
        )


def logistic(x):
    return 1 / (1 + numpy.exp(-x))


def twice_u(x):
    return x * numpy.sqrt(8 / numpy.pi) * (1 + 0.044715 * x * x)


def gelu_slope(x):
    s = logistic(twice_u(x))
    return s + x * s * (1 - s) * numpy.sqrt(8 / numpy.pi) * (1 + 3 * 0.044715 * x * x)


# in float64, without the cancellation that the plain twins have far below zero
EXACTLY = {
    "gelu": lambda x: x * logistic(twice_u(x)),
    "gelu_backward": gelu_slope,
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
}


def check_every_half(xp, name, dtype):
    """Check all half floats up to 10,000: rounded as float64 would be, but for a fiftieth
    of a last bit, which approximations may cost, and 2^-22 of the terms of slopes, which cancel.
    """
    import ml_dtypes

    half = numpy.dtype(dtype)
    x = numpy.arange(2**16, dtype="uint16").view(half)
    x = x[abs(x.astype("float32")) < 1e4]
    arguments = [numpy.ones_like(x), x] if name.endswith("_backward") else [x]
    with numpy.errstate(over="ignore"):
        wanted = EXACTLY[name](x.astype("float64"))
    got = call(xp, name, on_device(xp, arguments))[0].get().astype("float64")
    kind = ml_dtypes.finfo(half)
    exponent = numpy.frexp(numpy.maximum(abs(wanted), float(kind.smallest_normal)))[1]
    last_bit = numpy.ldexp(float(kind.eps), exponent - 1)
    # what -ftz=true takes as zero, times the largest factor after it
    tiny = 2.0**-24 if name.endswith("_backward") else 1e-35
    is_fine = abs(got - wanted) <= 0.52 * last_bit + tiny
    assert is_fine.all(), x[~is_fine]


def is_float(x):
    return isinstance(x, numpy.ndarray) and x.dtype.kind == "f"


def strided(xp, x):
    """Return the same numbers as every other element of a larger array."""
    wide = xp.zeros(tuple([2 * size for size in x.shape]), x.dtype)
    view = wide[tuple([slice(None, None, 2)] * x.ndim)]
    view[...] = x
    return view


def turned(xp, x):
    """Return the same numbers with the first dimension last in memory."""
    return xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(x, 0, -1)), -1, 0) if x.ndim else x


def shifted(xp, x, offset):
    """Return the same numbers, this many elements behind the start of a block of memory."""
    memory = xp.zeros(x.size + 32, x.dtype)
    view = memory[offset : offset + x.size].reshape(x.shape)
    view[...] = x
    return view


def check_places(xp, name, line, shape, dtype="float32"):
    """Check that bits depend neither on strides nor on where in memory inputs are.

    Results of products are close: cuBLAS chooses an algorithm by how the operands lie.
    """
    results = device_results(xp, name, line, shape, dtype)
    wanted = bits(results)
    for change in (
        lambda x: strided(xp, x),
        lambda x: turned(xp, x),
        lambda x: shifted(xp, x, 1),
        lambda x: shifted(xp, x, 2),
    ):
        moved_results = device_results(xp, name, line, shape, dtype, change)
        if name in OF_PRODUCTS:
            for found, expected in zip(moved_results, results, strict=True):
                scale = max(1, abs(expected).max(initial=0))
                numpy.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale)
        else:
            assert bits(moved_results) == wanted


def check_out(xp, name, line, shape, dtype="float32"):
    """Check that results go into the given buffers, and over inputs where the table says so, with
    the same bits.
    """

    def arguments():
        return on_device(xp, made(line, shape, dtype))

    returned = call(xp, name, arguments(), **line.keywords)
    wanted = bits(on_host(list(returned)))
    form, buffers, parts = buffers_like(name, on_host(list(returned)))
    ours = on_device(xp, buffers)
    again = call(
        xp, name, arguments(), **line.keywords, out=ours if isinstance(form, tuple) else ours[0]
    )
    assert (
        all(got is buffer for got, buffer in zip(again, ours))
        and bits(on_host(list(again))) == wanted
    )
    for number in line.in_place:
        given = arguments()
        over = (given[number], *on_device(xp, buffers)[1:])
        again = call(
            xp, name, given, **line.keywords, out=over if isinstance(form, tuple) else over[0]
        )
        assert again[0] is given[number] and bits(on_host(list(again))) == wanted


def check_alone(xp, name, dtype):
    """Check that each gradient has the bits it has alone, and that the unwanted ones are None."""
    arguments = on_device(xp, made(TABLE[name][0], (33, 47), dtype))
    together = call(xp, name, arguments)
    for alone in range(len(together)):
        wanted = tuple([number == alone for number in range(len(together))])
        got = call(xp, name, arguments, wanted=wanted)
        assert [array is not None for array in got] == list(wanted)
        assert got[alone].get().tobytes() == together[alone].get().tobytes()


def check_sums_of_rows(xp, dtype, many_rows=(1, 65)):
    """Check sums over rows of many pieces, with gaps between rows, and of several matrices.

    many_rows  of each of 65,537 matrices: one piece, and two
    """
    wide = numpy.random.default_rng(0).standard_normal((3, 150, 90)).astype(dtype)
    there = xp.asarray(wide)
    for rows, wanted in (
        (there[0, :, 3:80], wide[0, :, 3:80].sum(axis=0, dtype="float64")),
        (there[:, 10:], wide[:, 10:].sum(axis=1, dtype="float64")),
    ):
        out = xp.full(wanted.shape, numpy.nan, dtype)
        got = cuda.sum_of_rows(rows, out=out)
        assert got is out
        numpy.testing.assert_allclose(out.get(), wanted, rtol=0, atol=1e-4)
        assert cuda.sum_of_rows(rows).get().tobytes() == out.get().tobytes()
    many = numpy.arange(65_537 * 2, dtype=dtype).reshape(65_537, 1, 2)  # beyond one grid's side
    for rows in many_rows:
        got = cuda.sum_of_rows(xp.asarray(numpy.repeat(many, rows, axis=1)))
        assert got.get().tobytes() == (rows * many[:, 0]).tobytes()
    for x in (there, there[0], there[0, 0]):
        assert halves.total(x, ()).get().tobytes() == x.get().tobytes()


def check_softmax_of_huge_halves(xp, dtype):
    """Check that a softmax, a loss and its gradient follow differences of the largest numbers."""
    import ml_dtypes

    most = float(ml_dtypes.finfo(dtype).max)
    rows = [
        [-most] * 11,
        [-most, 1, 2, -most, *range(7)],
        [most, most, *range(9)],
        [most * 0.75, *[most * 0.5] * 9, -most],
        [*range(2030, 2048, 2), -most, 2048],  # the largest comes last
    ]
    x = numpy.array(rows).astype(dtype)
    exact = x.astype("float64")
    away = exact - exact.max(axis=1, keepdims=True)
    totals = numpy.exp(away).sum(axis=1)
    got = cuda.softmax(xp.asarray(x)).get().astype("float64")
    numpy.testing.assert_allclose(got, numpy.exp(away) / totals[:, None], atol=HALVES[dtype])
    ids = numpy.arange(len(x))
    losses, log_sums = cuda.cross_entropy(xp.asarray(x), xp.asarray(ids))
    numpy.testing.assert_allclose(
        losses.get(), numpy.log(totals) - away[ids, ids], rtol=1e-6, atol=1e-5 + 1e-7 * most
    )
    numpy.testing.assert_allclose(log_sums.get(), numpy.log(totals) + exact.max(axis=1), rtol=1e-6)


def check_rows_alone(xp, width):
    """Check that each row of a norm, a softmax or a loss has the bits it has alone."""
    rng = numpy.random.default_rng(width)
    x, w, b = [
        xp.asarray(rng.standard_normal(shape).astype("float32"))
        for shape in ((13, width), width, width)
    ]
    targets = xp.asarray(numpy.arange(13) % width)

    def all_of(x, targets):
        y, mean, inverse = kernels.layer_norm(x, w, b, 1e-5)
        parts = [
            y,
            mean,
            inverse,
            *kernels.rms_norm(x, w, 1e-6),
            *kernels.cross_entropy(x, targets),
            kernels.softmax(x),
            kernels.softmax_backward(x, x),
            kernels.layer_norm_backward(x, x, w, mean, inverse)[0],
        ]
        return [part.get() for part in parts]

    whole = all_of(x, targets)
    for row in (0, 6, 12):
        for together, single in zip(
            whole, all_of(x[row : row + 1], targets[row : row + 1]), strict=True
        ):
            assert together[row : row + 1].tobytes() == single.tobytes()


def check_odd_rows(xp, dtype, width, first):
    """Check that rows at every distance from a multiple of 16 bytes have the bits of aligned ones,
    and that nothing is written beside them.
    """
    rng = numpy.random.default_rng(width)
    x = rng.standard_normal((17, width)).astype(dtype)
    whole, out = [shifted(xp, xp.asarray(x), first) for _ in range(2)]
    around = out.base
    around[...] = 7
    assert cuda.softmax(whole, out=out) is out
    for row in range(len(x)):
        alone = cuda.softmax(xp.asarray(x[row : row + 1]))
        assert out[row].get().tobytes() == alone.get().tobytes(), row
    beside = around.get().astype("float32")
    beside[first : first + x.size] = 7
    assert (beside == 7).all()


# (width, kernels) of rows that blocks of all sizes take: more than the table has
WIDE_ROWS = [
    (5000, "layer_norm layer_norm_backward rms_norm_backward softmax_backward cross_entropy"),
    (
        40_000,
        "layer_norm add_rms_norm softmax softmax_backward cross_entropy cross_entropy_backward",
    ),
]


def check_wide_rows(xp, width, names):
    for name in names.split():
        check_parity(xp, name, TABLE[name][0], (3, width), "float32")


def check_nan(xp, name):
    """Check that a NaN that goes in comes out."""
    line = TABLE[name][-1] if name in ("adam", "sgd") else TABLE[name][0]
    arguments = made(line, line.shapes[1 if name == "causal_attention" else 3], "float32")
    flat(arguments)[0].reshape(-1)[-1] = numpy.nan
    arguments = on_device(xp, arguments)
    out = call(xp, name, arguments, **line.keywords)
    first = arguments[0] if out[0] is None else out[0]
    assert numpy.isnan(first if isinstance(first, float) else first.get()).any()


def check_huge(xp, dtype):
    """Check that huge inputs do not overflow to NaN."""
    x = numpy.array([-1e4, -89, -88, 88, 89, 1e4], dtype)
    for name in ("gelu", "silu", "sigmoid", "softmax"):
        y = call(xp, name, (xp.asarray(x),))[0].get()
        numpy.testing.assert_allclose(y, getattr(reference, name)(x), rtol=1e-6, atol=1e-30)
    q = xp.asarray(numpy.random.default_rng(0).standard_normal((1, 1, 5, 4)).astype(dtype) * 1e4)
    assert all(numpy.isfinite(part.get()).all() for part in cuda.causal_attention(q, q, q, 1.0, 0))


def check_attention(xp, head_dim, dtype, seed=0):
    """Check forward and backward against the plain twin, for grouped heads, a first query, and
    arrays that lie as [B, S, H, D].
    """
    rng = numpy.random.default_rng(seed)

    def by_position(heads, rows):
        return rng.standard_normal((2, rows, heads, head_dim)).astype(dtype).swapaxes(1, 2)

    q, k, v, gradient, first = (
        by_position(4, 70),
        by_position(2, 81),
        by_position(2, 81),
        by_position(4, 70),
        11,
    )
    scale = head_dim**-0.5
    wanted = reference.causal_attention(q, k, v, scale, first)
    wanted = [
        *wanted,
        *reference.causal_attention_backward(gradient, q, k, v, *wanted, scale, first),
    ]
    ours = [xp.asarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v, gradient)]
    got = kernels.causal_attention(*ours[:3], scale, first)
    got = [*got, *kernels.causal_attention_backward(ours[3], *ours[:3], *got, scale, first)]
    for found, expected in zip(on_host(got), wanted, strict=True):
        assert found.dtype == real_dtype(q)
        numpy.testing.assert_allclose(
            found, expected, rtol=0, atol=100 * numpy.finfo(dtype).eps * max(1, abs(expected).max())
        )
