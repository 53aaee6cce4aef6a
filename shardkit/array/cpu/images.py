"""Machine code that a process uses by copying it into memory, without a compiler.

image   code and constants | data and addresses      whole pages each
        read and run       | read and write

call    function(*arguments) of Python, which the code itself is
"""

import ctypes
import json
import mmap
import struct
import zlib
from dataclasses import dataclass

import numpy

FASTCALL = 0x80
# Where the code finds what it reads of objects of CPython and NumPy 2 (compiling.py); all versions
# have it there, but for CPython without its lock, and is_layout_known looks. Change it, and this.
ABI = "2"
TYPE_AT, TUPLE_SIZE_AT, TUPLE_ITEMS_AT = 8, 16, 24
ARRAY_DATA_AT, ARRAY_NDIM_AT, ARRAY_SHAPE_AT, ARRAY_STRIDES_AT = 16, 24, 32, 40
ARRAY_DTYPE_AT, ARRAY_FLAGS_AT = 56, 64
DTYPE_BYTEORDER_AT, DTYPE_NUMBER_AT, DTYPE_ITEM_BYTES_AT = 26, 28, 40
CONTIGUOUS, ALIGNED, WRITABLE = 1, 0x100, 0x400


@dataclass(frozen=True)
class Image:
    """Code, and what is to be filled in.

    content      as it lies in memory
    code_bytes   how much of it is code and constants
    entry        where the function begins
    externals    (place, symbol): an address is to be written there
    relatives    places to which the address of the image is to be added
    """

    content: bytes
    code_bytes: int
    entry: int
    externals: tuple[tuple[int, str], ...]
    relatives: tuple[int, ...]

    def pack(self) -> bytes:
        """Return it as bytes for a file."""
        places = [self.code_bytes, self.entry, self.externals, self.relatives]
        return zlib.compress(json.dumps(places).encode() + b"\n" + self.content, 6)

    @classmethod
    def unpack(cls, packed: bytes) -> "Image":
        """Return the image of these bytes."""
        head, _, content = zlib.decompress(packed).partition(b"\n")
        code_bytes, entry, externals, relatives = json.loads(head)
        externals = tuple((place, name) for place, name in externals)
        return cls(content, code_bytes, entry, externals, tuple(relatives))


class _Method(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    ]


_PROCESS = ctypes.CDLL(None)
_MATHEMATICS: list[ctypes.CDLL] = []


class Code:
    """An image in memory, where it stays for as long as the process lives.

    Errors: OSError if memory cannot be made to run; ValueError on a symbol that is not there.
    """

    def __init__(self, image: Image, name: str):
        size = len(image.content)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(image.content)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for place, symbol in image.externals:
            struct.pack_into("<Q", memory, place, _address(symbol))
        for place in image.relatives:
            (offset,) = struct.unpack_from("<Q", memory, place)
            struct.pack_into("<Q", memory, place, start + offset)
        is_run = mmap.PROT_READ | mmap.PROT_EXEC
        if _PROCESS.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(image.code_bytes), is_run):
            raise OSError("this system lets no process run code that it has written to memory")
        self._method = _Method(name.encode(), start + image.entry, FASTCALL, None)
        for kept in (memory, self._method):  # threads still run it when the interpreter ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def function(self, otherwise=None):
        """Return the function; for arguments of other types than it was made for it calls another.

        otherwise   that one; None: it returns NotImplemented
        """
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        given = None if otherwise is None else ctypes.py_object(otherwise)
        return make(ctypes.byref(self._method), given, None)


def _address(symbol: str) -> int:
    """Return the address of a function or variable of this process; type.NAME: a type of NumPy."""
    kind, _, name = symbol.rpartition(".")
    if kind == "type":
        return id(getattr(numpy, name))
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(_PROCESS, symbol))
    except ValueError:
        if not _MATHEMATICS:
            _MATHEMATICS.append(ctypes.CDLL("libm.so.6"))
        return ctypes.addressof(ctypes.c_char.in_dll(_MATHEMATICS[0], symbol))


def is_layout_known() -> bool:
    """Return whether objects of this Python and NumPy are laid out as the code reads them."""
    x, pair = numpy.zeros((2, 3), numpy.float32), (object(), object())
    whole = ctypes.string_at(id(pair), 40)
    try:
        words = [
            struct.unpack_from(form, whole, at)
            for form, at in (("Q", TYPE_AT), ("Q", TUPLE_SIZE_AT), ("2Q", TUPLE_ITEMS_AT))
        ]
        return words == [(id(tuple),), (2,), tuple(map(id, pair))] and _fields(x) == (
            *(id(numpy.ndarray), x.ctypes.data, 2, x.shape, x.strides, id(x.dtype)),
            *(CONTIGUOUS | ALIGNED | WRITABLE, ord("="), x.dtype.num, x.itemsize),
        )
    except (ValueError, struct.error):
        return False


def _fields(x: numpy.ndarray) -> tuple:
    """Return what the code reads of an array [., .]."""
    whole, dtype = ctypes.string_at(id(x), 80), ctypes.string_at(id(x.dtype), 48)

    def word(at, form="Q"):
        return struct.unpack_from(form, whole, at)[0]

    flags = word(ARRAY_FLAGS_AT, "i") & (CONTIGUOUS | ALIGNED | WRITABLE)
    is_as_expected = word(ARRAY_DTYPE_AT) == id(x.dtype) and word(ARRAY_DATA_AT) == x.ctypes.data
    lengths = [
        struct.unpack("qq", ctypes.string_at(word(at), 16)) if is_as_expected and word(at) else ()
        for at in (ARRAY_SHAPE_AT, ARRAY_STRIDES_AT)
    ]
    return (
        *(word(TYPE_AT), word(ARRAY_DATA_AT), word(ARRAY_NDIM_AT, "i"), *lengths),
        *(word(ARRAY_DTYPE_AT), flags, dtype[DTYPE_BYTEORDER_AT]),
        struct.unpack_from("i", dtype, DTYPE_NUMBER_AT)[0],
        struct.unpack_from("q", dtype, DTYPE_ITEM_BYTES_AT)[0],
    )
