"""oneDNN's C interface: matrix products, prepared for one form of operands each."""

import ctypes
import threading
from ctypes import byref, c_char, c_float, c_int, c_int64, c_size_t, c_void_p

from ..dtypes import FLOAT32
from .layout import TRANSPOSED, Layout

_CPU, _IN_ORDER = 1, 1  # dnnl_cpu, dnnl_stream_in_order
_FIRST, _SECOND, _RESULT = 1, 33, 17  # DNNL_ARG_SRC, _WEIGHTS, _DST
_AS_THE_RESULT = 0  # dnnl_data_type_undef, of what is added to
_TYPES = {"float32": 3, "bfloat16": 2}  # dnnl_f32, dnnl_bf16
_UNIMPLEMENTED = (2, 3)  # dnnl_invalid_arguments, dnnl_unimplemented
_MOST_DIMS = 12  # DNNL_MAX_NDIMS
_MOST_CALLS = 4096  # prepared in a thread, before all are thrown away


class _Argument(ctypes.Structure):
    _fields_ = [("name", c_int), ("memory", c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int)]


class Interface:
    """The shared library libdnnl, and what each thread has prepared with it.

    Ranks may be threads: streams and memory objects are each thread's own.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int):
        self.c = library
        library.dnnl_version.restype = ctypes.POINTER(_Version)
        found = library.dnnl_version().contents
        self.version = found.major, found.minor, found.patch
        self._num_threads = num_threads
        self._of_thread = threading.local()
        self._engine = c_void_p()
        check(library.dnnl_engine_create(byref(self._engine), _CPU, c_size_t(0)))
        gemm = [c_char, c_char, *[c_int64] * 3, c_float, c_void_p, c_int64, c_void_p, c_int64]
        for name in ("dnnl_sgemm", "dnnl_gemm_bf16bf16f32"):
            getattr(library, name).argtypes = [*gemm, c_float, c_void_p, c_int64]
        library.dnnl_memory_set_data_handle.argtypes = [c_void_p, c_void_p]
        library.dnnl_primitive_execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]

    @property
    def version_text(self) -> str:
        """The version, for people."""
        return ".".join(map(str, self.version))

    @property
    def sets_threads(self) -> bool:
        """True if the number of its threads can be set, by OpenMP."""
        return hasattr(self.c, "omp_set_num_threads")

    def calls_of_this_thread(self) -> dict:
        """Return {form of operands: what multiplies them}, to be filled by the caller."""
        try:
            calls = self._of_thread.calls
        except AttributeError:
            calls = self._begin_thread()
        if len(calls) >= _MOST_CALLS:
            calls.clear()
        return calls

    def _begin_thread(self) -> dict:
        self.c.omp_set_num_threads(self._num_threads)  # OpenMP keeps it for each thread
        stream = c_void_p()
        check(self.c.dnnl_stream_create(byref(stream), self._engine, _IN_ORDER))
        self._of_thread.stream = stream.value
        self._of_thread.calls = {}
        return self._of_thread.calls

    def gemm(self, layout: Layout, dtype, is_added: bool):
        """Return a function (addresses of a, b, out): two matrices of this dtype into float32.

        is_added   the product is added to what is there
        """
        kept = float(is_added)
        function = self.c.dnnl_sgemm if dtype == FLOAT32 else self.c.dnnl_gemm_bf16bf16f32
        orders = [b"T" if order == TRANSPOSED else b"N" for order in layout.orders]
        sizes, (step_a, step_b, step) = layout.sizes, layout.steps

        def multiply(a, b, out):
            check(function(*orders, *sizes, 1.0, a, step_a, b, step_b, kept, out, step))

        return multiply

    def matmul(self, a, b, out, is_added: bool):
        """Return a function (addresses of a, b, out) for arrays like these.

        None if oneDNN has no primitive for them.
        is_added   the product is added to what is there
        """
        num_dims = out.ndim
        forms = [_Form(self.c, x, num_dims) for x in (a, b, out)]
        if not all(form.is_readable for form in forms):
            return None
        primitive = _Primitive(self.c, self._engine, forms, is_added)
        return None if primitive.is_missing else primitive.bound_to(self._of_thread.stream)


class _Form:
    """oneDNN's description of an array: its shape, strides and dtype."""

    def __init__(self, c, array, num_dims: int):
        self._c = c
        self.descriptor = c_void_p()
        self.is_readable = num_dims <= _MOST_DIMS and all(
            step >= 0 and step % array.itemsize == 0 for step in array.strides
        )
        if not self.is_readable:
            return
        missing = num_dims - array.ndim
        # a dim without a stride is one that is broadcast: one element, whose stride is any
        shape = [1] * missing + [n if step else 1 for n, step in zip(array.shape, array.strides)]
        strides = [1] * missing + [step // array.itemsize or 1 for step in array.strides]
        dims = c_int64 * _MOST_DIMS
        made = c.dnnl_memory_desc_create_with_strides(
            byref(self.descriptor),
            num_dims,
            dims(*shape),
            _TYPES[array.dtype.name],
            dims(*strides),
        )
        check(made)

    def __del__(self):
        if self.descriptor:
            self._c.dnnl_memory_desc_destroy(self.descriptor)


class _Primitive:
    """A product of arrays of these forms, and the memory objects that tell it their addresses."""

    def __init__(self, c, engine, forms: list[_Form], is_added: bool):
        self._c = c
        self._memory: list[c_void_p] = []
        self._primitive = c_void_p()
        described = c_void_p()
        a, b, out = [form.descriptor for form in forms]
        attributes = _adding(c) if is_added else None
        status = c.dnnl_matmul_primitive_desc_create(
            byref(described), engine, a, b, None, out, attributes
        )
        if is_added:
            c.dnnl_primitive_attr_destroy(attributes)
        self.is_missing = status in _UNIMPLEMENTED
        if self.is_missing:
            return
        check(status)
        check(c.dnnl_primitive_create(byref(self._primitive), described))
        c.dnnl_primitive_desc_destroy(described)
        for form in forms:
            memory = c_void_p()
            check(c.dnnl_memory_create(byref(memory), form.descriptor, engine, c_void_p(0)))
            self._memory.append(memory)

    def bound_to(self, stream: int):
        """Return the function (addresses of a, b, out) that multiplies in this stream."""
        names = _FIRST, _SECOND, _RESULT
        arguments = (_Argument * 3)(
            *[_Argument(name, memory.value) for name, memory in zip(names, self._memory)]
        )
        memories = [memory.value for memory in self._memory]
        point_to, execute = self._c.dnnl_memory_set_data_handle, self._c.dnnl_primitive_execute
        at_arguments, primitive = ctypes.addressof(arguments), self._primitive.value

        def multiply(*addresses):
            for memory, address in zip(memories, addresses):
                point_to(memory, address)
            check(execute(primitive, stream, len(arguments), at_arguments))

        multiply.held = self
        return multiply

    def __del__(self):
        for memory in self._memory:
            self._c.dnnl_memory_destroy(memory)
        if self._primitive:
            self._c.dnnl_primitive_destroy(self._primitive)


def _adding(c) -> c_void_p:
    """Return attributes of a primitive that adds its result to what is there."""
    attributes, after = c_void_p(), c_void_p()
    check(c.dnnl_primitive_attr_create(byref(attributes)))
    check(c.dnnl_post_ops_create(byref(after)))
    check(c.dnnl_post_ops_append_sum(after, c_float(1.0), c_int(0), _AS_THE_RESULT))
    check(c.dnnl_primitive_attr_set_post_ops(attributes, after))
    c.dnnl_post_ops_destroy(after)
    return attributes


def check(status: int) -> None:
    """Raise RuntimeError if a function of oneDNN failed."""
    if status:
        raise RuntimeError(f"a function of oneDNN returned status {status}; wanted 0")
