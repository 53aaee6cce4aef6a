"""Products by a BLAS beside NumPy's own: the numbers of numpy.matmul from every layout, in
recordings, on ranks; MKL and oneDNN.
"""

import ctypes
from types import SimpleNamespace

import numpy
import pytest
from hybrids import gpt, hybrid, step_once
from threadpoolctl import threadpool_info, threadpool_limits

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.array import (
    CblasLibrary,
    Interface,
    blas,
    dtype_named,
    has_same_bits,
    mkl,
    onednn,
    products,
)
from shardkit.testing.doctor import check_products
from shardkit.testing.parallel import Numerics

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
        into = (ctypes.c_float * n).from_address(c + 4 * ldc * row)
        into[:] = product[row] + (beta * numpy.array(into) if beta else 0)


def integer_at(address):
    return ctypes.c_int64.from_address(address).value


def of_numpy() -> CblasLibrary:
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
    return CblasLibrary("NumPy's own", SimpleNamespace(**functions), ctypes.c_int64, halves=True)


def of_mkl() -> blas.Library:
    return installed("mkl")


def of_onednn() -> blas.Library:
    return installed("onednn")


def installed(name) -> blas.Library:
    try:
        return blas.library_named(name)
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[of_numpy, of_mkl, of_onednn])
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
    "a stack backwards": (some(4, 5, 7)[::-1], some(4, 7, 3), some(4, 5, 3)[::-1]),
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


LEFT_TO_NUMPY = [*LAYOUTS][12:]


@pytest.mark.parametrize("of, more", [(of_numpy, []), (of_onednn, ["a stack backwards"])])
def test_most_layouts_are_not_left_to_numpy(of, more):
    """Else the test above would compare NumPy with itself."""
    library = of()
    dtype = "float32" if of is of_onednn else "float64"
    found = []
    for name, (a, b, out) in LAYOUTS.items():
        a, b = as_dtype(a, dtype), as_dtype(b, dtype)
        out = numpy.empty(numpy.matmul(a, b).shape, dtype) if out is None else as_dtype(out, dtype)
        if not library.multiply(a, b, out):
            found.append(name)
    assert found == [*more, *LEFT_TO_NUMPY] and LEFT_TO_NUMPY[0] == "every other column"


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


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("into", [None, "bfloat16", "float32"])
def test_products_of_bfloat16_are_added_up_in_float32_and_rounded_once(library, name, into):
    bfloat16 = dtype_named("bfloat16")
    a, b, out = LAYOUTS[name]
    a, b = as_dtype(a, bfloat16), as_dtype(b, bfloat16)
    right = a.astype("float64") @ b.astype("float64")
    if into is None:
        out = None
    else:
        out = numpy.full(right.shape, numpy.nan, into) if out is None else as_dtype(out, into)
    with products.multiplied_by(library):
        y = products.matmul(a, b, out=out)
    assert y.dtype == (into or bfloat16) and (out is None or y is out)
    wanted = (
        right if into == "float32" else right.astype("float32").astype(bfloat16).astype("float64")
    )
    last_bit = 1e-6 if into == "float32" else 2.0**-7
    numpy.testing.assert_allclose(y.astype("float64"), wanted, rtol=last_bit, atol=1e-5)


OF_TWO = ["plain", "transposed", "columns of wider ones", "every other row", "into columns"]
OF_STACKS = [
    "a stack",
    "heads beside each other",
    "into heads beside each other",
    "transposed into them",
    "a part of heads",
    "broadcast",
    "one for all",
]


@pytest.mark.parametrize(
    "of, dtype, wanted",
    [
        (of_numpy, "float32", OF_TWO),
        (of_onednn, "float32", OF_TWO + OF_STACKS),
        (of_onednn, "bfloat16", OF_TWO + OF_STACKS),
    ],
)
def test_most_products_of_bfloat16_are_made_as_they_are(of, dtype, wanted):
    """Else the test above would compare float32 with itself."""
    library, made = of(), []
    if of is of_onednn and not blas.onednn.multiplies_bfloat16():
        pytest.skip("this CPU multiplies no bfloat16")
    for name, (a, b, _) in LAYOUTS.items():
        a, b = [as_dtype(x, dtype_named("bfloat16")) for x in (a, b)]
        out = numpy.empty(numpy.matmul(a.astype("f4"), b.astype("f4")).shape, dtype_named(dtype))
        if library.multiply(a, b, out):
            made.append(name)
    assert sorted(made) == sorted(wanted)
    x = numpy.ones((4, 4), "float16")
    assert not library.multiply(x, x, numpy.empty((4, 4), "float32"))


