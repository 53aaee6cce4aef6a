"""Arrays in the files of NumPy: where they lie, checked against the file, and never unpickled.

.npy   header, then the numbers
.npz   a zip archive of .npy files; those that are not compressed are read in place
"""

import math
import os
import struct
import tokenize
import zipfile
from dataclasses import dataclass

import numpy
from numpy.lib import format as npy

from ..annotations import Shape
from ..errors import FileError, InputError
from .reading import LARGEST, bytes_of, checked_bytes, is_plain, opened, understood

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a member of a zip archive, before its name
_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1  # in the flags of a member
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: its numbers are the bytes from `at` on, in C order.

    dtype  as in the file; one that is not plain is listed, and cannot be read
    """

    shape: Shape
    dtype: numpy.dtype
    at: int


def npy_array(path, *, error: type[FileError] = InputError) -> StoredArray:
    """Return the array of a .npy file. Errors: `error` if it is none, or is cut short; OSError."""
    with opened(path, error=error) as file:
        size = bytes_of(file)
        found = _stored(file, path, "", size, error)
    num_bytes = math.prod(found.shape) * found.dtype.itemsize
    if is_plain(found.dtype) and found.at + num_bytes != size:
        raise error(
            f"{path} has {size - found.at - num_bytes:,} bytes behind its array of shape "
            f"{found.shape}; wanted one array and nothing else",
            path,
        )
    return found


def npz_arrays(path, *, error: type[FileError] = InputError) -> dict[str, StoredArray]:
    """Return the arrays of an .npz by name.

    Errors: `error` if it is none, is damaged or compressed; OSError.
    """
    with opened(path, error=error) as file:
        size = bytes_of(file)
        members = _members(file, path, error)
        arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise error(f"{path} holds {name!r:.100} twice", path, name)
            arrays[name] = _stored_member(file, path, name, member, size, error)
        return arrays


def _members(file, path, error) -> list[zipfile.ZipInfo]:
    try:
        with understood(path, error=error), zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error, OSError):
        raise error(f"{path} is no .npz file: it is not a whole zip archive", path) from None


def _stored_member(file, path, name: str, member: zipfile.ZipInfo, size: int, error):
    """Return the array of a member that is stored as it is; its bytes must lie in the file."""
    if member.flag_bits & _ENCRYPTED:
        raise error(f"{name} of {path} is encrypted", path, name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise error(
            f"{name} of {path} is compressed and cannot be read in place; write the file with "
            "numpy.savez instead of savez_compressed, or as HDF5",
            path,
            name,
        )
    at = member.header_offset
    if not 0 <= at <= size - _LOCAL_HEADER.size:
        raise error(f"{name} of {path} begins at byte {at:,}, behind the end", path, name)
    file.seek(at)
    magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
    stop = start + member.file_size
    if magic != _MAGIC or member.file_size != member.compress_size or stop > size:
        raise error(f"{name} of {path} is damaged: it is not where the archive says", path, name)
    file.seek(start, os.SEEK_SET)
    return _stored(file, path, name, stop, error)


def _stored(file, path, name: str, stop: int, error) -> StoredArray:
    """Return the array whose header begins here, and which ends at byte `stop` at the latest."""
    what = f"{name} of {path}" if name else f"{path}"
    try:
        with understood(path, name, error=error):
            shape, is_fortran, dtype = _HEADERS[npy.read_magic(file)](file)
            if not all(type(number) is int for number in shape):
                raise ValueError(f"its shape is {shape!r:.100}")
    except (FileError, SyntaxError, tokenize.TokenError, struct.error, EOFError):
        raise error(f"{what} is no array in NumPy's format", path, name) from None
    if is_fortran and len(shape) > 1:
        raise error(
            f"{what} is stored column by column; write numpy.ascontiguousarray of it, so that its "
            "rows lie together",
            path,
            name,
        )
    found = StoredArray(shape, dtype, file.tell())
    if is_plain(dtype):
        checked_bytes(path, dtype, found.at, shape, stop, field=name, error=error)
    elif not all(0 <= number <= LARGEST for number in shape):
        raise error(f"{what} has shape {shape!s:.100}", path, name)
    return found
