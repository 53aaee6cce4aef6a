"""NumPy files as tables: .npy, and the arrays of an .npz that is not compressed.

A .npy file has one field, named "array". An .npz has a field for each array in it, which lies in
the file as the bytes of a .npy file.
"""

import os
import struct
import zipfile
from pathlib import Path

from numpy.lib import format as npy

from ..errors import ConfigurationError
from .columns import Field
from .mapped import FileMap, MappedRows
from .table import Table

_LOCAL_HEADER_BYTES = 30  # of a member of a zip archive, before its name
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class ArrayTable(Table):
    """Arrays of a .npy or .npz file, mapped into memory."""

    def __init__(self, path: Path):
        self._file = FileMap(path)
        arrays = members_of(path) if path.suffix == ".npz" else _single(path)
        fields, self._rows = {}, {}
        for name, (shape, dtype, offset) in arrays.items():
            is_number = dtype.kind in "biuf"
            fields[name] = Field(name, shape[0], shape[1:], dtype if is_number else None)
            if is_number:
                self._rows[name] = MappedRows(self._file, shape, dtype, [offset], shape[0])
        super().__init__(path, fields)

    def _values(self, numbers, parts):
        return [self._rows[part.field.name].read_shaped(numbers, part) for part in parts]


def _single(path: Path) -> dict:
    with open(path, "rb") as file:
        return {"array": _header(file, path, "")}


def members_of(path: Path) -> dict[str, tuple]:
    """Return {name: (shape, dtype, byte of the first value)} of the arrays in an .npz.

    Errors: ConfigurationError if it is none, or compressed; OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile:
        raise ConfigurationError(f"{path} is no .npz file: it is not a zip archive") from None
    arrays = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ConfigurationError(
                f"{name} of {path} is compressed and cannot be read in place; write the file with "
                "numpy.savez instead of savez_compressed, or as HDF5"
            )
        with open(path, "rb") as file:
            file.seek(member.header_offset + _LOCAL_HEADER_BYTES - 4)
            file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
            arrays[name] = _header(file, path, name)
    return arrays


def _header(file, path: Path, name: str):
    """Return (shape, dtype, byte of the first value) of the array that begins here."""
    what = f"{name} of {path}" if name else str(path)
    try:
        version = npy.read_magic(file)
        shape, is_fortran, dtype = _READERS[version](file)
    except (ValueError, KeyError):
        raise ConfigurationError(f"{what} is no array in NumPy's format") from None
    if is_fortran and len(shape) > 1:
        raise ConfigurationError(
            f"{what} is stored column by column; write numpy.ascontiguousarray of it, so that its "
            "rows lie together"
        )
    if not shape:
        raise ConfigurationError(f"{what} is a single value; wanted an array of rows")
    return shape, dtype, file.tell()
