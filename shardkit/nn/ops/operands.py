"""What the operands of operations must be: their dtypes, and ids that name rows or classes.

One table says what becomes of what is not floating; every operation asks it:

                                  booleans      integers      floats
    sums, products                int64         int64         as x        sum_dtype
    means, norms, deviations      float32       float32       as x        in_float64
    largest, sorted, rearranged   as x          as x          as x
    powers                        int64         as x          as x        counted_power
    negative, abs, relu, round    refused       as x          as x        check_numbers
    exp, sqrt, sin, ...           float32       float32       as x        doors.OF_INTEGERS
    other functions, layers       refused       refused       as x        check_floating
    comparisons                   bool          bool          bool

    x with y                      booleans      integers      floats      matched
    with booleans                 bool          as x          as x
    with integers                 as y          the wider     as x
    with a Python float           float32       float32       as x
    with floats                   as y          as y          the wider
    quotients of these two        float32       float32       as x        divided

NumPy's own is another: sums and products of int8 wrap there, floats with int32 or int64 are
float64, and so are means and quotients; sqrt of uint8 is float16. Floats pass through all of these
functions as they are, at the cost of a look at their dtype.
"""

import numpy

from ...array import fresh
from ...array.backend import is_device_array, is_true, xp_of
from ...array.dtypes import FLOAT32, is_half, wide
from ...errors import ShapeError
from ..autograd import Tensor, array_of

COUNTED = "biu"  # kinds of dtypes: booleans, integers with a sign, without one
FLOATING = "fVc"  # V: bfloat16; complex numbers go where NumPy lets them
INT64 = numpy.dtype("int64")
FLOAT64 = numpy.dtype("float64")


def is_counted(x) -> bool:
    """Return True for a Tensor or an array of booleans or integers.

    Errors: ShapeError if it holds neither these nor floats.
    """
    kind = x.dtype.kind
    if kind in FLOATING:
        return False
    if kind not in COUNTED:
        raise ShapeError(f"numbers of dtype {x.dtype}; wanted floats, integers or booleans")
    return True


def check_floating(name: str, *operands) -> None:
    """Raise ShapeError unless all operands, Tensors or arrays, are floating."""
    for operand in operands:
        if operand.dtype.kind not in FLOATING:
            raise ShapeError(
                f"{name} of {operand.dtype}; wanted floating numbers: cast it first, as "
                'ops.cast(x, "float32")'
            )


def check_numbers(name: str, x) -> None:
    """Raise ShapeError if x is of booleans, or of what are no numbers."""
    if not is_counted(x) or x.dtype.kind != "b":
        return
    raise ShapeError(f'{name} of bool; wanted numbers: cast it first, as ops.cast(x, "int64")')


def check_holds(name: str, x, number) -> None:
    """Raise ShapeError unless this number of Python can stand among the elements of x."""
    if not is_counted(x):
        return
    kind = x.dtype.kind
    limits = (0, 1) if kind == "b" else (numpy.iinfo(x.dtype).min, numpy.iinfo(x.dtype).max)
    if not limits[0] <= number <= limits[1] or number != int(number):
        raise ShapeError(
            f"{name} of {x.dtype} and {number}, which {x.dtype} does not hold; cast the tensor "
            'first, as ops.cast(x, "int64") or "float32"'
        )


def sum_dtype(name: str, x):
    """Return the dtype in which sums and products of x are made: no sum wraps in it."""
    if not is_counted(x):
        return wide(x.dtype)
    if x.dtype == "uint64" and x.size and array_of(x).max() > numpy.iinfo(INT64).max:
        raise ShapeError(f'{name} of uint64 beyond 2^63; cast it first, as ops.cast(x, "float64")')
    return INT64


def in_float64(operation, x: Tensor, *arguments) -> Tensor:
    """Return operation(x, *arguments) of booleans or integers: computed in float64, as float32."""
    y = operation(Tensor(x.array.astype(FLOAT64)), *arguments).array
    with numpy.errstate(over="ignore"):
        return Tensor(y.astype(FLOAT32))


