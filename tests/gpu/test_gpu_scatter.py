"""Values added at an index on a GPU: the sums of NumPy, in one order, and by no atomic."""

import numpy
import pytest

from shardkit.nn import Tensor, ops
from shardkit.testing.array import add_at, dtype_named

SHAPE = (5, 4, 6)
IDS = numpy.array([3, 0, 3, -2, 3, 1, 0])
INDICES = {
    "rows": lambda xp: xp.asarray(IDS),
    "rows of rows": lambda xp: (xp.asarray(IDS), xp.asarray(IDS[::-1] % 4)),
    "a table of rows": lambda xp: xp.asarray(IDS.reshape(7, 1)),
    "columns": lambda xp: (slice(None), slice(1, 3), xp.asarray(IDS)),
    "a row and columns": lambda xp: (2, xp.asarray(IDS % 4)),
    "elements": lambda xp: tuple([xp.asarray(IDS % size) for size in SHAPE]),
    "a mask": lambda xp: xp.asarray(numpy.arange(120).reshape(SHAPE) % 3 == 0),
    "nothing": lambda xp: xp.asarray(numpy.zeros(0, numpy.int64)),
}


@pytest.mark.emulated
@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_have_the_bits_of_numpys(gpu, name, dtype):
    xp = gpu.device.xp
    right = numpy.zeros(SHAPE, dtype)
    index = INDICES[name](numpy)
    values = 100 * numpy.random.default_rng(0).standard_normal(right[index].shape)
    values = values.astype(dtype)
    numpy.add.at(right, index, values)
    whole = xp.zeros(SHAPE, dtype)
    index, values = INDICES[name](xp), xp.asarray(values)
    if not gpu.is_real:
        gpu.machine.forget()
    add_at(whole, index, values)
    assert whole.get().tobytes() == right.tobytes()
    if not gpu.is_real:
        assert gpu.machine.launches["cupy_add.at"] == (dtype == "int64")


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_getitem_and_gather_are_those_of_the_host(gpu, dtype):
    values = numpy.random.default_rng(1).standard_normal((5, 6)).astype(dtype_named(dtype))

    def gradients(xp):
        x = Tensor(xp.asarray(values), requires_grad=True)
        ids = xp.asarray(IDS % 5)
        columns = xp.asarray(numpy.arange(15).reshape(5, 3) % 2)
        y = ops.sum(ops.getitem(x, ids)) + ops.sum(ops.square(ops.gather(x, 1, columns)))
        y.backward()
        grad = x.grad
        return (grad if xp is numpy else grad.get()).astype("float32")

    tolerance = 1e-6 if dtype == "float32" else 2**-7
    numpy.testing.assert_allclose(
        gradients(gpu.device.xp), gradients(numpy), rtol=tolerance, atol=tolerance
    )
