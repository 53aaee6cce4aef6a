"""NumPy files as tables: .npy, and the arrays of an .npz that is not compressed.

A .npy file has one field, named "array". An .npz has a field for each array in it, which lies in
the file as the bytes of a .npy file.
"""

from pathlib import Path

from ..errors import InputError
from ..files.arrays import npy_array, npz_arrays
from ..files.paths import suffix_of
from ..files.reading import is_plain
from .columns import Field
from .mapped import FileMap, MappedRows
from .table import NumberTable


class ArrayTable(NumberTable):
    """Arrays of a .npy or .npz file, mapped into memory."""

    reads_bands = True

    def __init__(self, path: Path):
        self._file = FileMap(path)
        arrays = npz_arrays(path) if suffix_of(path) == ".npz" else {"array": npy_array(path)}
        fields, self._rows = {}, {}
        for name, array in arrays.items():
            shape, dtype = array.shape, array.dtype
            if not shape:
                raise InputError(
                    f"{name} of {path} is a single value; wanted an array of rows", path, name
                )
            is_number = is_plain(dtype) and 0 not in shape[1:]
            fields[name] = Field(name, shape[0], shape[1:], dtype if is_number else None)
            if is_number:
                self._rows[name] = MappedRows(self._file, shape, dtype, [array.at], shape[0])
        super().__init__(path, fields)

    def _values(self, numbers, parts):
        return [self._rows[part.field.name].read_shaped(numbers, part) for part in parts]
