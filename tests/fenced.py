"""Arrays between pages that nobody may touch, and kernels on such arrays.

A loop that reads or writes beyond an array ends the process with SIGSEGV.
"""

import ctypes
import faulthandler
import mmap

import numpy
from kernel_table import ATTENTION
from pure.test_convolution import SHAPES, a_convolution

from shardkit.testing.array import kernels

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
NOTHING = 0  # may be done to a page


def fenced(array, at_end: bool):
    """Return a copy that ends where such a page begins, or begins where one ends."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = page + (room - array.nbytes) * at_end
    inside = numpy.frombuffer(memory, "uint8", array.nbytes, start).view(array.dtype)
    inside = inside.reshape(array.shape)
    inside[...] = array
    for one in (address, address + page + room):
        if _libc.mprotect(one, page, NOTHING):
            raise OSError(ctypes.get_errno(), "mprotect")
    return inside


def convolve(shape, at_end):
    """Compute a convolution and its gradients."""
    window, *arrays = a_convolution(shape, "float32")
    x, weight, bias, gradient = [fenced(each, at_end) for each in arrays]
    y, for_x, for_weight = [fenced(each, at_end) for each in (gradient, x, weight)]
    kernels.convolve(x, weight, bias, window, out=y)
    kernels.convolve_input(gradient, weight, None, window, x.shape[2:], out=for_x)
    kernels.convolve_weight(gradient, x, window, weight.shape[2:], out=for_weight)


def attend(shape, at_end):
    """Compute attention and its gradients."""
    batch, heads, key_heads, queries, keys, dim, first_query = shape
    ours, theirs = (batch, heads, queries, dim), (batch, key_heads, keys, dim)
    rng = numpy.random.default_rng(0)
    for dtype in ("float32", "float64"):
        given = [rng.standard_normal(one).astype(dtype) for one in (ours, theirs, theirs, ours)]
        q, k, v, gradient = [fenced(each, at_end) for each in given]
        made = kernels.causal_attention(q, k, v, 0.3, first_query)
        y, log_sums = [fenced(each, at_end) for each in made]
        out = tuple(fenced(each, at_end) for each in (q, k, v))
        kernels.causal_attention_backward(gradient, q, k, v, y, log_sums, 0.3, first_query, out=out)


def main():
    """Compute on arrays that end, and that begin, at such a page."""
    faulthandler.enable()
    for at_end in (False, True):
        for shapes in SHAPES.values():
            for shape in shapes:
                convolve(shape, at_end)
        for shape in ATTENTION:
            if 0 not in shape[:4]:
                attend(shape, at_end)
