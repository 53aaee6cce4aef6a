"""cuBLASLt as ctypes sees it, as far as products use it: descriptors with attributes, a heuristic
that chooses an algorithm for them, and a product that takes no other.

It multiplies by the descriptors alone. What their documentation forbids is a status, and what it
leaves undefined (an operand less aligned than was said, an algorithm of another form) a mistake.
"""

import ctypes
import itertools

import numpy

from .._machine import machine
from . import cublas

_COMPUTE_32F, _FAST_TF32, _SCALE_32F = 68, 77, 0
_SUCCESS, _INVALID_VALUE, _NOT_SUPPORTED = 0, 7, 15
_ADDRESS = 0x4C00_0000  # of descriptors

# {attribute: type}
_OPERATION = {
    3: ctypes.c_int32,  # transposition of A
    4: ctypes.c_int32,  # of B
    7: ctypes.c_uint32,  # epilogue
    8: ctypes.c_void_p,  # row
    10: ctypes.c_int64,  # between the rows of a batch
}
_LAYOUT = {5: ctypes.c_int32, 6: ctypes.c_int64}  # matrices, elements between them
_PREFERENCE = {  # workspace, schemes of reductions, alignments of A, B, C, D
    1: ctypes.c_uint64,
    3: ctypes.c_uint32,
    **dict.fromkeys((5, 6, 7, 8), ctypes.c_uint32),
}
_EPILOGUE_BIAS = 4

live: dict[int, "_Descriptor"] = {}  # by address: what is made and not destroyed
chosen: dict[int, tuple] = {}  # {number of an algorithm: what it was chosen for}
_numbers = itertools.count(1)


class _Descriptor:
    def __init__(self, kinds, given, attributes):
        self.kinds, self.given, self.attributes = kinds, given, attributes

    def form(self):
        """All that an algorithm is chosen for."""
        return (*self.given, *sorted((k, v) for k, v in self.attributes.items() if k != 8))


def _create(address, kinds, given, attributes):
    number = _ADDRESS + 64 * next(_numbers)
    live[number] = _Descriptor(kinds, given, attributes)
    ctypes.c_void_p.from_address(address).value = number
    return _SUCCESS


def _set(descriptor, attribute, address, num_bytes, kinds):
    found = live[descriptor]
    if found.kinds is not kinds or attribute not in kinds:
        return _INVALID_VALUE
    if num_bytes != ctypes.sizeof(kinds[attribute]):
        return _INVALID_VALUE
    found.attributes[attribute] = kinds[attribute].from_address(address).value or 0
    return _SUCCESS


def _destroy(descriptor):
    del live[descriptor]
    return _SUCCESS


def cublasLtMatmulDescCreate(address, arithmetic, scale):
    if scale != _SCALE_32F:
        return _INVALID_VALUE
    return _create(address, _OPERATION, (arithmetic,), {3: 0, 4: 0, 7: 1, 8: 0, 10: 0})


def cublasLtMatmulDescSetAttribute(descriptor, attribute, address, num_bytes):
    return _set(descriptor, attribute, address, num_bytes, _OPERATION)


def cublasLtMatmulDescDestroy(descriptor):
    return _destroy(descriptor)


def cublasLtMatrixLayoutCreate(address, kind, rows, columns, leading):
    return _create(address, _LAYOUT, (kind, rows, columns, leading), {5: 1, 6: 0})


def cublasLtMatrixLayoutSetAttribute(descriptor, attribute, address, num_bytes):
    return _set(descriptor, attribute, address, num_bytes, _LAYOUT)


def cublasLtMatrixLayoutDestroy(descriptor):
    return _destroy(descriptor)


def cublasLtMatmulPreferenceCreate(address):
    return _create(address, _PREFERENCE, (), {1: 0, 3: 7, **dict.fromkeys((5, 6, 7, 8), 256)})


def cublasLtMatmulPreferenceSetAttribute(descriptor, attribute, address, num_bytes):
    return _set(descriptor, attribute, address, num_bytes, _PREFERENCE)


def cublasLtMatmulPreferenceDestroy(descriptor):
    return _destroy(descriptor)


def _is_supported(operation, layouts) -> bool:
    """The table of types of the documentation for products with a bias."""
    kinds = {layout.given[0] for layout in layouts}
    (arithmetic,) = operation.given
    return (kinds == {0} and arithmetic in (_COMPUTE_32F, _FAST_TF32)) or (
        kinds in ({2}, {14}) and arithmetic == _COMPUTE_32F
    )