def counted_power(base, exponent):
    """Return two operands of a power, with integers for a base of booleans.

    Errors: ShapeError if the exponent is negative.
    """
    dtypes = [getattr(each, "dtype", INT64) for each in (base, exponent)]
    if any(dtype.kind not in COUNTED for dtype in dtypes) or float in (type(base), type(exponent)):
        return base, exponent
    array = array_of(exponent)
    if is_true((xp_of(array).asarray(array) < 0).any()):
        raise ShapeError(
            "integers to negative powers are fractions; wanted an exponent of at least 0, or cast "
            'the base first, as ops.cast(x, "float32")'
        )
    has_width = any(hasattr(each, "dtype") and each.dtype.kind in "iu" for each in (base, exponent))
    is_truth = type(base) is bool or dtypes[0].kind == "b"
    return (_cast(base, INT64) if is_truth and not has_width else base), exponent


def matched(name: str, x, y):
    """Return two operands, one of them cast where the table and NumPy differ."""
    dtype_x, dtype_y = getattr(x, "dtype", None), getattr(y, "dtype", None)
    if dtype_x is dtype_y and dtype_x is not None:
        return x, y
    if dtype_y is None:
        return (x, y) if dtype_x is None else _beside_number(name, x, y)
    if dtype_x is None:
        return _beside_number(name, y, x)[::-1]
    if not isinstance(dtype_x, numpy.dtype) or not isinstance(dtype_y, numpy.dtype):
        return matched(name, of_numpy(x), of_numpy(y))
    if not is_counted(x):
        return x, (_beside(y, dtype_x) if is_counted(y) else y)
    if not is_counted(y):
        return _beside(x, dtype_y), y
    if numpy.result_type(dtype_x, dtype_y).kind not in COUNTED:
        raise ShapeError(f"{name} of {dtype_x} and {dtype_y}; wanted one dtype: cast one of them")
    return x, y


def of_numpy(x):
    """Return an array of another library as NumPy's; anything else as it is."""
    dtype = getattr(x, "dtype", None)
    return x if dtype is None or isinstance(dtype, numpy.dtype) else numpy.asarray(x)


def divided(name: str, x, y):
    """Return two operands of a quotient: matched, and floating."""
    x, y = matched(name, x, y)
    if all(getattr(each, "dtype", INT64).kind in COUNTED for each in (x, y)):
        return [_cast(each, FLOAT32) if hasattr(each, "dtype") else each for each in (x, y)]
    return x, y


def common(arrays):
    """Return arrays that NumPy joins in the dtype of the table."""
    floating = {array.dtype for array in arrays if array.dtype.kind in FLOATING}
    if not floating:
        return arrays
    dtype = numpy.result_type(*floating)
    return [array if array.dtype.kind in FLOATING else _cast(array, dtype) for array in arrays]


def _beside_number(name, x, number):
    """Return x, and a number of Python beside it or what NumPy makes an array of."""
    if type(number) not in (bool, int, float):
        return matched(name, x, numpy.asarray(number))
    if type(number) is bool or not is_counted(x):
        return x, number
    if type(number) is float:
        return _cast(x, FLOAT32), number
    if x.dtype.kind != "b":
        check_holds(name, x, number)
    return x, number


def _beside(x, floating):
    """Return what is counted, in this floating dtype unless NumPy arrives there by itself."""
    is_same = not is_half(floating) and numpy.result_type(x.dtype, floating) == floating
    return x if is_same else _cast(x, floating)


def _cast(x, dtype):
    """Return booleans or integers as an array of another dtype; they take no gradient."""
    array = array_of(x)
    with numpy.errstate(over="ignore"):
        return xp_of(array).asarray(array).astype(dtype)


# ---- ids -----------------------------------------------------------------------------------------


def index_array(ids):
    """Return the array of a Tensor, an array as it is, anything else as an array of the host."""
    ids = array_of(ids)
    return ids if is_device_array(ids) else fresh.placed(ids, numpy)


def check_ids(name, ids, stop, ignored=None):
    """Raise ShapeError unless ids are integers and, on the host, in [0, stop) or `ignored`.

    Ids in GPU memory came from the host, where a model's check_input has seen the whole batch; to
    look at them here would mean to wait for the GPU.
    """
    if ids.dtype.kind not in "iu":
        raise ShapeError(f"{name} with ids of dtype {ids.dtype}; wanted integers")
    if is_device_array(ids):
        return
    if ignored is not None:
        ids = ids[ids != ignored]
    if ids.size and (ids.min() < 0 or ids.max() >= stop):
        raise ShapeError(
            f"{name} with ids from {ids.min()} to {ids.max()}; wanted 0 <= id < {stop}: were "
            "they made for another vocabulary, or another number of rows or classes?"
        )
