"""cupy.ndarray as far as it is needed: NumPy's arithmetic, in memory that NumPy is not let into.

An array of NumPy meets one of these only where CuPy copies on purpose: in asarray, set, get and the
like, and these are noted.
"""

import sys

import numpy

from ._machine import machine

_SCALARS = (bool, int, float, complex, numpy.generic)
_INDEX_PARTS = (int, numpy.integer, slice, type(None), type(Ellipsis))


class ndarray:
    """An array in the memory of a GPU."""

    __slots__ = ("_host", "_allocation", "base", "__weakref__")

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        dtype = numpy.dtype(dtype)
        if memptr is None:
            num_bytes = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
            self._allocation = machine.lease(num_bytes) or machine.allocate(num_bytes)
            self._host = numpy.ndarray(
                shape, dtype, self._allocation.memory, strides=strides, order=order
            )
        else:
            self._allocation = memptr.mem._allocation
            offset = memptr.ptr - self._allocation.address
            self._host = numpy.ndarray(
                shape, dtype, self._allocation.memory, offset, strides, order
            )
        self.base = None

    # ---- what it is ------------------------------------------------------------------------------

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: wrapped(self._host.T, self))

    @property
    def flags(self):
        return Flags(self._host.flags)

    @property
    def data(self):
        from .cuda.memory import Memory, MemoryPointer

        memory = Memory.of(self._allocation)
        return MemoryPointer(memory, self._address - memory.ptr)

    @property
    def device(self):
        from .cuda import Device

        return Device(self._allocation.device)

    @property
    def _address(self) -> int:
        return self._host.__array_interface__["data"][0]

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "version": 3,
            "stream": machine.stream.address or 1,
            "data": (self._address, False),
            "strides": None if self._host.flags.c_contiguous else self.strides,
        }

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    __hash__ = None

    # ---- to the host, each time noted ------------------------------------------------------------

    def __array__(self, dtype=None):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array "
            "explicitly."
        )

    def get(self, stream=None, order="C", out=None, blocking=True):
        queue = machine.begin(self._allocation.device) if stream is None else stream._queue
        if queue.capture is not None:  # CuPy says so before it asks CUDA
            raise RuntimeError("the current stream is capturing, so D2H transfers are disallowed")
        machine.check_seen(queue, self._allocation, "get()")
        if out is None:
            out = numpy.empty(self.shape, self.dtype, order=order)
        if out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(f"get() of {self.shape} {self.dtype} into {out.shape} {out.dtype}")
        machine.note("to host", self.nbytes)
        if blocking or not machine.is_pinned(out.__array_interface__["data"][0], out.nbytes):
            queue.synchronize()
            numpy.copyto(out, self._host)
        else:
            later(queue, self, lambda: numpy.copyto(out, self._host))
        return out

    def set(self, arr, stream=None):
        if not isinstance(arr, numpy.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.shape != self.shape or arr.dtype != self.dtype:
            raise ValueError(f"set() of {self.shape} {self.dtype} from {arr.shape} {arr.dtype}")
        queue = machine.begin() if stream is None else stream._queue
        machine.refuse_capture(queue)
        machine.check_seen(queue, self._allocation, "set()")
        machine.note("to device", self.nbytes)
        if machine.is_pinned(arr.__array_interface__["data"][0], arr.nbytes):
            later(queue, self, lambda: numpy.copyto(self._host, arr))
            self._allocation.block.written = queue, queue.tick
        else:
            queue.synchronize()
            numpy.copyto(self._host, arr)
            written(self)

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __complex__(self):
        return complex(self.get())

    def __repr__(self):
        return repr(self.get())

    def __str__(self):
        return str(self.get())

    def __format__(self, format_spec):
        return format(self.get(), format_spec)

    def __reduce__(self):
        from . import array

        return array, (self.get(),)

    # ---- parts and views -------------------------------------------------------------------------

    def __getitem__(self, index):
        machine.begin()
        index = _index(index)
        if any(isinstance(part, numpy.ndarray) and part.dtype == bool for part in _parts(index)):
            machine.waits()
            machine.note("size to host", 8)
        return made(lambda: self._host[index], self)

    def __setitem__(self, index, value):
        value = unwrapped(value)
        machine.begin()
        check_use(self, writes=True)
        machine.launched("setitem")
        host, index = self._host, _index(index)
        machine.perform(lambda: host.__setitem__(index, value))
        written(self)

    def reshape(self, *shape, order="C", copy=None):
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return made(lambda: self._host.reshape(shape, order=order), self)

    def transpose(self, *axes):
        return wrapped(self._host.transpose(*axes), self)

    def swapaxes(self, axis1, axis2):
        return wrapped(self._host.swapaxes(axis1, axis2), self)

    def squeeze(self, axis=None):
        return wrapped(self._host.squeeze(axis), self)

    def ravel(self, order="C"):
        return made(lambda: self._host.ravel(order), self)

    def flatten(self, order="C"):
        return made(lambda: self._host.flatten(order), self)

    def view(self, dtype=None, type=None):
        return wrapped(self._host.view() if dtype is None else self._host.view(dtype), self)

    # ---- copies and reductions -------------------------------------------------------------------

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        machine.begin()
        if not copy and self.dtype == dtype:
            return self
        return made(lambda: self._host.astype(dtype, order=order, casting=casting or "unsafe"))

    def copy(self, order="C"):
        machine.begin()
        return made(lambda: self._host.copy(order))

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def fill(self, value):
        value = unwrapped(value)
        machine.begin()
        check_use(self, writes=True)
        machine.launched("fill")
        host = self._host
        machine.perform(lambda: host.fill(value))
        written(self)

    def take(self, indices, axis=None, out=None):
        return computed(numpy.take, self, indices, axis=axis, out=out)

    def argsort(self, axis=-1, kind=None):
        if kind not in (None, "stable"):
            raise ValueError("kind should be None or 'stable'")
        machine.waits()
        return computed(numpy.argsort, self, axis=axis, kind="stable")

    def nonzero(self):
        machine.waits()
        machine.note("size to host", 8)
        machine.begin()
        return tuple([wrapped(part) for part in self._host.nonzero()])

    def sum(self, axis=None, dtype=None, out=None, keepdims=False):
        return computed(numpy.sum, self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def prod(self, axis=None, dtype=None, out=None, keepdims=None):
        return computed(numpy.prod, self, axis=axis, dtype=dtype, out=out, keepdims=bool(keepdims))

    def mean(self, axis=None, dtype=None, out=None, keepdims=False):
        return computed(numpy.mean, self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def max(self, axis=None, out=None, keepdims=False):
        return computed(numpy.max, self, axis=axis, out=out, keepdims=keepdims)

    def min(self, axis=None, out=None, keepdims=False):
        return computed(numpy.min, self, axis=axis, out=out, keepdims=keepdims)

    def argmax(self, axis=None, out=None, dtype=None, keepdims=False):
        return computed(numpy.argmax, self, axis=axis, out=out, keepdims=keepdims)

    def all(self, axis=None, out=None, keepdims=False):
        return computed(numpy.all, self, axis=axis, out=out, keepdims=keepdims)

    def any(self, axis=None, out=None, keepdims=False):
        return computed(numpy.any, self, axis=axis, out=out, keepdims=keepdims)

    def cumsum(self, axis=None, dtype=None, out=None):
        return computed(numpy.cumsum, self, axis=axis, dtype=dtype, out=out)

    # ---- NumPy's functions on these arrays -------------------------------------------------------

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        name = {"bitwise_invert": "invert"}.get(ufunc.__name__, ufunc.__name__)
        function = getattr(sys.modules[__package__], name, None)
        if function is None or method not in ("__call__", "at"):
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        return (
            function(*inputs, **kwargs) if method == "__call__" else function.at(*inputs, **kwargs)
        )

    def __array_function__(self, func, types, args, kwargs):
        function = getattr(sys.modules[__package__], func.__name__, None)
        if function is None or any(kind not in (ndarray, numpy.ndarray) for kind in types):
            return NotImplemented
        return function(*args, **kwargs)


class Flags:
    """What CuPy tells about the memory of an array."""

    def __init__(self, flags):
        self.c_contiguous, self.f_contiguous, self.owndata = (
            flags.c_contiguous,
            flags.f_contiguous,
            flags.owndata,
        )

    def __getitem__(self, name):
        return getattr(
            self,
            {"C_CONTIGUOUS": "c_contiguous", "F_CONTIGUOUS": "f_contiguous", "OWNDATA": "owndata"}[
                name
            ],
        )


# ---- between the two -----------------------------------------------------------------------------


def unwrapped(value):
    """The NumPy array inside, a Python or NumPy number as it is. Errors: TypeError on an array of
    NumPy, and all else.
    """
    if isinstance(value, ndarray):
        check_use(value)
        return value._host
    if isinstance(value, (list, tuple)):
        return type(value)(map(unwrapped, value))
    if value is not None and not isinstance(value, _SCALARS):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def check_use(array, writes=False):
    """Errors: unless work of the current stream may read this array, or write it: it is of the
    current device, what wrote it comes before on the stream, and no copy of it is on the way.
    """
    if array._allocation.device != machine.device:
        raise ValueError(
            f"Array device must be same as the current device: array device = "
            f"{array._allocation.device} while "
            f"current = {machine.device}"
        )
    stream, allocation = machine.stream, array._allocation
    if stream.capture is not None or not array.size:
        return
    if not machine.on_the_way and not allocation.parts:
        machine.check_seen(stream, allocation, "work")  # whose bytes these are makes no difference
    else:
        start, stop = numpy.lib.array_utils.byte_bounds(array._host)
        if writes:
            machine.check_not_on_the_way(start, stop)
        start, stop = start - allocation.address, stop - allocation.address
        machine.check_seen(stream, allocation, "work", start, stop)


def wrapped(host, of=None) -> ndarray:
    """The result of NumPy as an array of ours: a view of `of` if it lies in its memory, else memory
    of its own.
    """
    host = numpy.asarray(host)
    self = ndarray.__new__(ndarray)
    self._host = host
    if of is not None and host.base is not None and root(host) is root(of._host):
        self._allocation, self.base = of._allocation, of if of.base is None else of.base
    else:
        self._allocation, self.base = machine.allocate(host.nbytes, root(host)), None
        written(self)
    return self


def made(make, of=None, name="copy") -> ndarray:
    """What make() of NumPy returns, as an array of ours; `of` as in `wrapped`. It is made again by
    a graph.

    name   of what is launched, unless it is a view
    """
    with numpy.errstate(all="ignore"):
        host = numpy.asarray(make())
    if of is not None and host.base is not None and root(host) is root(of._host):
        return wrapped(host, of)
    machine.launched(name)
    lease = machine.lease(host.nbytes)
    if lease is None:
        return wrapped(host)
    self = ndarray.__new__(ndarray)
    self._allocation, self.base = lease, None
    self._host = there = numpy.ndarray(
        host.shape, host.dtype, lease.memory, strides=numpy.empty_like(host).strides
    )
    there[...] = host  # also of a capture: the next one may need indices that are not out of range
    if machine.stream.capture is not None:
        machine.perform(lambda: numpy.copyto(there, make()))
    written(self)
    return self


def root(host):
    """The NumPy array that owns this memory."""
    while isinstance(host.base, numpy.ndarray):
        host = host.base
    return host


def written(array):
    """Work of the current stream has written it."""
    array._allocation.mark_written(machine.stream)


def later(queue, array, copy):
    """Put a copy from or to the memory of this array into the queue."""
    place = array._allocation.address, array._allocation.memory.nbytes
    machine.on_the_way.append(place)

    def work():
        machine.on_the_way.remove(place)
        copy()

    queue.put(work)


def computed(function, *operands, out=None, **settings):
    """function(*operands) of NumPy, in GPU memory."""
    operands = [unwrapped(operand) for operand in operands]
    if out is not None and not isinstance(out, ndarray):
        raise TypeError(f"return arrays must be of ArrayType, got {type(out)}")
    machine.begin()
    name = getattr(function, "__name__", "function")
    if out is None:
        return made(lambda: function(*operands, **settings), name=name)
    check_use(out, writes=True)
    machine.launched(name)
    host = out._host
    with numpy.errstate(all="ignore"):
        machine.perform(lambda: function(*operands, out=host, **settings))
    written(out)
    return out


def _parts(index):
    return index if isinstance(index, tuple) else (index,)


def _index(index):
    """Of integers, slices and arrays of ours. Errors: TypeError on an array of NumPy, which would
    travel unseen.
    """
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if isinstance(index, ndarray):
        check_use(index)
        return index._host
    if isinstance(index, (bool, *_INDEX_PARTS)):
        return index
    if isinstance(index, list):
        machine.waits()
        machine.note("to device", 8 * len(index))
        return index
    raise TypeError(f"an index of type {type(index)} would be copied to the GPU unseen")


def _operator(name, reflected=False):
    def method(self, other):
        if not isinstance(other, (ndarray, numpy.ndarray, *_SCALARS)):
            return NotImplemented
        if name == "matmul":
            return sys.modules[__package__].matmul(*((other, self) if reflected else (self, other)))
        return computed(getattr(numpy, name), *((other, self) if reflected else (self, other)))

    return method


def _in_place(name):
    def method(self, other):
        return computed(getattr(numpy, name), self, other, out=self)

    return method


def _unary(name):
    return lambda self: computed(getattr(numpy, name), self)


for _symbol, _name in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}.items():
    setattr(ndarray, f"__{_symbol}__", _operator(_name))
    setattr(ndarray, f"__r{_symbol}__", _operator(_name, reflected=True))
    setattr(ndarray, f"__i{_symbol}__", _in_place(_name))
for _symbol, _name in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}.items():
    setattr(ndarray, f"__{_symbol}__", _operator(_name))
for _symbol, _name in {
    "neg": "negative",
    "pos": "positive",
    "abs": "absolute",
    "invert": "invert",
}.items():
    setattr(ndarray, f"__{_symbol}__", _unary(_name))
