"""Half floats: which dtypes they are, and from and to float32.

                 bits: sign, exponent, fraction    largest    smallest normal    half a last bit
    float32      1 + 8 + 23                        3.4e38     1.2e-38            6.0e-8
    bfloat16     1 + 8 + 7                         3.4e38     1.2e-38            3.9e-3
    float16      1 + 5 + 10                        65504      6.1e-5             4.9e-4

They are for storing and for messages: everything that adds up computes in float32. NumPy has
bfloat16 from ml_dtypes (kind "V", no promotion with Python numbers), CuPy from version 14 on;
nothing else may ask for a dtype's kind to see a float.
"""

import numpy

from ..errors import ConfigurationError
from . import kernels
from .arena import empty
from .backend import xp_of

FLOAT32 = numpy.dtype("float32")


def is_half(dtype) -> bool:
    """True for float16 and bfloat16."""
    return dtype.char == "e" or dtype.kind == "V" and dtype.name == "bfloat16"


def is_floating(dtype) -> bool:
    """True for a dtype that a gradient can have."""
    return dtype.kind == "f" or is_half(dtype)


def wide(dtype):
    """The dtype that numbers of this one are added up in: float32 for half floats, else itself."""
    return FLOAT32 if is_half(dtype) else dtype


def dtype_named(name: str, xp=numpy):
    """The dtype of this name. Errors: ConfigurationError if it is bfloat16 and the libraries have
    none.
    """
    if name == "bfloat16":
        _check_bfloat16(xp)
    return numpy.dtype(name)


def _check_bfloat16(xp):
    try:
        import ml_dtypes  # noqa: F401  tells NumPy of the name "bfloat16"
    except ImportError:
        raise ConfigurationError(
            'compute_dtype = "bfloat16" needs the package ml_dtypes, which is not installed; run '
            'pip install "shardkit[bfloat16]", or use "float16"'
        ) from None
    if xp is not numpy and int(xp.__version__.split(".")[0]) < 14:
        raise ConfigurationError(
            f'compute_dtype = "bfloat16" on a GPU needs CuPy 14 or newer, but this is {xp.__version__}; '
            'update it, or use "float16"'
        )


def widened(x):
    """x as float32 if it holds half floats, exact; else x itself."""
    if not is_half(x.dtype):
        return x
    dims = _dims_in_memory(x)
    out = _empty(x.shape, FLOAT32, xp_of(x), dims)
    if dims is not None and _is_for_kernels(x):
        kernels.from_half(_flat(x, dims), FLOAT32, out=_flat(out, dims))
    else:
        out[...] = x
    return out


def rounded(x, dtype, out=None):
    """x as numbers of another dtype, to the nearest, infinite beyond its range -> out, or a new
    array; x itself if it is of that dtype and there is no out.
    """
    dims = _dims_in_memory(x)
    if out is None:
        if x.dtype == dtype:
            return x
        out = _empty(x.shape, dtype, xp_of(x), dims)
    if (
        x.dtype == FLOAT32
        and is_half(out.dtype)
        and dims is not None
        and dims == _dims_in_memory(out)
        and _is_for_kernels(out)
    ):
        kernels.to_half(_flat(x, dims), out=_flat(out, dims))
        return out
    with numpy.errstate(over="ignore"):
        out[...] = x
    return out


def _is_for_kernels(halves) -> bool:
    """True if to_half and from_half know this dtype: those for GPUs do not know bfloat16, which
    CuPy casts as fast.
    """
    return halves.dtype.char == "e" or isinstance(halves, numpy.ndarray)


def _dims_in_memory(x) -> tuple[int, ...] | None:
    """The dims of an array without gaps, the one with the longest stride first; None if there are
    gaps.
    """
    if x.flags.c_contiguous:
        return tuple(range(x.ndim))
    if not isinstance(x, numpy.ndarray):
        return None  # kernels for GPUs read rows as they are written
    dims = tuple(sorted(range(x.ndim), key=lambda dim: -x.strides[dim]))
    return dims if x.transpose(dims).flags.c_contiguous else None


def _empty(shape, dtype, xp, dims):
    """A new array whose dims lie in memory in this order; None: in their own."""
    if dims is None:
        return empty(shape, dtype, xp)
    return empty([shape[dim] for dim in dims], dtype, xp).transpose(
        [dims.index(dim) for dim in range(len(dims))]
    )


def _flat(x, dims):
    return x.transpose(dims).reshape(-1)
