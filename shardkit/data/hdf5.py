"""The door of this room to HDF5: what data files are made of, and where it lies.

Datasets of our own are contiguous, so their values are read and written as bytes of the file: in
place, by every rank at its own place, without the library's lock.

Files of others are looked at as far as they are files of numbers. Links to other files are passed
over. A dataset is read where its values lie in the file, and its shape fits what is stored
(hdf5_claims.py); a virtual one is not even opened: its sources are (hdf5_table.py).
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy

from ..annotations import Shape
from ..checkpoint.format.hdf5 import LIBRARY_VERSIONS, contiguous, h5py
from ..errors import FileError, InputError
from ..files.reading import library, opened, size_of
from ..files.writing import open_new
from .hdf5_headers import Headers, VirtualMessages

_CLASSIC = b"CDF"  # how netCDF files begin that are no HDF5
_MOST_DEPTH = 64  # of groups in groups
_MOST_OBJECTS = 1 << 20
_MOST_TEXT = 1 << 16  # bytes of an attribute
_PLAIN = [f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)]
_PLAIN += [f"{order}f{size}" for order in "<>" for size in (2, 4, 8)]


def lay_out(path: Path, datasets: dict, attributes: dict) -> dict[str, int]:
    """Make a file with contiguous datasets, still without values, in place of another.

    datasets    {path in the file: (shape, dtype)}
    attributes  {name: text or integer}, of the file
    returns     {path in the file: byte where its values begin}
    The bytes of the file depend on the arguments alone. Errors: OSError.
    """
    open_new(path).close()  # the library would follow a link
    with h5py.File(path, "w", libver=LIBRARY_VERSIONS) as file:
        for name, value in attributes.items():
            file.attrs.create(name, value if isinstance(value, str) else numpy.int64(value))
        return {
            name: _make_contiguous(file, name, shape, dtype)
            for name, (shape, dtype) in datasets.items()
        }


def _make_contiguous(file, name: str, shape: Shape, dtype) -> int:
    properties = contiguous()
    properties.set_obj_track_times(False)  # the same bytes whenever it is made
    above, _, last = name.rpartition("/")
    group = file.require_group(above) if above else file
    kind = h5py.h5t.py_create(numpy.dtype(dtype))
    made = h5py.h5d.create(group.id, last.encode(), kind, h5py.h5s.create_simple(shape), properties)
    return made.get_offset() or 0


# ---- reading -------------------------------------------------------------------------------------


def open_to_read(
    path: Path, cache_bytes: int = 1 << 20, *, error: type[FileError] = InputError
) -> "h5py.File":
    """Open a file to read, with so much memory for the chunks of each dataset.

    Errors: FileNotFoundError, PermissionError; `error` if it is no HDF5 file.
    """
    size_of(path, error=error)
    # HDF5 advises a hundred for each chunk, and a prime.
    slots = 100 * max(cache_bytes >> 20, 1) + 1
    try:
        return h5py.File(path, "r", rdcc_nbytes=cache_bytes, rdcc_nslots=slots)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError):
        with opened(path, error=error) as file:
            is_classic = file.read(3) == _CLASSIC
        what = "is a netCDF file of before version 4; nccopy -k nc4 makes one of HDF5"
        if not is_classic:
            what = "cannot be opened as an HDF5 file; it is damaged, or of another kind"
        raise error(f"{path} {what}", path) from None


def datasets(file: "h5py.File") -> "dict[str, h5py.Dataset | VirtualMessages]":
    """Return {path: dataset} of all datasets with at least one dimension, virtual ones unopened.

    In the order of their names. Links to elsewhere are not followed; what has two names has the
    first. Errors: those of the library, see library().
    """
    found: dict[str, h5py.Dataset | VirtualMessages] = {}
    for name, item in _objects(file.id, "", set(), headers_of(file)):
        dataset = item if isinstance(item, VirtualMessages) else h5py.Dataset(item)
        if isinstance(dataset, VirtualMessages) or dataset.shape:
            found[name] = dataset
    return found


def headers_of(file: "h5py.File") -> Headers:
    """Return the headers of an open file. Errors: ValueError on sizes that no file has today."""
    properties = file.id.get_create_plist()
    if properties.get_sizes() != (8, 8):
        raise ValueError("it has offsets or lengths that are not of 8 bytes")
    return Headers(file.id.get_vfd_handle(), properties.get_userblock())


def _objects(
    group, above: str, seen: set[int], headers: Headers
) -> "Iterator[tuple[str, h5py.h5d.DatasetID | VirtualMessages]]":
    """Yield (path, dataset or what a virtual one says) of all in a group and in those inside."""
    if above.count("/") > _MOST_DEPTH:
        raise ValueError(f"more than {_MOST_DEPTH} groups lie in one another")
    for name in sorted(group):
        link = group.links.get_info(name)
        address = link.u  # of a hard link; the library is not asked about the object before us
        if link.type != h5py.h5l.TYPE_HARD or address in seen:
            continue
        seen.add(address)
        if len(seen) > _MOST_OBJECTS:
            raise ValueError(f"it holds more than {_MOST_OBJECTS:,} objects")
        path = above + name.decode("utf-8")
        if headers.is_virtual(address):
            yield path, headers.virtual(address)
            continue
        item = h5py.h5o.open(group, name)
        if isinstance(item, h5py.h5d.DatasetID):
            yield path, item
        elif isinstance(item, h5py.h5g.GroupID):
            yield from _objects(item, f"{path}/", seen, headers)


# ---- files of our own ----------------------------------------------------------------------------


def describe(
    path: Path, names: tuple[str, ...], *, error: type[FileError] = InputError
) -> tuple[dict, dict]:
    """Return ({name: text or integer of the file}, {path: (shape, dtype, byte of its values)}).

    The byte is None for a dataset that is not contiguous and cannot be read in place, or whose
    numbers are not those of a dtype of NumPy.
    names    of the attributes; those that are no single text or integer are left out
    Errors: OSError; `error` if this is no HDF5 file, or has more than datasets and a few texts.
    """
    with open_to_read(path, error=error) as file, library(path, error=error):
        found = {
            name: _place(each)
            for name, each in datasets(file).items()
            if isinstance(each, h5py.Dataset)
        }
        headers_of(file).check_attributes(h5py.h5o.get_info(file.id).addr)
        attributes = {name: _attribute(file, name) for name in names}
    return {name: value for name, value in attributes.items() if value is not None}, found


def _place(dataset: "h5py.Dataset") -> tuple:
    is_same = dataset.dtype.names is None and _is_of(dataset, dataset.dtype)
    is_here = is_same and not dataset.external
    return dataset.shape, dataset.dtype, dataset.id.get_offset() if is_here else None


def _is_of(dataset: "h5py.Dataset", dtype: numpy.dtype) -> bool:
    """Return True if the bytes of a dataset are those of an array of this dtype."""
    return bool(dataset.id.get_type().equal(h5py.h5t.py_create(dtype)))


def _attribute(file: "h5py.File", name: str) -> str | int | None:
    """Return an attribute of a file that is one text or integer, None for any other, or none."""
    if not h5py.h5a.exists(file.id, name.encode()):
        return None
    stored = h5py.h5a.open(file.id, name.encode())
    kind = stored.get_type()
    is_text = isinstance(kind, h5py.h5t.TypeStringID)
    if stored.shape != () or not (is_text or isinstance(kind, h5py.h5t.TypeIntegerID)):
        return None
    if kind.get_size() > _MOST_TEXT:
        return None
    value = file.attrs[name]
    return value if isinstance(value, str) else int(value) if not is_text else None


# ---- datasets of other programs ------------------------------------------------------------------


def dtype_of(message: bytes) -> numpy.dtype | None:
    """Return the dtype that the datatype of a header means; None if it is no plain number."""
    for name in _PLAIN:
        encoded = h5py.h5t.py_create(numpy.dtype(name)).encode()[2:]
        is_same = message[1 : len(encoded)] == encoded[1:]
        if is_same and message[0] & 15 == encoded[0] & 15:  # the class, in any version
            return numpy.dtype(name)
    return None


def places_of(dataset: "h5py.Dataset") -> tuple[numpy.ndarray, int] | None:
    """Return (bytes of the file where its runs of rows begin, rows of a run).

    A run is a chunk, or the whole of a contiguous dataset; -1 for a chunk that was never written.
    None if the values do not lie in this file as plain rows: compressed, chunked over columns,
    external or compact.
    """
    if dataset.file.userblock_size or dataset.external:
        return None
    if not _is_of(dataset, dataset.dtype):
        return None
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        return None if offset is None else (numpy.array([offset]), dataset.shape[0])
    has_filters = dataset.id.get_create_plist().get_nfilters() > 0
    if has_filters or dataset.chunks[1:] != dataset.shape[1:]:
        return None
    length = dataset.chunks[0]
    run_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    places = numpy.full(-(-dataset.shape[0] // length), -1, numpy.int64)

    strange: list[tuple] = []

    def note(chunk):
        run, within = divmod(chunk.chunk_offset[0], length)
        if within or any(chunk.chunk_offset[1:]) or run >= len(places) or chunk.size != run_bytes:
            strange.append(chunk.chunk_offset)
        elif chunk.byte_offset >> 62:
            strange.append(chunk.chunk_offset)
        else:
            places[run] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    if strange:
        raise ValueError(f"it has a chunk at {strange[0]}, where none belongs")
    return places, length