def cublasLtMatmulAlgoGetHeuristic(
    handle, operation, a, b, c, d, preference, wanted, results, number
):
    cublas._of(handle)
    operation, preference, layouts = (
        live[operation],
        live[preference],
        [live[x] for x in (a, b, c, d)],
    )
    ctypes.c_int.from_address(number).value = 0
    if wanted < 1:
        return _INVALID_VALUE
    if not _is_supported(operation, layouts):
        return _NOT_SUPPORTED
    if preference.attributes[3] & ~2:
        machine.mistake("an algorithm may add parts of sums in half floats")
    key = next(_numbers)
    alignments = [preference.attributes[x] for x in (5, 6, 7, 8)]
    row = operation.attributes[8]
    chosen[key] = _form(operation, layouts), alignments, row & -row, preference.attributes[1]
    words = (ctypes.c_uint64 * 8).from_address(results)  # cublasLtMatmulHeuristicResult_t
    words[0] = key
    ctypes.c_size_t.from_address(results + 64).value = 1 << 20
    ctypes.c_int.from_address(results + 72).value = _SUCCESS
    ctypes.c_int.from_address(number).value = 1
    return _SUCCESS


def _form(operation, layouts):
    return operation.form(), [layout.form() for layout in layouts]


def cublasLtMatmul(
    handle,
    operation,
    one,
    a,
    la,
    b,
    lb,
    zero,
    c,
    lc,
    d,
    ld,
    algorithm,
    workspace,
    num_bytes,
    stream,
):
    cublas._of(handle)
    operation, layouts = live[operation], [live[x] for x in (la, lb, lc, ld)]
    form, alignments, row_alignment, most = chosen[ctypes.c_uint64.from_address(algorithm).value]
    if form != _form(operation, layouts):
        machine.mistake("a product by an algorithm that was chosen for another")
    row = operation.attributes[8]
    for address, least in zip((a, b, c, d, row), (*alignments, row_alignment)):
        if address % least:
            machine.mistake("an operand that is less aligned than was said")
    if num_bytes < 1 << 20 or num_bytes > most or c != d:
        return _INVALID_VALUE
    if [ctypes.c_float.from_address(x).value for x in (one, zero)] != [1, 0]:
        raise ValueError("wanted alpha 1 and beta 0")
    queue = machine.begin()
    cublas._check_workspace(handle, queue, (workspace, num_bytes), stream or 0)
    product = _product_of(operation, layouts, (a, b, d, row))
    blocks = [machine.find(address) for address in (a, b, row, d)]
    machine.launched("gemm")
    machine.perform(lambda: product(blocks))
    for block in (blocks[3], machine.find(workspace)):
        block.mark_written(queue)
    return _SUCCESS


def _product_of(operation, layouts, addresses):
    """What computes; the arguments are checked now."""
    is_tf32 = operation.given == (_FAST_TF32,)
    is_turned = operation.attributes[3], operation.attributes[4]
    (la, lb, _, ld), (a, b, d, row) = layouts, addresses
    counts = {layout.attributes[5] for layout in layouts}
    if len(counts) > 1:
        raise ValueError(f"batches of {counts}")
    m, n = ld.given[1:3]
    kind, step = ld.given[0], operation.attributes[10]
    has_row = operation.attributes[7] == _EPILOGUE_BIAS

    def matrix(layout, address, index):
        kind, rows, columns, leading = layout.given
        operand = address, kind, leading, layout.attributes[6]
        return cublas._matrix(operand, index, (rows, columns))

    def multiply(blocks):
        for index in range(counts.copy().pop()):
            left, right = [
                cublas._read(x.T if turned else x, is_tf32)
                for x, turned in zip((matrix(la, a, index), matrix(lb, b, index)), is_turned)
            ]
            out = matrix(ld, d, index)
            if left.shape[1] != right.shape[0] or out.shape != (left.shape[0], right.shape[1]):
                raise ValueError(f"{left.shape} times {right.shape} into {out.shape}")
            with numpy.errstate(all="ignore"):
                product = left @ right
                if has_row:
                    product = product + cublas._read(
                        cublas._matrix((row, kind, m, step), index, (m, 1)), False
                    )
                out[...] = product

    return multiply
