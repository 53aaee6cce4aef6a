"""The functions of the module: those of NumPy, with CuPy's parameters, on arrays of ours."""

import inspect

import numpy

from . import _array
from ._array import computed, made, ndarray, unwrapped, wrapped, written
from ._machine import machine
from .cuda import cublas

SIGNATURES = {
    "arange": "start, stop=None, step=1, dtype=None",
    "argmax": "a, axis=None, dtype=None, out=None, keepdims=False",
    "argsort": "a, axis=-1, kind=None",
    "array_equal": "a1, a2, equal_nan=False",
    "broadcast_to": "array, shape",
    "concatenate": "tup, axis=0, out=None, *, dtype=None, casting='same_kind'",
    "copyto": "dst, src, casting='same_kind', where=None",
    "empty": "shape, dtype=float, order='C'",
    "empty_like": "prototype, dtype=None, order='K', subok=None, shape=None",
    "expand_dims": "a, axis",
    "flatnonzero": "a",
    "full": "shape, fill_value, dtype=None, order='C'",
    "full_like": "a, fill_value, dtype=None, order='K', subok=None, shape=None",
    "matmul": "*args, axes=None, axis=None, keepdims=False, casting='same_kind', dtype=None, "
    "signature=None, order='K', out=None",
    "max": "a, axis=None, out=None, keepdims=False",
    "mean": "a, axis=None, dtype=None, out=None, keepdims=False",
    "min": "a, axis=None, out=None, keepdims=False",
    "moveaxis": "a, source, destination",
    "ones": "shape, dtype=float, order='C'",
    "ones_like": "a, dtype=None, order='K', subok=None, shape=None",
    "repeat": "a, repeats, axis=None",
    "reshape": "a, newshape, order='C', *, copy=None",
    "shape": "a",
    "sort": "a, axis=-1, kind=None",
    "stack": "tup, axis=0, out=None, *, dtype=None, casting='same_kind'",
    "sum": "a, axis=None, dtype=None, out=None, keepdims=False",
    "take": "a, indices, axis=None, out=None",
    "take_along_axis": "a, indices, axis",
    "tril": "m, k=0",
    "where": "condition, x=None, y=None",
    "zeros": "shape, dtype=float, order='C'",
    "zeros_like": "a, dtype=None, order='K', subok=None, shape=None",
}
UFUNCS = (
    "absolute add bitwise_and bitwise_or bitwise_xor copysign cos divide equal exp expm1 "
    "floor_divide greater greater_equal invert "
    "isfinite isinf isnan left_shift less less_equal log log1p logical_and logical_not logical_or "
    "maximum minimum multiply "
    "negative not_equal power remainder right_shift rint sign sin sqrt square subtract tanh "
    "true_divide"
).split()
_FROM_NOTHING = ("arange", "empty", "full", "ones", "zeros")
_VIEWS = ("broadcast_to", "expand_dims", "moveaxis", "reshape")


class ufunc:
    """One of NumPy's, on arrays of ours."""

    def __init__(self, name):
        self._function = getattr(numpy, name)
        self.name, self.nin, self.nout = f"cupy_{name}", self._function.nin, self._function.nout

    def __call__(self, *args, out=None, casting="same_kind", dtype=None):
        settings = {} if dtype is None else {"dtype": dtype}
        if len(args) > self.nin:
            *args, out = args
        if not any(isinstance(operand, ndarray) for operand in args):
            raise TypeError(
                f"{self.name} of no array of the GPU: {[type(operand) for operand in args]}"
            )
        return computed(self._function, *args, out=out, casting=casting, **settings)

    def at(self, a, indices, b=None):
        host, value, index = unwrapped(a), unwrapped(b), _array._index(indices)
        machine.begin()
        machine.launched(f"{self.name}.at")
        machine.perform(lambda: self._function.at(host, index, value))
        written(a)


def _function(name, signature):
    """A function of this name and these parameters."""
    made, original = inspect.signature(eval(f"lambda {signature}: None")), getattr(numpy, name)

    def function(*args, **kwargs):
        given = made.bind(*args, **kwargs)
        return _SPECIAL.get(name, _plain)(name, original, given)

    function.__name__, function.__signature__ = name, made
    return function


def _plain(name, original, given):
    args, kwargs = list(given.args), dict(given.kwargs)
    out = given.arguments.get("out")
    if out is not None:
        args, kwargs = (
            [a for a in args if a is not out],
            {k: v for k, v in kwargs.items() if v is not out},
        )
    return computed(
        original, *args, out=out, **{k: unwrapped_setting(v) for k, v in kwargs.items()}
    )


def unwrapped_setting(value):
    """An axis, a dtype or the like."""
    return unwrapped(value) if isinstance(value, ndarray) else value


