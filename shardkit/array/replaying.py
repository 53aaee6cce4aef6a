"""Calls on fixed memory: what a recorder (recording.py) leaves behind, and what makes the same
numbers again.

    memory   |  x  |  y  |   z   | free |           arrays of a recording: lent out while it is recorded, and used again
    calls    gelu(x, y)   matmul(y, W, z)   ...     views of this memory; W: a view of a buffer that may move

Nothing here keeps an array alive: calls hold views of the mapping itself, so a recording takes no
more memory than the work that was recorded.
"""

import numpy

from .arena import Arena
from .traced import Traced


class RecordingMemory(Arena):
    """An arena, also of small arrays, that knows where its arrays lie. They are Traced."""

    lends_small = True

    def _begin(self):
        super()._begin()
        self._addresses: list[tuple] = []  # (first, stop, mapping, where `first` is in it)

    def empty(self, shape, dtype):
        return super().empty(shape, dtype).view(Traced)

    def _grow(self, size):
        super()._grow(size)
        _, memory, offset = self._segments[-1]
        first = address_of(numpy.frombuffer(memory, numpy.uint8)) + offset
        self._addresses.append((first, first + len(memory) - offset, memory, offset))

    def reserve(self, num_bytes: int) -> None:
        """Grow to at least so much at once."""
        if num_bytes > self.num_bytes:
            self._grow(num_bytes - self.num_bytes)

    def same_place(self, array):
        """The array as an ndarray that leaves its memory free to be lent again; None if it lies
        elsewhere.
        """
        address = address_of(array)
        for first, stop, memory, offset in self._addresses:
            if first <= address < stop:
                return numpy.ndarray(
                    array.shape, array.dtype, memory, offset + address - first, array.strides
                )
        return None


class Calls:
    """What was recorded: functions with their arguments, and which arguments are parts of buffers
    that may move.
    """

    def __init__(self):
        self.context = [None]  # of the run in progress
        self._calls: list[tuple] = []
        self._links: dict[
            str, list
        ] = {}  # buffer -> (arguments, which of them, where in the buffer, form)
        self._addresses: dict[str, int] = {}  # buffer -> where it was in the last run

    def add(self, function, arguments: list) -> None:
        self._calls.append((function, arguments))

    def link(self, name: str, arguments: list, at: int, offset: int, array) -> None:
        """Argument number `at` is an array like this one, `offset` bytes behind the beginning of
        the buffer of this name.
        """
        self._links.setdefault(name, []).append(
            (arguments, at, offset, array.shape, array.dtype, array.strides)
        )

    def run(self, buffers: dict, context) -> None:
        """Compute.

        buffers  {name: contiguous array} as when it was recorded, wherever they lie now
        """
        self.context[0] = context
        for name, buffer in buffers.items():
            if name in self._links and address_of(buffer) != self._addresses.get(name):
                self._move(name, buffer)
        with numpy.errstate(over="ignore"):  # as halves.rounded says
            for function, arguments in self._calls:
                function(*arguments)

    def _move(self, name, buffer):
        self._addresses[name], memory = address_of(buffer), buffer.reshape(-1).view(numpy.uint8)
        for arguments, at, offset, shape, dtype, strides in self._links[name]:
            arguments[at] = numpy.ndarray(shape, dtype, memory, offset, strides)


def address_of(array) -> int:
    """Of its first element."""
    return array.__array_interface__["data"][0]


# ---- functions that calls are made of ------------------------------------------------------------

_HERE = object()  # where an array was taken out


def taken_out(value, arrays: list):
    """The value without the arrays in it, which go into the list."""
    if isinstance(value, numpy.ndarray):
        arrays.append(value)
        return _HERE
    if type(value) in (tuple, list):
        return type(value)([taken_out(part, arrays) for part in value])
    return (
        {key: taken_out(part, arrays) for key, part in value.items()}
        if type(value) is dict
        else value
    )


def _put_back(form, arrays):
    """The inverse."""
    if form is _HERE:
        return next(arrays)
    if type(form) in (tuple, list):
        return type(form)([_put_back(part, arrays) for part in form])
    return (
        {key: _put_back(part, arrays) for key, part in form.items()} if type(form) is dict else form
    )


def assign(target, value):
    target[...] = value


def call_form(function, form, *arrays):
    """function(*args, **kwargs); the form is what is left of (args, kwargs) when the arrays are
    taken out.
    """
    args, kwargs = _put_back(form, iter(arrays))
    return function(*args, **kwargs)


def assign_result(function, form, target, *arrays):
    target[...] = call_form(function, form, *arrays)


def refill(function, context, array):
    array[0] = function(context[0])
