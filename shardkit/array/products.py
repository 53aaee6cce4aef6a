"""Matrix products: all of them are computed here, so that they can be counted and timed.

    operands             NumPy                                  CuPy (gpu/products)
    float32, float64     BLAS: NumPy's, or the library of       cuBLAS; with precision("tf32")
                         multiplied_by (blas/)                  in TF32
    float16, bfloat16    BLAS in float32, result rounded;       cuBLAS on half floats, sums in
                         libraries multiply bfloat16 itself     float32
    with a row added                                            cuBLASLt, but for float64
    others               NumPy's product                        cupy.matmul, which no graph records

TF32 reads 10 bits of the mantissa of each float32 number and adds in float32: on tensor cores
several times as fast, with an error of 5e-4 per product. It is used only on request.
"""

from contextvars import ContextVar

import numpy

from ..on_gpu import gpu_part
from ..scoped import Scoped
from .arena import empty, is_arena_in_use
from .backend import xp_of
from .blas import Library
from .blas.own import numpys_own
from .dtypes import FLOAT32, is_half
from .halves import rounded, widened
from .reference.by_row import product_by_row

PRECISIONS = ("highest", "tf32")
# fast: taps of 2 to 5 by fewer products where that pays on the CPU; direct: every sum adds all
CONVOLUTIONS = ("fast", "direct")

_precision: ContextVar[str] = ContextVar("shardkit_matmul_precision", default="highest")
_convolutions: ContextVar[str] = ContextVar("shardkit_convolutions", default="fast")
_library: ContextVar[Library | None] = ContextVar("shardkit_blas", default=None)


def matmul(a, b, out=None):
    """Return a [..., m, k] times b [..., k, n]: [..., m, n]; leading dimensions broadcast.

    Transposed views are read as they lie, nothing is copied; only half floats on the CPU are, but
    for bfloat16 matrices that the library multiplies itself.
    out   where the result goes; None: a new array. For half floats it may be float32: then nothing
          is rounded
    """
    act, multiply = _calls.get()
    if act is not None:
        act()
    return multiply(a, b, out)


def matmul_by_row(x, weight):
    """Return x [m, k] times the transpose of weight [n, k]: [m, n], row by row.

    On the CPU, a row of float32 or float64 then has the same bits among any others.
    """
    act, multiply = _calls.get()
    if act is not None:
        act()
    return multiply(x, weight.T, None, False, None, True)


def add_product(a, b, out) -> None:
    """Add a [m, k] times b [k, n] to out [m, n], without an array in between if BLAS can.

    Half floats are added to a float32 `out`.
    """
    act, multiply = _calls.get()
    if act is not None:
        act()
    multiply(a, b, out, True)


def matmul_and_row(a, b, row):
    """Return a [..., m, k] times b [..., k, n] plus row [..., n], all on a GPU: in one kernel where
    cuBLASLt has one.
    """
    act, multiply = _calls.get()
    if act is not None:
        act()
    return multiply(a, b, None, False, row)


def _product(a, b, out, is_added=False, row=None, is_by_row=False):
    """Return the product, computed by the library that the dtype and the user choose.

    is_added   it is added to what `out` holds
    row        is added to the product, on a GPU alone
    is_by_row  see matmul_by_row
    """
    if is_by_row and a.dtype == b.dtype and a.dtype.char in "fd" and b.T.flags.carray:
        return product_by_row.dispatch(a, b.T, out)
    if row is not None or xp_of(a, b) is not numpy:
        return gpu_part("products.product").product(a, b, out, is_added, row)
    if is_added:
        return _added(a, b, out)
    library = _library.get()
    if a.dtype.itemsize == 2 and is_half(a.dtype):
        return _half_product(library, a, b, out, is_by_row)
    if out is None and (library is not None or is_arena_in_use()):
        leading = a.shape[:-2]
        if leading != b.shape[:-2]:
            leading = numpy.broadcast_shapes(leading, b.shape[:-2])
        out = empty((*leading, a.shape[-2], b.shape[-1]), a.dtype)
    if library is not None and library.multiply(a, b, out):
        return out
    return numpy.matmul(a, b, out=out)


def _added(a, b, out):
    """Return out, on the CPU, after the product was added to it."""
    library = _library.get() or numpys_own()
    if library is None or not library.add(a, b, out):
        out += _product(a, b, empty(out.shape, out.dtype))
    return out


def _half_product(library, a, b, out, is_by_row):
    """Return the product of half floats on the CPU, rounded unless `out` is float32."""
    leading = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*leading, a.shape[-2], b.shape[-1])
    if out is None:
        out = empty(shape, a.dtype)
    if library is not None and library.multiply(a, b, out):
        return out
    if out.dtype == FLOAT32:
        return _product(widened(a), widened(b), out)
    wide = empty(shape, FLOAT32)
    if library is None or not library.multiply(a, b, wide):
        wide = _product(widened(a), widened(b), wide, is_by_row=is_by_row)
    return rounded(wide, a.dtype, out)


# What matmul calls in this thread: something to do first, or None; and the multiplication.
_calls: ContextVar[tuple] = ContextVar("shardkit_product", default=(None, _product))


def precision(name: str):
    """Inside, float32 products on a GPU have this precision, one of PRECISIONS, in this thread."""
    return Scoped(_precision, name)


def precision_in_use() -> str:
    """Return the precision of float32 products on a GPU in this thread."""
    return _precision.get()


def convolutions(name: str):
    """Inside, convolutions of this thread on the CPU are one of CONVOLUTIONS."""
    return Scoped(_convolutions, name)


def convolutions_in_use() -> str:
    """Return which convolutions this thread makes on the CPU."""
    return _convolutions.get()


def multiplied_by(library: Library | None):
    """Inside, this library multiplies NumPy arrays in this thread; None: NumPy does."""
    return Scoped(_library, library)


def doing_meanwhile(act):
    """Inside, act() is called before each product of this thread: to keep messages going."""
    return Scoped(_calls, (act, _calls.get()[1]))


def doing_also_meanwhile(act):
    """Inside, act() is called after what is called already, if anything is."""
    before, multiply = _calls.get()

    def both():
        before()
        act()

    return Scoped(_calls, (act if before is None else both, multiply))


def do_meanwhile() -> None:
    """Do what doing_meanwhile asks for: for long kernels that make products of their own."""
    act, _ = _calls.get()
    if act is not None:
        act()


def wrapped_products(wrap):
    """Inside, wrap(multiply) computes each product of this thread.

    It is called with (a, b, out), with (a, b, out, True) to add the product to `out`, with (a, b,
    None, False, row) to add a row to it, and with (a, b, None, False, None, True) by matmul_by_row.
    The seam for stopwatches; without one, a product pays nothing for it. See also
    registry.wrapped_kernels.
    """
    act, multiply = _calls.get()
    return Scoped(_calls, (act, wrap(multiply)))
