"""Does a library give the same product the same bits wherever its operands lie?"""

import numpy

from ...errors import ConfigurationError
from ..dtypes import FLOAT32, dtype_named, wide
from .library import Library

# leading dims, m, n, k: with remainders, with a long sum, a stack
SHAPES = (((), 33, 17, 1000), ((), 128, 96, 64), ((3,), 20, 48, 33))
_ROOM = 4096  # bytes, among which the first address is drawn


def has_same_bits(library: Library, repeats: int, shapes=SHAPES, seed: int = 0) -> bool:
    """Return True if so many repeats of products, at random addresses, have the same bits each.

    Products that the library leaves to NumPy are not looked at.
    """
    numbers = numpy.random.default_rng(seed)
    return all(
        len(_results(library, repeats, dtype, shape, is_transposed, numbers)) <= 1
        for dtype in _dtypes()
        for shape in shapes
        for is_transposed in ((False, False), (False, True), (True, False))
    )


def _results(library, repeats, dtype, shape, is_transposed, numbers) -> set[bytes]:
    leading, m, n, k = shape
    operands = [
        numbers.standard_normal((*leading, *(sizes[::-1] if swaps else sizes))).astype(dtype)
        for sizes, swaps in zip(((m, k), (k, n)), is_transposed)
    ]
    result = numpy.zeros((*leading, m, n), wide(dtype))
    found = set()
    for _ in range(repeats):
        a, b = [
            x.swapaxes(-2, -1) if swaps else x
            for x, swaps in zip([_moved(x, numbers) for x in operands], is_transposed)
        ]
        out = _moved(result, numbers)
        if library.multiply(a, b, out):
            found.add(out.tobytes())
    return found


def _moved(x, numbers):
    """Return a copy of x whose first address is drawn at random."""
    room = numpy.empty(x.nbytes + _ROOM, numpy.uint8)
    first = int(numbers.integers(_ROOM // x.itemsize)) * x.itemsize
    copy = room[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def _dtypes() -> list:
    try:
        return [FLOAT32, dtype_named("bfloat16")]
    except ConfigurationError:  # nothing here has arrays of bfloat16
        return [FLOAT32]
