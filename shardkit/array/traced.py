"""Arrays that tell a recorder (recording.py) what NumPy does with them.

    x = array.view(Traced)
    y = x * 2.0                 computed as ever, and noted: multiply(x, 2.0, y)
    y[1:] = 0                   noted
    z = y.T                     a view: nothing to note
    float(y[0])                 the step reads a number: it cannot be recorded

Where no recorder is active in this thread, it is an array like any other. What NumPy makes without
asking us is Traced too, but lies in memory that no recorder knows: the recorder refuses it as soon
as something is computed with it.
"""

from contextvars import ContextVar

import numpy

current_recorder: ContextVar = ContextVar("shardkit_recorder", default=None)  # of this thread


class Traced(numpy.ndarray):
    """A view of an ndarray whose uses are noted by the recorder of this thread."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        function, recorder = (
            ufunc if method == "__call__" else getattr(ufunc, method),
            current_recorder.get(),
        )
        if recorder is not None:
            return recorder.ufunc(function, inputs, out, options)
        return function(*plain(inputs), **plain(options), **({"out": plain(out)} if out else {}))

    def __array_function__(self, function, types, args, kwargs):
        return _traced(function, args, kwargs)

    def __getitem__(self, index):
        if not is_basic(index):
            return _traced(numpy.ndarray.__getitem__, (self, index), {})
        return element_view(plain(self), index).view(
            Traced
        )  # also of one element: an array without dims

    def __setitem__(self, index, value):
        recorder = current_recorder.get()
        if recorder is None:
            plain(self)[plain(index)] = plain(value)
        else:
            recorder.assign(self, index, value)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def fill(self, value):
        self[...] = value


def _noted_method(name: str):
    """The method of ndarray, noted."""
    function = getattr(numpy.ndarray, name)

    def method(self, *args, **kwargs):
        return _traced(function, (self, *args), kwargs)

    method.__name__ = name
    return method


def _traced(function, args, kwargs):
    recorder = current_recorder.get()
    return (
        function(*plain(args), **plain(kwargs))
        if recorder is None
        else recorder.function(function, args, kwargs)
    )


for _name in (
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "astype",
    "choose",
    "compress",
    "copy",
    "cumprod",
    "cumsum",
    "dot",
    "flatten",
    "item",
    "nonzero",
    "partition",
    "put",
    "ravel",
    "repeat",
    "reshape",
    "searchsorted",
    "sort",
    "take",
    "tobytes",
    "tolist",
    "trace",
    "__bool__",
    "__complex__",
    "__contains__",
    "__float__",
    "__index__",
    "__int__",
):
    setattr(Traced, _name, _noted_method(_name))

HOST_KINDS = (numpy.ndarray, Traced)  # what the loops of kernels/cpu take


def plain(value):
    """The value, with ndarrays instead of the Traced ones in it."""
    if isinstance(value, Traced):
        return value.view(numpy.ndarray)
    if type(value) in (tuple, list):
        return type(value)([plain(part) for part in value])
    if type(value) is dict:
        return {key: plain(part) for key, part in value.items()}
    return value


def is_basic(index) -> bool:
    """True if NumPy answers this index with a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or isinstance(part, (int, numpy.integer, slice))
        and not isinstance(part, bool)
        for part in parts
    )


def element_view(array, index):
    """array[index] for a basic index, a view also of one element."""
    parts = index if isinstance(index, tuple) else (index,)
    return array[index] if Ellipsis in parts else array[(*parts, ...)]
