"""Recording what a thread computes, as a list of calls on fixed memory; and computing it again
without what led to the calls.

    recorder = Recorder(memory, buffers)
    with recorder.active():
        y = work(x)                 x, y: Traced arrays in `memory`; everything is computed as ever
    calls = recorder.calls
    calls.run(buffers, context)     the same calls: y is made anew from what lies in x and in the
                                    buffers now

What is noted: NumPy's work on Traced arrays (traced.py), the loops of kernels/cpu, and what is
called by way of `noted`. Arrays that are in neither memory nor buffers are constants. Results lie
where the recorded ones lay, and are used again within a step: whoever shares the memory must not
run before they were read.
"""

from contextlib import contextmanager
from functools import partial

import numpy

from .arena import current_arena, lending
from .replaying import (
    Calls,
    RecordingMemory,
    address_of,
    assign,
    assign_result,
    call_form,
    refill,
    taken_out,
)
from .traced import Traced, current_recorder, element_view, is_basic, plain

_COPIES = (numpy.ndarray.copy, numpy.ndarray.astype)
_HARMLESS = (
    numpy.may_share_memory,
    numpy.shares_memory,
    numpy.shape,
    numpy.ndim,
    numpy.size,
    numpy.result_type,
    numpy.can_cast,
)
_SELECTIONS = (
    numpy.argwhere,
    numpy.compress,
    numpy.extract,
    numpy.flatnonzero,
    numpy.ndarray.compress,
    numpy.unique,
)


def is_recording() -> bool:
    """True if a recorder is active in this thread."""
    return current_recorder.get() is not None


def noted(function, *args):
    """function(*args), which returns nothing: for work whose inside is not to be recorded, but that
    is to be done again.

    What it is given when it is done again are the same arrays, of class ndarray, with their
    contents then. On a GPU it is done before the rest of its action (graphs.py): it may read what
    goes in, and write what is `reserved`.
    """
    recorder = current_recorder.get()
    if recorder is None:
        function(*args)
    else:
        recorder.call_aside(function, args)


def reserved(shape, dtype, xp):
    """A new array of xp, for `noted` to write to: in a recording on a GPU nothing else ever has its
    memory.
    """
    recorder = current_recorder.get()
    return xp.empty(shape, dtype) if recorder is None else recorder.reserved(shape, dtype)


def changing(function, context):
    """function(context), an integer of 64 bits; in a recording an array [1] uint64 that gets the
    value of each run's context.
    """
    recorder = current_recorder.get()
    return function(context) if recorder is None else recorder.changing(function, context)