@pytest.mark.parametrize("is_able", [True, False])
def test_a_cpu_without_the_arithmetic_multiplies_bfloat16_in_float32(monkeypatch, is_able):
    of_onednn()
    if is_able and not onednn.multiplies_bfloat16():
        pytest.skip("this CPU multiplies no bfloat16")
    monkeypatch.setattr(onednn, "multiplies_bfloat16", lambda: is_able)
    library = onednn.load_onednn.__wrapped__()
    x = numpy.ones((4, 4), dtype_named("bfloat16"))
    assert library.multiply(x, x, numpy.empty((4, 4), "float32")) is is_able
    numerics = Numerics(numpy.dtype("float32"), x.dtype, blas=library)
    assert str(numerics.product_dtype(is_on_gpu=False)) == ("bfloat16" if is_able else "float32")
    assert numerics.product_dtype(is_on_gpu=True) == x.dtype
    with products.multiplied_by(library):
        assert (products.matmul(x, x) == 4).all()


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


@pytest.mark.thorough
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


# ---- MKL and oneDNN ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, module", [("mkl", mkl), ("onednn", onednn)])
def test_all_ranks_say_that_it_is_missing(monkeypatch, name, module):
    load = getattr(module, f"load_{name}").__wrapped__
    monkeypatch.setattr(module, "path_of", lambda *names: None)
    monkeypatch.setitem(blas.LIBRARIES, name, load)
    with pytest.raises(ConfigurationError, match=rf'pip install "shardkit\[{name}\]"'):
        trained((1, 2, 1), name)


@pytest.mark.parametrize("branch, answer", [(3, 0), (12, -2)])
def test_a_cpu_on_which_mkl_promises_no_bits_is_refused(monkeypatch, branch, answer):
    def do_nothing(number):
        pass

    fake = SimpleNamespace(
        MKL_Set_Threading_Layer=do_nothing,
        MKL_CBWR_Get_Auto_Branch=lambda: branch,
        MKL_CBWR_Set=lambda number: answer,
    )
    monkeypatch.setattr(mkl, "path_of", lambda *names: "somewhere")
    monkeypatch.setattr(mkl, "ctypes", SimpleNamespace(CDLL=lambda path: fake))
    with pytest.raises(ConfigurationError, match="one of Intel with AVX2"):
        mkl.load_mkl.__wrapped__()


def test_onednn_is_refused_where_its_bits_depend_on_addresses(monkeypatch):
    of_onednn()
    multiply = onednn.OneDnnLibrary.multiply

    def by_address(self, a, b, out):
        made = multiply(self, a, b, out)
        out += out.__array_interface__["data"][0] % 64
        return made

    monkeypatch.setattr(onednn.OneDnnLibrary, "multiply", by_address)
    with pytest.raises(ConfigurationError, match="other bits at another address"):
        onednn.load_onednn.__wrapped__()


@pytest.mark.parametrize(
    "known, message",
    [({"version": (2, 7, 0)}, "is version 2.7.0;"), ({"sets_threads": False}, "without OpenMP")],
)
def test_another_build_of_onednn_is_refused(monkeypatch, known, message):
    of_onednn()
    for name, value in {"version": (3, 2, 0), **known}.items():
        monkeypatch.setattr(
            Interface, name, property(lambda self, v=value: v, lambda *_: None), False
        )
    with pytest.raises(ConfigurationError, match=message):
        onednn.load_onednn.__wrapped__()


@pytest.mark.parametrize("name", ["mkl", "onednn"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.thorough(but=1)
def test_bits_are_the_same_in_100_repeats_at_any_address(name, num_threads):
    installed(name)
    with threadpool_limits(num_threads):
        library = getattr(onednn if name == "onednn" else mkl, f"load_{name}").__wrapped__()
        assert has_same_bits(library, 100, shapes=(((), 37, 65, 29), ((), 64, 48, 300)))
        assert has_same_bits(library, 30, seed=1)


def test_the_doctor_says_whose_bits_depend_on_addresses(monkeypatch):
    class Wrong:
        name = "a library"

        def multiply(self, a, b, out):
            out[...] = out.__array_interface__["data"][0] % 64
            return True

    monkeypatch.setitem(blas.LIBRARIES, "mkl", Wrong)
    found = {finding.topic: finding for finding in check_products()}
    assert found["mkl"].level == "warning" and "other bits at another address" in found["mkl"].found
    assert found["onednn"].level == "ok"


def test_ranks_that_are_threads_multiply_at_the_same_time():
    library, x = of_onednn(), some(3, 40, 40).astype("float32")
    wanted = numpy.matmul(x, x)

    def on_rank(backend):
        with products.multiplied_by(library):
            for _ in range(200):
                for a, right in ((x, wanted), (x[0], wanted[0])):
                    numpy.testing.assert_allclose(
                        products.matmul(a, a), right, rtol=1e-4, atol=1e-4
                    )

    sk.run_ranks(4, on_rank)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"blas": "fast"}, "numpy or mkl or onednn"),
        ({"blas": "mkl", "device": "cuda"}, 'on "cuda" cuBLAS multiplies'),
    ],
)
def test_what_cannot_multiply_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        sk.ShardingConfiguration(object(), **settings)
