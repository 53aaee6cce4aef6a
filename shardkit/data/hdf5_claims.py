"""What a dataset of an HDF5 file claims, against what is stored: checked before memory is taken.

    contiguous, compact   as many bytes as the shape needs, within the file
    chunked               chunks of a bounded size; of a dataset 1% at least is written, or 0.05% if
                          it is compressed, and all of it where the file does not say what stands
                          for the rest (fillvalue=); filters that come with HDF5 or h5py
    external              refused: the values are in any file of the reader's, as the file says

A filter of another kind is code that the library looks for in folders of plugins; it does so where
the user has set HDF5_PLUGIN_PATH, and never because a file asks for it.
"""

from math import prod
from pathlib import Path

import numpy

from ..checkpoint.format.hdf5 import h5py
from ..environment import has_hdf5_plugins
from ..errors import InputError
from ..files.reading import checked_bytes, is_plain, library, size_of

_FILTERS = "DEFLATE", "SHUFFLE", "FLETCHER32", "SZIP", "NBIT", "SCALEOFFSET", "LZF"
_MOST_CHUNK = 1 << 28  # bytes, as the library holds a chunk whole
_SMALL = 1 << 20  # bytes that any dataset may claim
_SPARSE = 100  # times as large as what was written
_COMPRESSED = 2000  # times: deflate reaches 1032


def check_claims(dataset: "h5py.Dataset", path: Path, field: str) -> None:
    """Refuse a dataset whose values are not numbers that lie in this file, or beside it.

    Errors: InputError with path and field.
    """
    with library(path, field):
        _Claims(dataset, path, field).check()


class _Claims:
    """A dataset, and what is known of it."""

    def __init__(self, dataset: "h5py.Dataset", path: Path, field: str):
        self._dataset, self._path, self._field = dataset, path, field
        self._size = size_of(path)
        self._row_bytes = prod(dataset.shape[1:]) * dataset.dtype.itemsize
        self._num_bytes = dataset.shape[0] * self._row_bytes

    def _refuse(self, what: str):
        raise InputError(f"{self._field} of {self._path} {what}", self._path, self._field)

    def check(self) -> None:
        """Check it all."""
        dataset, properties = self._dataset, self._dataset.id.get_create_plist()
        self._check_dtype(dataset.dtype)
        if properties.get_external_count():
            self._refuse("has its values in other files; h5repack copies them into one")
        if properties.get_layout() == h5py.h5d.CHUNKED:
            self._check_chunks(properties)
        else:
            self._check_whole()

    def _check_dtype(self, dtype: numpy.dtype) -> None:
        members = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
        is_known = any(is_plain(each) or each.kind == "S" for each in members)
        if dtype.hasobject or not is_known:
            self._refuse(f"is of dtype {dtype!s:.100}; wanted numbers or texts")

    def _check_whole(self) -> None:
        if self._num_bytes > self._dataset.id.get_storage_size():
            self._refuse(
                f"claims {self._num_bytes:,} bytes and has "
                f"{self._dataset.id.get_storage_size():,}: its values were never written"
            )
        offset = self._dataset.id.get_offset() or 0
        plain = numpy.dtype("u1")
        shape = (self._num_bytes,)
        checked_bytes(self._path, plain, offset, shape, self._size, field=self._field)

    def _check_chunks(self, properties) -> None:
        filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
        known = [getattr(h5py.h5z, f"FILTER_{name}") for name in _FILTERS]
        unknown = [number for number in filters if number not in known]
        if unknown and not has_hdf5_plugins():
            self._refuse(
                f"is compressed by filter {unknown[0]}, which does not come with HDF5; h5repack -f "
                "GZIP=1 writes it so that it can be read, or set HDF5_PLUGIN_PATH"
            )
        chunk_bytes = prod(self._dataset.chunks) * self._dataset.dtype.itemsize
        if chunk_bytes > _MOST_CHUNK:
            self._refuse(
                f"has chunks of {chunk_bytes:,} bytes; wanted {_MOST_CHUNK:,} at most, which "
                "h5repack -l CHUNK= makes"
            )
        stored = self._dataset.id.get_storage_size()
        if stored > self._size:
            self._refuse(f"says that {stored:,} bytes are stored, of a file of {self._size:,}")
        self._check_ratio(stored, _COMPRESSED if filters else _SPARSE)
        self._check_written(properties)

    def _check_written(self, properties) -> None:
        """Refuse chunks that were never written, unless somebody chose what stands for them."""
        if properties.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            return
        sizes = zip(self._dataset.shape, self._dataset.chunks)
        wanted = prod(-(-size // chunk) for size, chunk in sizes)
        written = self._dataset.id.get_num_chunks()
        if written < wanted:
            self._refuse(
                f"lacks {wanted - written:,} of its {wanted:,} chunks, which were never written; "
                "write them, or make the dataset with a fillvalue of your choice"
            )

    def _check_ratio(self, stored: int, most: int) -> None:
        if self._num_bytes > max(most * stored, _SMALL):
            self._refuse(
                f"claims {self._num_bytes:,} bytes, but {stored:,} are stored; wanted a file whose "
                "values were written"
            )
        if self._row_bytes > max(stored, _MOST_CHUNK):
            self._refuse(f"claims {self._row_bytes:,} bytes for a row, and {stored:,} are stored")
