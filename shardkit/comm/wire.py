"""In which dtype elements travel between ranks."""

from functools import lru_cache

import numpy

HALF_FLOATS = ("float16", "bfloat16")


@lru_cache
def wire_dtypes(what, dtype, reduces):
    """Return the dtype to see the elements as, and the one in which they travel.

    what, reduces   as for open_port(). By name: ml_dtypes need not be installed.
    """
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects; use the verbs with _object in their name")
    native = dtype.newbyteorder("=")  # in another order numbers are moved as if in this one
    if reduces:
        return dtype, numpy.dtype("float32") if dtype.name in HALF_FLOATS else native
    if dtype.kind in "biufc":
        return native, native
    if dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"{what} is {dtype}; wanted numbers")
    bits = numpy.dtype(f"u{dtype.itemsize}")  # bfloat16 and its kind are moved as bits
    return bits, bits
