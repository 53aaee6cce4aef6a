"""Dtypes that hold floats, half floats among them.

                 bits: sign, exponent, fraction    largest    smallest normal    half a last bit
    float32      1 + 8 + 23                        3.4e38     1.2e-38            6.0e-8
    bfloat16     1 + 8 + 7                         3.4e38     1.2e-38            3.9e-3
    float16      1 + 5 + 10                        65504      6.1e-5             4.9e-4

NumPy has bfloat16 from ml_dtypes (kind "V", no promotion with Python numbers), CuPy from version 14
on; nothing else may ask for a dtype's kind to see a float.
"""

import numpy

from ..errors import ConfigurationError, ShapeError

FLOAT32 = numpy.dtype("float32")
BFLOAT16 = "E"  # the character of ml_dtypes' bfloat16, which nothing else has

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
FLOAT8 = "float8"  # `shardkit plan` knows programs that compute in it; nothing here does


def is_half(dtype) -> bool:
    """Return True for float16 and bfloat16."""
    return dtype.char == "e" or dtype.kind == "V" and dtype.name == "bfloat16"


def named_dtype(dtype) -> numpy.dtype:
    """Return the dtype that NumPy's, a string, or one of PyTorch names."""
    is_of_torch = type(dtype).__module__ == "torch"
    name = str(dtype).removeprefix("torch.") if is_of_torch else dtype
    return dtype_named(name) if isinstance(name, str) else numpy.dtype(name)


def is_floating(dtype) -> bool:
    """Return True for a dtype that a gradient can have."""
    return dtype.kind == "f" or is_half(dtype)


def check_real(what: str, dtype) -> None:
    """Raise ShapeError unless numbers of this dtype are real: of others a part would be lost."""
    if dtype.kind not in "biuf" and not is_half(dtype):
        raise ShapeError(f"{what} is of dtype {dtype}; wanted real numbers, integers or bool")


def check_holds(what: str, values: numpy.ndarray, dtype) -> None:
    """Raise ConfigurationError on a number that this dtype does not hold: integers and booleans
    would wrap or cut it, a float become infinite.
    """
    if dtype == values.dtype or is_floating(dtype) and numpy.can_cast(values.dtype, dtype):
        return
    with numpy.errstate(invalid="ignore", over="ignore"):
        kept = values.astype(dtype)
    if is_floating(dtype):
        wrong = numpy.isinf(kept) & numpy.isfinite(values)
    else:
        # Compared as integers: float64 holds not all of them. What wraps has another sign.
        wrong = (kept != values) | ((kept < 0) != (values < 0))
    if wrong.any():
        raise ConfigurationError(
            f"{values[wrong][0]} in {what} of {dtype}, which cannot hold it; wanted other values "
            "or another dtype"
        )


def wide(dtype):
    """Return the dtype that numbers of this one are added up in: float32 for half floats."""
    return FLOAT32 if is_half(dtype) else dtype


def dtype_named(name: str, xp=numpy):
    """Return the dtype of this name.

    Errors: ConfigurationError if it is bfloat16 and the libraries have none, and on float8.
    """
    if name == FLOAT8:
        raise ConfigurationError(
            f'compute_dtype = "{FLOAT8}": shardkit does not train in it; wanted one of '
            f"{', '.join(COMPUTE_DTYPES)}. `shardkit plan --software mixed` plans others in it"
        )
    if name == "bfloat16":
        _check_bfloat16(xp)
    return numpy.dtype(name)


def _check_bfloat16(xp):
    try:
        import ml_dtypes  # noqa: F401  registers "bfloat16" with NumPy
    except ImportError:
        raise ConfigurationError(
            'compute_dtype = "bfloat16" needs the package ml_dtypes, which is not installed; run '
            'pip install "shardkit[bfloat16]", or use "float16"'
        ) from None
    if xp is not numpy and int(xp.__version__.split(".")[0]) < 14:
        raise ConfigurationError(
            'compute_dtype = "bfloat16" on a GPU needs CuPy 14 or newer, but this is '
            f'{xp.__version__}; update it, or use "float16"'
        )
    if xp is not numpy and numpy.lib.NumpyVersion(numpy.__version__) < "2.1.2":
        raise ConfigurationError(
            'compute_dtype = "bfloat16" on a GPU needs NumPy 2.1.2 or newer, but this is '
            f'{numpy.__version__}; update it, or use "float16"'
        )
