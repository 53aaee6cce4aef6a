"""Sums of many rows of float32, against float64: each dim of each shape, and what is made of them.

A sum of n numbers of one sign that is made one after the other is off by about n / 10 last bits; by
blocks, by a few. The limit is 5e-7 of the largest sum, PyTorch's own error being 1e-7.
"""

import itertools

import numpy
import pytest

from shardkit.nn import Tensor, ops
from shardkit.testing.array import fresh, halves, kernels

LIMIT = 5e-7
SHAPES = [(300_000, 3), (3, 300_000), (2, 150_000, 2), (90_000, 2, 3), (129,), (700, 400, 1)]


def numbers(*shape):
    return (numpy.random.default_rng(0).random(shape) + 1).astype("float32")


def off(values, expected):
    values, expected = numpy.asarray(values, "float64"), numpy.asarray(expected)
    return numpy.abs(values - expected).max() / numpy.abs(expected).max()


def layouts(x):
    """Yield x as it lies in memory in several ways."""
    yield x
    yield numpy.asfortranarray(x)
    yield numpy.stack([x, x], -1)[..., 1]
    yield x[::-1]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_over_any_dims_keeps_its_digits(shape):
    for x in layouts(numbers(*shape)):
        wide = x.astype("float64")
        for number in range(1, x.ndim + 1):
            for dims in itertools.combinations(range(x.ndim), number):
                for keepdims in (False, True):
                    result = fresh.total(x, dims, keepdims)
                    expected = wide.sum(axis=dims, keepdims=keepdims)
                    assert result.shape == expected.shape and result.dtype == x.dtype
                    assert off(result, expected) < LIMIT


@pytest.mark.thorough
def test_ten_million_numbers_in_a_column_keep_their_digits():
    x = numbers(10_000_000, 1)
    x = numpy.concatenate([x, x], 1)  # two columns: NumPy has no neighbors to pair
    assert off(fresh.total(x, (0,)), x.astype("float64").sum(0)) < LIMIT


@pytest.mark.parametrize("rows", [0, 1, 127, 128])
def test_few_rows_are_added_as_numpy_adds_them(rows):
    x = numbers(rows, 5)
    assert fresh.total(x, (0,)).tobytes() == x.sum(axis=0).tobytes()


def test_other_dtypes_are_added_as_numpy_adds_them():
    x = numbers(1000, 3).astype("float64")
    assert fresh.total(x, (0,)).tobytes() == x.sum(axis=0).tobytes()


def reduction(name):
    def made(x, gradient):
        x = Tensor(x, requires_grad=True)
        result = getattr(ops, name)(x, dim=0)
        return [result.array]

    return made


def with_parameters(operation):
    def made(x, gradient):
        weight = Tensor(numpy.array([1, 0.9, 1.1, 1.2], x.dtype), requires_grad=True)
        bias = Tensor(numpy.array([0.1, 0.2, 0.3, 0.4], x.dtype), requires_grad=True)
        result = operation(Tensor(x), weight, bias)
        result.backward(gradient)
        return [bias.grad]

    return made


