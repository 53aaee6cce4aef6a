"""The door of this room to HDF5: what data files are made of, and where it lies.

Datasets are contiguous, so their values are read and written as bytes of the file: in place, by
every rank at its own place, without the library's lock.
"""

from pathlib import Path

import h5py
import numpy

from ..files.writing import open_new

_LIBRARY_VERSIONS = ("v110", "v110")  # what the tools of HDF5 1.10 open


def lay_out(path: Path, datasets: dict, attributes: dict) -> dict[str, int]:
    """Make a file with contiguous datasets, still without values, in place of another.

    datasets    {path in the file: (shape, dtype)}
    attributes  {name: text or integer}, of the file
    returns     {path in the file: byte where its values begin}
    The bytes of the file depend on the arguments alone. Errors: OSError.
    """
    open_new(path).close()  # the library would follow a link
    with h5py.File(path, "w", libver=_LIBRARY_VERSIONS) as file:
        for name, value in attributes.items():
            file.attrs.create(name, value if isinstance(value, str) else numpy.int64(value))
        return {
            name: _make_contiguous(file, name, shape, dtype)
            for name, (shape, dtype) in datasets.items()
        }


def _make_contiguous(file, name: str, shape: tuple[int, ...], dtype) -> int:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # the same bytes whenever it is made
    above, _, last = name.rpartition("/")
    group = file.require_group(above) if above else file
    kind = h5py.h5t.py_create(numpy.dtype(dtype))
    made = h5py.h5d.create(group.id, last.encode(), kind, h5py.h5s.create_simple(shape), properties)
    return made.get_offset() or 0


def describe(path: Path) -> tuple[dict, dict]:
    """Return (attributes of the file, {path: (shape, dtype, byte of its values or None)}).

    The byte is None for a dataset that is not contiguous and cannot be read in place.
    Errors: OSError if this is no HDF5 file.
    """
    found = {}

    def note(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item.shape, item.dtype, item.id.get_offset()

    with h5py.File(path, "r") as file:
        file.visititems(note)
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
    return attributes, found


def _plain(value):
    return value.item() if isinstance(value, numpy.generic) else value


# ---- datasets of other programs ------------------------------------------------------------------


def open_to_read(path: Path, cache_bytes: int = 1 << 20) -> h5py.File:
    """Open a file to read, with so much memory for the chunks of each dataset. Errors: OSError."""
    slots = (
        100 * max(cache_bytes >> 20, 1) + 1
    )  # HDF5 advises a hundred for each chunk, and a prime
    return h5py.File(path, "r", rdcc_nbytes=cache_bytes, rdcc_nslots=slots)


def datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return {path: dataset} of all datasets with at least one dimension."""
    found = {}

    def note(name, item):
        if isinstance(item, h5py.Dataset) and item.shape:
            found[name] = item

    file.visititems(note)
    return found


def places_of(dataset: h5py.Dataset) -> tuple[numpy.ndarray, int] | None:
    """Return (bytes of the file where its runs of rows begin, rows of a run).

    A run is a chunk, or the whole of a contiguous dataset; -1 for a chunk that was never written.
    None if the values do not lie in this file as plain rows: compressed, chunked over columns,
    virtual, external or compact.
    """
    if dataset.file.userblock_size or dataset.is_virtual or dataset.external:
        return None
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        return None if offset is None else (numpy.array([offset]), dataset.shape[0])
    has_filters = dataset.id.get_create_plist().get_nfilters() > 0
    if has_filters or dataset.chunks[1:] != dataset.shape[1:]:
        return None
    length = dataset.chunks[0]
    places = numpy.full(-(-dataset.shape[0] // length), -1, numpy.int64)

    def note(chunk):
        places[chunk.chunk_offset[0] // length] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return places, length