class Recorder:
    """Notes what this thread computes while it is active.

    memory   a RecordingMemory, where results lie
    buffers  {name: contiguous array} of the caller's
    reason   why it cannot be recorded; None: it can
    """

    def __init__(self, memory: RecordingMemory, buffers: dict):
        self._memory, self._buffers = (
            memory,
            {name: (address_of(a), a.nbytes) for name, a in buffers.items()},
        )
        self._outside = None  # the arena that was in use
        self.calls, self.reason = Calls(), None

    @contextmanager
    def active(self):
        """Inside, what this thread computes with Traced arrays is noted, and `empty` makes such
        arrays.
        """
        self._outside = current_arena()
        token = current_recorder.set(self)
        try:
            with lending(self._memory):
                yield
        finally:
            current_recorder.reset(token)

    def refuse(self, reason: str) -> None:
        """This cannot be recorded; computing goes on."""
        self.reason = self.reason or reason

    # ---- what is noted ---------------------------------------------------------------------------

    def ufunc(self, function, inputs, out, options):
        """A ufunc, or a method of one."""
        if out:
            function(*plain(inputs), **plain(options), out=plain(out))
        else:
            results = function(*plain(inputs), **plain(options))
            if results is None:  # of ufunc.at
                return self._note_form(function, inputs, options)
            out = tuple(map(self._kept, results if isinstance(results, tuple) else (results,)))
        if (
            options
            or not isinstance(function, numpy.ufunc)
            or any(isinstance(x, (list, tuple)) for x in inputs)
        ):
            self._note_form(function, inputs, {**options, "out": out})
        else:
            self._note(function, *inputs, *out)
        return out[0] if len(out) == 1 else out

    def function(self, function, args, kwargs):
        """A function of NumPy, or a method of ndarray."""
        result, arrays = function(*plain(args), **plain(kwargs)), []
        form = taken_out((args, kwargs), arrays)
        if kwargs.get("out") is not None or function is numpy.copyto:
            self._note_form(function, args, kwargs)
            return kwargs.get("out")
        if function in _HARMLESS:
            return result
        if _is_view(result, arrays):
            return result.view(Traced)
        if (
            isinstance(result, (list, tuple))
            and result
            and all(_is_view(part, arrays) for part in result)
        ):
            return type(result)([part.view(Traced) for part in result])
        if not isinstance(result, (numpy.ndarray, numpy.generic)):
            self.refuse(f"{function.__name__} reads numbers, or changes arrays in place")
            return result
        if _is_shaped_by_numbers(function, args):
            self.refuse(f"the shape of what {function.__name__} makes depends on numbers")
        kept = self._kept(result)
        if function in _COPIES:
            self._note(assign, kept, args[0])
        else:
            self._note(partial(assign_result, function, form), kept, *arrays)
        return kept

    def assign(self, target, index, value):
        """target[index] = value."""
        plain(target)[plain(index)] = plain(value)
        if not is_basic(index) or isinstance(value, (list, tuple)):
            return self._note_form(numpy.ndarray.__setitem__, (target, index, value), {})
        there = element_view(plain(target), index)
        if not (
            isinstance(value, numpy.ndarray) and _is_same(there, value)
        ):  # as after target[index] += 1
            self._note(assign, there.view(Traced), value)

    def call(self, function, arguments):
        """A compiled loop."""
        function(*plain(arguments))
        self._note(function, *arguments)

    def call_aside(self, function, arguments):
        """A function that is not to be looked into."""
        token = current_recorder.set(None)
        try:
            with lending(self._outside):
                function(*plain(arguments))
        finally:
            current_recorder.reset(token)
        self._note(function, *arguments)

    def changing(self, function, context):
        """See the function of this name."""
        self.calls.context[0], array = context, self._memory.empty(1, numpy.uint64)
        fill = partial(refill, function, self.calls.context)
        fill(plain(array))
        self._note(fill, array)
        return array

    # ---- how -------------------------------------------------------------------------------------

    def _note_form(self, function, args, kwargs):
        arrays = []
        form = taken_out((args, kwargs), arrays)
        self._note(partial(call_form, function, form), *arrays)

    def _note(self, function, *given):
        if self.reason is not None:
            return
        arguments = list(given)
        for at, array in enumerate(given):
            if isinstance(array, numpy.ndarray):
                arguments[at] = self._fixed(array, arguments, at)
        self.calls.add(function, arguments)

    def _fixed(self, array, arguments, at):
        """The array as the calls keep it."""
        if array.size == 0:
            return numpy.empty(array.shape, array.dtype)
        there = self._memory.same_place(array)
        if there is not None:
            return there
        address = address_of(array)
        for name, (first, num_bytes) in self._buffers.items():
            if first <= address < first + num_bytes:
                self.calls.link(name, arguments, at, address - first, array)
                return None  # until the first run
        if isinstance(array, Traced):
            self.refuse(f"an array of shape {array.shape} was made in a way that is not recorded")
        return plain(array)

    def _kept(self, result):
        """A result, in memory of the recording, in the order of dims that NumPy gave it: so `out`
        changes no order of sums.
        """
        result = numpy.asarray(result)
        order = sorted(range(result.ndim), key=lambda dim: -result.strides[dim])
        kept = self._memory.empty([result.shape[dim] for dim in order], result.dtype).transpose(
            numpy.argsort(order)
        )
        plain(kept)[...] = result
        return kept


def _is_shaped_by_numbers(function, args) -> bool:
    """True if the shape of the result may be another one for other numbers."""
    if function is numpy.ndarray.__getitem__:
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(getattr(part, "dtype", None) == bool for part in parts)
    return (
        function in _SELECTIONS
        or function.__name__ == "repeat"
        and isinstance(args[1], numpy.ndarray)
    )


def _is_same(a, b) -> bool:
    return (
        a.size == b.size
        and a.shape == b.shape
        and a.strides == b.strides
        and address_of(a) == address_of(b)
    )


def _is_view(result, arrays) -> bool:
    return isinstance(result, numpy.ndarray) and any(
        numpy.may_share_memory(result, plain(array)) for array in arrays
    )
