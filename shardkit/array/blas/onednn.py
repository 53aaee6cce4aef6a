"""oneDNN, for products on any CPU of x86-64: float32, and bfloat16 where the CPU multiplies it.

    two matrices      dnnl_sgemm, dnnl_gemm_bf16bf16f32, or the matmul primitive: see _is_for_gemm
    stacks of them    the matmul primitive, one call for all; it reads heads that lie beside each
                      other as they are, and rounds to bfloat16 itself

A primitive is code that oneDNN makes for one form of operands (primitives.py). Bits depend on that
form and on the number of threads, not on addresses; the probe (probe.py) looks whether it is so
here, else oneDNN is refused.
"""

import ctypes
import functools

from numpy import may_share_memory

from ...errors import ConfigurationError
from ..dtypes import FLOAT32
from .find import blas_threads, path_of
from .layout import TRANSPOSED, Layout, address_of, form_of, layout_of
from .library import Library
from .primitives import Interface
from .probe import has_same_bits
from .processor import is_of_amd, multiplies_bfloat16

PACKAGE = "onednn-cpu-gomp"
_MAJOR = 3  # of the C interface
_FITS_CACHE = 1 << 18  # numbers of float32 beside others in a cache of a core


@functools.cache
def load_onednn() -> Library:
    """Return oneDNN, with as many threads as NumPy's BLAS has at the first call.

    Errors: ConfigurationError if it is not installed, or does not keep bits the same on this CPU.
    """
    path = path_of("libdnnl.so", PACKAGE, "onednn-cpu-iomp")
    if path is None:
        raise ConfigurationError(
            'blas = "onednn", but no libdnnl was found on this node; wanted the package '
            f'{PACKAGE} beside shardkit: pip install "shardkit[onednn]", or blas = "numpy"'
        )
    interface = Interface(ctypes.CDLL(str(path)), blas_threads())
    if interface.version[0] != _MAJOR or not interface.sets_threads:
        raise ConfigurationError(
            f'blas = "onednn", but {path} is version {interface.version_text}'
            f"{'' if interface.sets_threads else ', built without OpenMP'}; wanted version "
            f'{_MAJOR} with OpenMP, as in the package {PACKAGE}, or blas = "numpy"'
        )
    library = OneDnnLibrary(interface, halves=multiplies_bfloat16())
    if not has_same_bits(library, repeats=40):
        raise ConfigurationError(
            f'blas = "onednn", but {library.name} gave the same product other bits at another '
            'address on this CPU, so that no run could be repeated; wanted blas = "numpy"'
        )
    return library


class OneDnnLibrary:
    """A Library (library.py) by oneDNN."""

    def __init__(self, interface: Interface, halves: bool):
        self.name = f"oneDNN {interface.version_text}"
        self._interface = interface
        self.multiplies_halves = halves

    def multiply(self, a, b, out) -> bool:
        """Compute out = a b, unless oneDNN cannot; see library.py."""
        return self._compute(a, b, out, is_added=False)

    def add(self, a, b, out) -> bool:
        """Compute out += a b for two matrices, unless oneDNN cannot; see library.py."""
        return out.ndim == 2 and out.dtype == FLOAT32 and self._compute(a, b, out, is_added=True)

    def _compute(self, a, b, out, is_added: bool) -> bool:
        form = (
            *(a.dtype.num, a.shape, a.strides),
            *(b.dtype.num, b.shape, b.strides),
            *(out.dtype.num, out.shape, out.strides),
            is_added,
        )
        calls = self._interface.calls_of_this_thread()
        try:
            call = calls[form]
        except KeyError:
            call = calls[form] = self._prepared(a, b, out, is_added)
        if call is None or may_share_memory(a, out) or may_share_memory(b, out):
            return False
        call(address_of(a), address_of(b), address_of(out))
        return True

    def _prepared(self, a, b, out, is_added):
        """Return a function (addresses of a, b, out) that multiplies such arrays, or None."""
        layout = layout_of(form_of(a), form_of(b), form_of(out))
        if layout is None or a.dtype != b.dtype or not self._takes(a.dtype, out.dtype):
            return None
        if not layout.leading and out.dtype == FLOAT32 and _is_for_gemm(layout, a.dtype):
            return self._interface.gemm(layout, a.dtype, is_added)
        return self._interface.matmul(a, b, out, is_added)

    def _takes(self, dtype, result) -> bool:
        if dtype == FLOAT32:
            return result == FLOAT32
        return self.multiplies_halves and dtype.name == "bfloat16" and result in (FLOAT32, dtype)


def _is_for_gemm(layout: Layout, dtype) -> bool:
    """Return True if gemm multiplies these two matrices faster than the primitive, on one thread.

    Measured on a Xeon with AMX. Chosen on the products of a GPT of width 512 with 2048
    tokens, judged on those of width 256 and 768: most choices are within 10% of the better one, the
    worst, 256 x 512 x 256 in bfloat16, lost 30%. A finer rule made no step faster. float32
    is 5 to 15% faster by gemm (three times, where rows of b are 12 KiB apart), but for gradients of
    weights with few outputs. bfloat16 is up to 40% faster by gemm where sums are long, and up to
    twice as fast by the primitive where results are wide.

    On an EPYC with AVX-512, too, in float32 (with AVX2 both are one): gradients of weights are 2 to
    8% faster by gemm, the others up to 10% by the primitive while b fits into 1 MiB, and else 2 to
    7% slower. Chosen on products of width 192 and 256, judged on those of 64 to 128, 512 and 768.
    """
    _, n, k = layout.sizes
    is_turned = layout.orders[0] == TRANSPOSED
    if dtype == FLOAT32:
        return is_turned or n * k >= _FITS_CACHE if is_of_amd() else not is_turned or n > 512
    return k >= 2 * n