MADE = {
    **{
        name: reduction(name)
        for name in "sum mean var variance std norm logsumexp cumsum log_softmax softmax".split()
    },
    "bias": with_parameters(lambda x, weight, bias: x * weight + bias),
    "bias of 3-D": with_parameters(
        lambda x, weight, bias: ops.reshape(ops.reshape(x * weight, (4, -1, 4)) + bias, x.shape)
    ),
    "linear": with_parameters(
        lambda x, weight, bias: ops.linear(x, Tensor(numpy.eye(4, dtype=x.dtype)), bias * weight)
    ),
    "layer_norm": with_parameters(ops.layer_norm),
    "batch_norm": with_parameters(lambda x, w, b: ops.batch_norm(x, weight=w, bias=b)[0]),
    "group_norm": with_parameters(lambda x, w, b: ops.group_norm(x, 2, w, b)),
    "bias_gelu": with_parameters(lambda x, w, b: ops.bias_gelu(x, b) * w),
    "rms_norm": with_parameters(lambda x, w, b: ops.rms_norm(x, w) + b),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_sums_keeps_its_digits(name):
    x, gradient = numbers(200_000, 4) + 3, numbers(200_000, 4)
    narrow = MADE[name](x, gradient)
    wide = MADE[name](x.astype("float64"), gradient.astype("float64"))
    for one, other in zip(narrow, wide):
        assert off(one, other) < 2 * LIMIT


def test_the_variance_of_numbers_far_from_zero_is_theirs():
    x = numbers(400_000, 2) + 1000
    assert off(ops.var(Tensor(x), 0).array, x.astype("float64").var(0, ddof=1)) < 1e-5


@pytest.mark.parametrize("rows", [1, 128, 129, 300])
def test_a_kernel_adds_the_same_rows_in_place_and_elsewhere(rows):
    gradient, x, bias = numbers(rows, 500), numbers(rows, 500), numbers(500)
    _, elsewhere = kernels.bias_gelu_backward(gradient, x, bias)
    _, in_place = kernels.bias_gelu_backward(gradient, x, bias, out=gradient)
    assert elsewhere.tobytes() == in_place.tobytes()


def test_half_floats_are_added_in_float32_by_blocks():
    x = numbers(300_000, 3).astype("float16")
    total = halves.total(x, (0,), dtype=numpy.float32)
    assert off(total, x.astype("float64").sum(0)) < LIMIT


def taken(take):
    """Return the gradient of a table whose rows were taken."""

    def made(x, ids, num_rows):
        table = Tensor(numpy.zeros((num_rows, x.shape[1]), x.dtype), requires_grad=True)
        take(table, ids).backward(x)
        return table.grad

    return made


def columns_of(ids, x):
    return numpy.broadcast_to(ids[:, None], x.shape)


ADDED = {
    "segment_sum": lambda x, ids, n: ops.segment_sum(Tensor(x), ids, n).array,
    "segment_mean": lambda x, ids, n: ops.segment_mean(Tensor(x), ids, n).array,
    "index_add": lambda x, ids, n: (
        ops.index_add(Tensor(numpy.ones((n, x.shape[1]), x.dtype)), 0, ids, Tensor(x)).array
    ),
    "index_add of dim 1": lambda x, ids, n: (
        ops.index_add(
            Tensor(numpy.ones((x.shape[1], n), x.dtype)), 1, ids, Tensor(x.T.copy())
        ).array
    ),
    "scatter_add": lambda x, ids, n: (
        ops.scatter_add(
            Tensor(numpy.ones((n, x.shape[1]), x.dtype)), 0, columns_of(ids, x), Tensor(x)
        ).array
    ),
    "index_select": taken(lambda table, ids: ops.index_select(table, 0, ids)),
    "gather": taken(
        lambda table, ids: ops.gather(table, 0, numpy.stack([ids] * table.shape[1], 1))
    ),
    "getitem": taken(lambda table, ids: table[ids]),
    "getitem from the end": taken(lambda table, ids: table[ids - table.shape[0]]),
    "getitem of columns": taken(lambda table, ids: table[ids, :]),
    "embedding": taken(lambda table, ids: ops.embedding(table, ids)),
}


@pytest.mark.parametrize("is_even", [False, True], ids=["one gets most", "evenly"])
@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_where_ids_say_keeps_its_digits(name, is_even):
    rng = numpy.random.default_rng(1)
    ids = rng.integers(0, 7, 400_000)
    ids = ids if is_even else numpy.where(rng.random(ids.size) < 0.9, 3, ids)
    x = numbers(ids.size, 3)
    narrow = ADDED[name](x, ids, 8)
    assert narrow.dtype == "float32"
    assert off(narrow, ADDED[name](x.astype("float64"), ids, 8)) < LIMIT


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.thorough(but=1)
def test_ten_million_rows_of_one_id_keep_their_digits(columns):
    x, ids = numbers(10_000_000 // columns, columns), numpy.ones(10_000_000 // columns, int)
    expected = x.astype("float64").sum(0)
    assert off(kernels.embedding_backward(x, ids, 2)[1], expected) < LIMIT


@pytest.mark.parametrize("count", [1, 2, 127, 128])
def test_few_rows_of_an_id_are_added_in_their_order(count):
    x, expected = numbers(count, 5), numpy.zeros(5, "float32")
    for row in x:
        expected += row
    ids = numpy.concatenate([numpy.zeros(count, int), numpy.ones(500, int)])  # others: in float64
    both = numpy.concatenate([x, numbers(500, 5)])
    assert kernels.embedding_backward(both, ids, 2)[0].tobytes() == expected.tobytes()
    whole = ops.index_add(Tensor(numpy.zeros((2, 5), "float32")), 0, ids, Tensor(both)).array
    assert whole[0].tobytes() == expected.tobytes()


LONG = {
    "batch_norm": lambda x, w, b: ops.batch_norm(x, weight=w, bias=b)[1],
    "variance of batch_norm": lambda x, w, b: ops.batch_norm(x, weight=w, bias=b)[2],
    "group_norm": lambda x, w, b: ops.group_norm(x, 1, w, b),
    "avg_pool1d": lambda x, w, b: ops.avg_pool1d(x[..., :8000], 8000),
}


@pytest.mark.parametrize("name", LONG)
def test_norms_and_means_of_long_lines_keep_their_digits(name):
    def made(dtype):
        x = Tensor(numbers(1, 2, 2_000_000).astype(dtype))
        parameters = [Tensor(numpy.ones(2, dtype)), Tensor(numpy.zeros(2, dtype))]
        result = LONG[name](x, *parameters)
        return result.array if isinstance(result, Tensor) else result

    assert off(made("float32"), made("float64")) < LIMIT
