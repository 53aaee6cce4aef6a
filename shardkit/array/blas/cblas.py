"""Products by a library that has the C interface to BLAS.

two matrices     cblas_?gemm, which reads each as it lies, by rows or by columns: nothing is
                 copied
stacks of them   one call of cblas_?gemm_batch, with the addresses of all
two of bfloat16  cblas_gemm_bf16bf16f32: exact products, added up in float32, on the matrix
                 units of a CPU that has some
"""

import ctypes
import functools
from dataclasses import dataclass

import numpy

from ..dtypes import FLOAT32
from .layout import Layout, address_of, form_of, layout_of, leading_strides

_BY_ROWS = 101
_REALS = {FLOAT32: ("s", ctypes.c_float), numpy.dtype(numpy.float64): ("d", ctypes.c_double)}


class CblasLibrary:
    """A Library (library.py) by the functions of the C interface to BLAS.

    name      for people
    library   a ctypes.CDLL, or whatever has cblas_sgemm, cblas_sgemm_batch and those of double
              precision
    integer   the type of its sizes
    halves    True: it has cblas_gemm_bf16bf16f32 too, and the CPU arithmetic for it
    """

    def __init__(self, name: str, library, integer=ctypes.c_int, halves: bool = False):
        self.name = name
        self._integer = integer
        self._functions = {}
        enum, pointer = ctypes.c_int, ctypes.c_void_p
        for dtype, (letter, real) in _REALS.items():
            one = getattr(library, f"cblas_{letter}gemm")
            many = getattr(library, f"cblas_{letter}gemm_batch")
            one.restype = None
            sizes = [*[enum] * 3, *[integer] * 3]
            one.argtypes = [*sizes, real, *[pointer, integer] * 2, real, pointer, integer]
            many.restype = None
            many.argtypes = [enum, *[pointer] * 13, integer, pointer]
            self._functions[dtype] = one, many
        self.multiplies_halves = halves
        self._of_halves = library.cblas_gemm_bf16bf16f32 if halves else None
        if halves:
            self._of_halves.restype = None
            self._of_halves.argtypes = self._functions[FLOAT32][0].argtypes

    def multiply(self, a, b, out) -> bool:
        """Compute out = a b, unless BLAS cannot; see library.py."""
        if a.dtype != b.dtype:
            return False
        one, many = self._functions.get(out.dtype, (None, None))
        if a.dtype != out.dtype:
            one, many = self._of_halves, None
            if a.dtype.name != "bfloat16" or out.dtype != FLOAT32:
                return False
        layout = layout_of(form_of(a), form_of(b), form_of(out)) if one is not None else None
        if layout is None or numpy.may_share_memory(a, out) or numpy.may_share_memory(b, out):
            return False
        if layout.leading and many is None:
            return False
        if layout.leading:
            self._multiply_stacks(many, layout, a, b, out)
        else:
            _multiply_two(one, layout, a, b, out)
        return True

    def add(self, a, b, out) -> bool:
        """Compute out += a b for two matrices, unless BLAS cannot; see library.py."""
        if a.dtype != b.dtype or out.ndim != 2:
            return False
        function = self._functions.get(out.dtype, (None, None))[0]
        if a.dtype != out.dtype:
            is_known = a.dtype.name == "bfloat16" and out.dtype == FLOAT32
            function = self._of_halves if is_known else None
        layout = layout_of(form_of(a), form_of(b), form_of(out)) if function is not None else None
        if layout is not None:
            _multiply_two(function, layout, a, b, out, kept=1.0)
        return layout is not None

    def _multiply_stacks(self, function, layout, a, b, out):
        stack = _stack_of(layout, form_of(a), form_of(b), form_of(out), out.dtype, self._integer)
        places = stack.offsets + [[address_of(x)] for x in (a, b, out)]
        at_a, at_b, at = [address_of(places) + row * places.strides[0] for row in range(3)]
        *forms, step_a, step_b, zero_times, step, count = stack.constants
        function(_BY_ROWS, *forms, at_a, step_a, at_b, step_b, zero_times, at, step, 1, count)


def _multiply_two(function, layout, a, b, out, kept=0.0):
    """Compute out = a b + kept out."""
    step_a, step_b, step = layout.steps
    operands = address_of(a), step_a, address_of(b), step_b
    function(_BY_ROWS, *layout.orders, *layout.sizes, 1.0, *operands, kept, address_of(out), step)


@dataclass(frozen=True, eq=False)
class Stack:
    """What a product of stacks is described by beside its layout.

    offsets     [3, matrices] int64, bytes from the beginning of a, b and the result to their
                matrices
    constants   addresses of orders, sizes, 1, steps of a and b, 0, step of the result, number of
                matrices
    """

    offsets: numpy.ndarray
    constants: tuple[int, ...]
    _held: tuple  # what the addresses are of


@functools.lru_cache(maxsize=4096)
def _stack_of(layout: Layout, a, b, out, dtype, integer) -> Stack:
    leading, (step_a, step_b, step), real = layout.leading, layout.steps, _REALS[dtype][1]
    strides = numpy.array([leading_strides(*form[:2], len(leading)) for form in (a, b, out)])
    offsets = strides @ numpy.indices(leading).reshape(len(leading), -1)
    held = (
        *map(ctypes.c_int, layout.orders),
        *map(integer, layout.sizes),
        real(1),
        integer(step_a),
        integer(step_b),
        real(0),
        integer(step),
        integer(offsets.shape[1]),
    )
    return Stack(offsets, tuple(map(ctypes.addressof, held)), held)
