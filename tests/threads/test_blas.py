"""Products by a BLAS beside NumPy's own: the numbers of numpy.matmul from every layout, in
recordings, on ranks; and MKL.
"""

import ctypes
from types import SimpleNamespace

import numpy
import pytest
from hybrids import gpt, hybrid, step_once
from threadpoolctl import threadpool_info

import shardkit as sk
from shardkit.array import blas, products
from shardkit.array.dtypes import dtype_named, wide
from shardkit.errors import ConfigurationError

numbers = numpy.random.default_rng(3)
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


class Batch:
    """What cblas_?gemm_batch means, by cblas_?gemm. OpenBLAS's own fails on small matrices where it
    serves several CPUs (OpenBLAS pull request 5980).
    """

    def __init__(self, one, real):
        self._one, self._real = one, real

    def __call__(
        self,
        layout,
        order_a,
        order_b,
        m,
        n,
        k,
        alpha,
        a,
        lda,
        b,
        ldb,
        beta,
        c,
        ldc,
        num_groups,
        size,
    ):
        order, sizes = (
            [ctypes.c_int.from_address(at).value for at in (order_a, order_b)],
            [integer_at(at) for at in (m, n, k)],
        )
        alpha, beta = [self._real.from_address(at).value for at in (alpha, beta)]
        assert num_groups == 1
        for offset in range(0, 8 * integer_at(size), 8):
            self._one(
                layout,
                *order,
                *sizes,
                alpha,
                integer_at(a + offset),
                integer_at(lda),
                integer_at(b + offset),
                integer_at(ldb),
                beta,
                integer_at(c + offset),
                integer_at(ldc),
            )


def multiply_halves(layout, order_a, order_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """What cblas_gemm_bf16bf16f32 means."""

    def matrix(address, order, rows, columns, step):
        if order == 112:
            return matrix(address, 111, columns, rows, step).T
        parts = [
            (ctypes.c_uint16 * columns).from_address(address + 2 * step * row)
            for row in range(rows)
        ]
        return (numpy.array(parts, "uint32") << 16).view("float32")

    product = alpha * matrix(a, order_a, m, k, lda) @ matrix(b, order_b, k, n, ldb)
    for row in range(m):
        (ctypes.c_float * n).from_address(c + 4 * ldc * row)[:] = product[row]


def integer_at(address):
    return ctypes.c_int64.from_address(address).value


def of_numpy() -> blas.Library:
    """The library that is inside NumPy's wheels, called as MKL is."""
    paths = [
        found["filepath"] for found in threadpool_info() if "scipy_openblas64" in found["filepath"]
    ]
    if not paths:
        pytest.skip("this NumPy has another BLAS than its wheels")
    library = ctypes.CDLL(paths[0])
    single, double = library.scipy_cblas_sgemm64_, library.scipy_cblas_dgemm64_
    functions = {
        "cblas_sgemm": single,
        "cblas_sgemm_batch": Batch(single, ctypes.c_float),
        "cblas_dgemm": double,
        "cblas_dgemm_batch": Batch(double, ctypes.c_double),
        "cblas_gemm_bf16bf16f32": multiply_halves,
    }
    return blas.Library("NumPy's own", SimpleNamespace(**functions), ctypes.c_int64, halves=True)


def of_mkl() -> blas.Library:
    try:
        return blas.mkl()
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[of_numpy, of_mkl])
def library(request):
    return request.param()


def some(*shape, order="C"):
    return numpy.asarray(numbers.standard_normal(shape), order=order)


def by_position(batch, heads, length, width):
    """[batch, heads, length, width], where heads lie beside each other in memory."""
    return some(batch, length, heads, width).swapaxes(1, 2)


