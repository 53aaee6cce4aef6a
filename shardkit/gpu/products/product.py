"""Matrix products of CuPy arrays, each by the library that can: array/products.py has the table."""

from ...array.backend import xp_of
from ...array.dtypes import FLOAT32
from ...array.products import precision_in_use
from . import cublas, cublaslt


def product(a, b, out=None, is_added: bool = False, row=None):
    """Return a [..., m, k] times b [..., k, n], with the meaning of array.products.

    is_added   it is added to what `out` holds
    row        [..., n], is added to the product; nothing is added to `out` then
    """
    if row is not None:
        return _product_and_row(a, b, row)
    if cublas.multiplies(a, b, out):
        is_tf32 = a.dtype == FLOAT32 and precision_in_use() == "tf32"
        return cublas.matmul(a, b, out, is_tf32=is_tf32, is_added=is_added)
    xp = xp_of(a, b)
    if not is_added:
        return xp.matmul(a, b, out=out)
    out += xp.matmul(a, b)
    return out


def _product_and_row(a, b, row):
    """Return the product plus the row: in one kernel where cuBLASLt has one."""
    y = cublaslt.matmul(a, b, row, is_tf32=precision_in_use() == "tf32")
    if y is None:
        y = product(a, b)
        y += row if row.ndim == 1 else row[..., None, :]
    return y
