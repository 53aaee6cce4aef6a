"""The door of this room to HDF5: what data files are made of, and where it lies.

Datasets are contiguous, so their values are read and written as bytes of the file: in place, by
every rank at its own place, without the library's lock.
"""

from pathlib import Path

import h5py
import numpy

_LIBRARY_VERSIONS = ("v110", "v110")  # what the tools of HDF5 1.10 open


def lay_out(path: Path, datasets: dict, attributes: dict) -> dict[str, int]:
    """Make a file with contiguous datasets, still without values, in place of another.

    datasets    {path in the file: (shape, dtype)}
    attributes  {name: text or integer}, of the file
    returns     {path in the file: byte where its values begin}
    The bytes of the file depend on the arguments alone. Errors: OSError.
    """
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