# a, b, and where the result goes; None: a new array
LAYOUTS = {
    "plain": (some(5, 7), some(7, 3), None),
    "transposed": (some(7, 5).T, some(3, 7).T, None),
    "columns of wider ones": (some(5, 20)[:, 2:9], some(30, 9)[3:10, 1:4], some(9, 11)[2:7, 4:7]),
    "a stack": (some(4, 5, 7), some(4, 7, 3), None),
    "heads beside each other": (
        by_position(2, 3, 5, 4),
        by_position(2, 3, 6, 4).swapaxes(2, 3),
        None,
    ),
    "into heads beside each other": (
        some(2, 3, 5, 6),
        by_position(2, 3, 6, 4),
        by_position(2, 3, 5, 4),
    ),
    "transposed into them": (
        some(2, 3, 6, 5).swapaxes(2, 3),
        by_position(2, 3, 6, 4),
        by_position(2, 3, 5, 4),
    ),
    "a part of heads": (
        by_position(2, 6, 9, 4)[1:, 2:4, 3:8],
        by_position(2, 6, 9, 4)[:1, 2:4, 1:].swapaxes(2, 3),
        None,
    ),
    "broadcast": (some(4, 1, 5, 7), some(3, 7, 6), None),
    "one for all": (some(4, 5, 7), some(7, 6), None),
    "backwards": (some(4, 5, 7)[::-1], some(4, 7, 3), some(4, 5, 3)[::-1]),
    "every other row": (some(10, 7)[::2], some(7, 3), None),
    "every other column": (some(5, 14)[:, ::2], some(7, 3), None),
    "rows from right to left": (some(5, 7)[:, ::-1], some(7, 3), None),
    "into columns": (some(5, 7), some(7, 3), some(5, 3, order="F")),
    "a row": (some(1, 7), some(7, 3), None),
    "a column": (some(5, 7), some(7, 1), None),
    "an outer product": (some(5, 1), some(1, 3), None),
    "no rows": (some(0, 7), some(7, 3), None),
    "no sum": (some(5, 0), some(0, 3), None),
    "no matrices": (some(0, 5, 7), some(0, 7, 3), None),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_product_of_numpy(library, name, dtype):
    a, b, out = [None if x is None else as_dtype(x, dtype) for x in LAYOUTS[name]]
    if out is not None:
        out[...] = numpy.nan
    with products.multiplied_by(library):
        y = products.matmul(a, b, out=out)
    wanted = numpy.matmul(a.astype("float64"), b.astype("float64"))
    assert y.dtype == dtype and y.shape == wanted.shape and (out is None or y is out)
    numpy.testing.assert_allclose(y, wanted, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


def as_dtype(x, dtype):
    """The numbers of x as another dtype, with strides that are as many elements."""
    base = x
    while base.base is not None:
        base = base.base
    copy = base.astype(dtype)
    first = (
        (x.__array_interface__["data"][0] - base.__array_interface__["data"][0])
        // x.itemsize
        * copy.itemsize
    )
    return numpy.ndarray(
        x.shape, dtype, copy, first, [stride // x.itemsize * copy.itemsize for stride in x.strides]
    )


def test_most_layouts_are_not_left_to_numpy(monkeypatch):
    """Else the test above would compare NumPy with itself."""
    left, library = [], of_numpy()
    monkeypatch.setattr(
        blas,
        "numpy",
        SimpleNamespace(**{**vars(numpy), "matmul": lambda a, b, out: left.append(name)}),
    )
    for name, (a, b, out) in LAYOUTS.items():
        library.multiply(a, b, numpy.empty(numpy.matmul(a, b).shape) if out is None else out)
    assert left == [*LAYOUTS][12:] and left[0] == "every other column"


def test_a_result_that_lies_over_an_operand_and_mixed_dtypes_are_those_of_numpy(library):
    x = some(6, 6)
    wanted = numpy.matmul(x[:4, :4], x[2:, 2:])
    with products.multiplied_by(library):
        assert numpy.allclose(products.matmul(x[:4, :4], x[2:, 2:], out=x[1:5, 1:5]), wanted)
        y = products.matmul(some(4, 4).astype("float32"), some(4, 4), out=numpy.empty((4, 4)))
        assert y.dtype == "float64"
        for a, b, out in (
            (some(4, 5), some(4, 5), None),
            (some(2, 4, 4), some(3, 4, 4), None),
            (some(4, 4), some(4, 4), some(4, 5)),
            (some(4, 4), some(4, 4), some(2, 4, 4)[..., :3]),
        ):
            with pytest.raises(ValueError):
                products.matmul(a, b, out=out)


HALF_LAYOUTS = [name for name, (a, b, out) in LAYOUTS.items() if a.ndim == b.ndim == 2]


@pytest.mark.parametrize("name", HALF_LAYOUTS)
@pytest.mark.parametrize("into", [None, "bfloat16", "float32"])
def test_products_of_bfloat16_are_added_up_in_float32_and_rounded_once(library, name, into):
    bfloat16 = dtype_named("bfloat16")
    a, b, out = LAYOUTS[name]
    a, b, right = [as_dtype(x, bfloat16) for x in (a, b)] + [None]
    right = a.astype("float64") @ b.astype("float64")
    if into is not None:
        out = numpy.full(right.shape, numpy.nan, into) if out is None else as_dtype(out, into)
    else:
        out = None
    with products.multiplied_by(library):
        y = products.matmul(a, b, out=out)
    assert y.dtype == (into or bfloat16) and (out is None or y is out)
    wanted = (
        right if into == "float32" else right.astype("float32").astype(bfloat16).astype("float64")
    )
    last_bit = 1e-6 if into == "float32" else 2.0**-7
    numpy.testing.assert_allclose(y.astype("float64"), wanted, rtol=last_bit, atol=1e-5)


def test_most_products_of_bfloat16_are_made_as_they_are():
    """Else the test above would compare float32 with itself."""
    library, made = of_numpy(), []
    for name in HALF_LAYOUTS:
        a, b = [as_dtype(x, dtype_named("bfloat16")) for x in LAYOUTS[name][:2]]
        if library.multiply_halves(a, b, numpy.empty((a.shape[0], b.shape[1]), "float32")):
            made.append(name)
    assert made == [
        "plain",
        "transposed",
        "columns of wider ones",
        "every other row",
        "into columns",
    ]
    x = numpy.ones((4, 4), "float16")
    assert not library.multiply_halves(x, x, numpy.empty((4, 4), "float32"))


def trained(mesh, blas, dtype="float64", **settings):
    """(losses of 5 steps, whole parameters, name of the library), as the first rank sees them."""

    def on_rank(backend):
        model = hybrid(
            backend, mesh, model=gpt(max(1, mesh[0]), dtype=dtype), blas=blas, **settings
        )
        losses = [step_once(model, step) for step in range(5)]
        about = model.get_model_metadata()
        return losses, model.gather_full_parameters(), about["blas"]

    return sk.run_ranks(numpy.prod(mesh), on_rank)[0]


@pytest.mark.parametrize("mesh", [(1, 2, 1), (2, 1, 1), (1, 1, 2)], ids=str)
def test_a_model_trains_with_it(monkeypatch, mesh):
    used = of_numpy()
    monkeypatch.setitem(blas.LIBRARIES, "mkl", lambda: used)
    losses, weights, name = trained(mesh, "numpy")
    other_losses, other_weights, other_name = trained(mesh, "mkl")
    assert (name, other_name) == ("numpy", "NumPy's own")
    numpy.testing.assert_allclose(other_losses, losses, rtol=1e-10)
    numpy.testing.assert_allclose(other_weights, weights, rtol=1e-7, atol=1e-10)


def test_a_model_computes_in_bfloat16_with_it(monkeypatch):
    used = of_numpy()
    monkeypatch.setitem(blas.LIBRARIES, "mkl", lambda: used)
    monkeypatch.setattr(used, "_of_halves", counting := Counting(used._of_halves))
    halves = {"dtype": "float32", "compute_dtype": "bfloat16"}
    losses, weights, _ = trained((1, 2, 1), "numpy", **halves)
    assert counting.calls == 0
    other_losses, other_weights, _ = trained((1, 2, 1), "mkl", **halves)
    assert counting.calls > 100
    numpy.testing.assert_allclose(other_losses, losses, rtol=1e-3)


class Counting:
    def __init__(self, function):
        self.calls, self._function = 0, function

    def __call__(self, *args):
        self.calls += 1
        return self._function(*args)


# ---- MKL -----------------------------------------------------------------------------------------


def test_all_ranks_say_that_it_is_missing(monkeypatch):
    monkeypatch.setattr(blas, "_path_of_mkl", lambda: None)
    monkeypatch.setattr(blas, "_load_mkl", blas._load_mkl.__wrapped__)
    with pytest.raises(ConfigurationError, match=r'pip install "shardkit\[mkl\]"'):
        trained((1, 2, 1), "mkl")


@pytest.mark.parametrize("branch, answer", [(3, 0), (12, -2)])
def test_a_cpu_on_which_it_promises_no_bits_is_refused(monkeypatch, branch, answer):
    def do_nothing(number):
        pass

    fake = SimpleNamespace(
        MKL_Set_Threading_Layer=do_nothing,
        MKL_CBWR_Get_Auto_Branch=lambda: branch,
        MKL_CBWR_Set=lambda number: answer,
    )
    monkeypatch.setattr(blas, "_path_of_mkl", lambda: "somewhere")
    monkeypatch.setattr(blas, "ctypes", SimpleNamespace(CDLL=lambda path: fake))
    with pytest.raises(ConfigurationError, match="one of Intel with AVX2"):
        blas._load_mkl.__wrapped__()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_its_bits_are_the_same_at_every_address(dtype):
    library, room, results = (
        of_mkl(),
        numpy.empty(1 << 16, dtype_named(dtype)),
        numpy.empty(1 << 16, wide(dtype_named(dtype))),
    )
    a, b = some(37, 65).astype(room.dtype), some(65, 29).astype(room.dtype)
    found = set()
    for first in range(17):
        here = room[first : first + a.size].reshape(a.shape)
        there = room[30000 + 3 * first :][: b.size].reshape(b.shape)
        here[...], there[...], out = a, b, results[50000 + first :][: 37 * 29].reshape(37, 29)
        with products.multiplied_by(library):
            products.matmul(here, there, out=out)
        found.add(out.tobytes())
    assert len(found) == 1 and library.name.startswith("Intel")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"blas": "fast"}, "numpy or mkl"),
        ({"blas": "mkl", "device": "cuda"}, 'on "cuda" cuBLAS multiplies'),
    ],
)
def test_what_cannot_multiply_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        sk.ShardingConfiguration(object(), **settings)