def _from_nothing(name, original, given):
    arguments = {key: unwrapped_setting(value) for key, value in given.arguments.items()}
    machine.begin()
    if name == "empty":
        return ndarray(**arguments)
    if name == "arange":
        return made(lambda: original(*given.args, **given.kwargs))
    return made(lambda: original(**arguments))


def _like(name, original, given):
    prototype, *_ = given.args
    host = unwrapped(prototype)
    machine.begin()
    rest = {key: unwrapped_setting(value) for key, value in list(given.arguments.items())[1:]}
    if name == "empty_like":
        form = original(host, **rest)
        return ndarray(form.shape, form.dtype, strides=form.strides)
    return made(lambda: original(host, **rest))


def _view(name, original, given):
    array, *rest = given.args
    unwrapped(array)
    return made(lambda: original(array._host, *rest, **given.kwargs), array)


def _copyto(name, original, given):
    dst, arguments = (
        given.arguments["dst"],
        {
            key: unwrapped(value) if key != "casting" else value
            for key, value in given.arguments.items()
        },
    )
    machine.begin()
    _array.check_use(dst, writes=True)
    machine.launched("copyto")
    machine.perform(lambda: original(**arguments))
    written(dst)


def _where(name, original, given):
    if len(given.args) == 1:
        return given.args[0].nonzero()
    if not isinstance(given.args[0], ndarray):
        raise TypeError(f"Unsupported type {type(given.args[0])}")
    return computed(original, *given.args)


def _flatnonzero(name, original, given):
    return given.args[0].ravel().nonzero()[0]


def _sorted(name, original, given):
    if given.arguments.get("kind") not in (None, "stable"):
        raise ValueError("kind should be None or 'stable'")
    machine.waits()  # Thrust synchronizes
    return computed(original, *given.args[:2], **{**given.kwargs, "kind": "stable"})


def _take(name, original, given):
    a, indices, out = given.arguments["a"], given.arguments["indices"], given.arguments.get("out")
    return computed(original, a, indices, axis=given.arguments.get("axis"), out=out)


def _take_along_axis(name, original, given):
    a, indices, axis = given.args
    return computed(lambda x, i: original(x, i, axis), a, indices)


def _matmul(name, original, given):
    if not all(isinstance(operand, ndarray) for operand in given.args):
        raise TypeError(f"Unsupported type {[type(operand) for operand in given.args]}")
    if all(operand.dtype.kind in "fcV" for operand in given.args):
        cublas.multiplied_by_cupy(machine.begin())
    return computed(original, *given.args, out=given.arguments.get("out"))


def _joined(name, original, given):
    arguments = dict(given.arguments)
    arrays = arguments.pop("tup")
    if not all(isinstance(part, ndarray) for part in arrays):
        raise TypeError("Only cupy arrays can be concatenated")
    return computed(original, list(arrays), **arguments)


def _shape(name, original, given):
    a = given.args[0]
    return a.shape if isinstance(a, ndarray) else original(a)


_SPECIAL = {
    **dict.fromkeys(_FROM_NOTHING, _from_nothing),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(("empty_like", "full_like", "ones_like", "zeros_like"), _like),
    "copyto": _copyto,
    "where": _where,
    "flatnonzero": _flatnonzero,
    "argsort": _sorted,
    "sort": _sorted,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "matmul": _matmul,
    "concatenate": _joined,
    "stack": _joined,
    "shape": _shape,
}
FUNCTIONS = {name: _function(name, signature) for name, signature in SIGNATURES.items()}
FUNCTIONS |= {name: ufunc(name) for name in UFUNCS}
FUNCTIONS["abs"] = FUNCTIONS["absolute"]


class _OpenGrid:
    """numpy.ogrid, each part in GPU memory."""

    def __getitem__(self, key):
        grid = numpy.ogrid[key]
        return [wrapped(part) for part in grid] if isinstance(key, tuple) else wrapped(grid)


ogrid = _OpenGrid()


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    if isinstance(obj, ndarray):
        return obj.astype(obj.dtype if dtype is None else dtype, copy=copy)
    if isinstance(obj, (list, tuple)) and any(isinstance(part, ndarray) for part in obj):
        return FUNCTIONS["stack"]([part if dtype is None else part.astype(dtype) for part in obj])
    host = numpy.array(obj, dtype, order=order, ndmin=ndmin)
    machine.refuse_capture()
    machine.begin()
    machine.note("to device", host.nbytes)
    return wrapped(host)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return array(a, dtype, False if copy is None else copy, order or "K", blocking=blocking)


def ascontiguousarray(a, dtype=None):
    a = asarray(a, dtype)
    return a if a._host.flags.c_contiguous else a.copy()


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else numpy.asarray(a)


def get_array_module(*args):
    import sys

    return sys.modules[__package__] if any(isinstance(a, ndarray) for a in args) else numpy


def may_share_memory(a, b, max_work=None):
    return numpy.may_share_memory(a._host, b._host)


def shares_memory(a, b, max_work=None):
    return numpy.shares_memory(a._host, b._host)
