"""Lay out HDF5 files of boxes, the index and images; the only file that imports h5py.

    rank-00002.h5                             index.h5
      model/                                    model/
        blocks.0.mlp.up.weight/                   blocks.0.mlp.up.weight   virtual, the whole tensor
          0    dataset, offset = [40, 0]        optimizer/
          1    dataset, offset = [96, 0]          first_moment/
        attribute of the group: global_shape        blocks.0.mlp.up.weight

A box is a plain contiguous dataset: h5py, h5dump and any other HDF5 program read it. HDF5 lays the
file out and says at which byte each box begins; the values are then written, and later read, as
bytes (files.py, reads.py). So the library's lock is never held while a disk works, and a file that
somebody tampered with is never parsed: the manifest knows where everything is.

The index has no data of its own but scalars; its virtual datasets read through to the rank files
beside it. A virtual dataset reads fill values where a file is missing, so nobody may trust the
index before the manifest has been checked (load.py).
"""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from ...annotations import Shape
from ...public import LateModule
from .files import write_parts
from .stored import StoredBox

if TYPE_CHECKING:
    import h5py
else:
    h5py = LateModule("h5py")

INDEX_NAME = "index.h5"
PAGE_BYTES = 4096
# What "latest" writes, the tools of HDF5 1.10 and 1.12 cannot open.
LIBRARY_VERSIONS = ("v110", "v110")
_HOW = {
    "libver": LIBRARY_VERSIONS,
    "meta_block_size": 4 * PAGE_BYTES,
    "alignment_threshold": 16 * PAGE_BYTES,  # large boxes begin on a page
    "alignment_interval": PAGE_BYTES,
}


def rank_file_name(rank: int) -> str:
    """Return the name of the file that this rank writes."""
    return f"rank-{rank:05d}.h5"


# ---- files of boxes ------------------------------------------------------------------------------


def lay_out(path: Path, boxes, room=None) -> tuple[list[StoredBox], int]:
    """Make a file with a dataset for each box, still without values; return where they belong.

    boxes     (tensor path, Piece, dtype) each
    room      function (stored boxes) -> bytes of a dataset `table` behind them; None: there is none
    returns   the stored boxes; the byte where the table begins, 0 without one
    Errors: OSError.
    """
    memory = _Pages()
    with h5py.File(memory, "w", **_HOW) as file:
        stored = _make_datasets(file, path.name, boxes)
        at = 0 if room is None else _make_table(file, room(stored))
    memory.save(path)
    return stored, at


def _make_table(file, num_bytes: int) -> int:
    space = h5py.h5s.create_simple((num_bytes,))
    made = h5py.h5d.create(file.id, b"table", h5py.h5t.NATIVE_UINT8, space, contiguous())
    return made.get_offset()


class _Pages(io.RawIOBase):
    """A sparse file in memory, which HDF5 writes instead of the disk.

    So a full disk is an OSError of our own write. HDF5 itself, when it cannot flush, neither closes
    a file nor releases it.
    """

    def __init__(self):
        super().__init__()
        self._pages: dict[int, bytearray] = {}
        self._at = 0
        self._size = 0

    def seek(self, offset, whence=io.SEEK_SET):
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def truncate(self, size=None):
        self._size = self._at if size is None else size
        return self._size

    def write(self, data):
        view = memoryview(data).cast("B")
        for start, place, page in self._split(len(view)):
            part = view[start : start + PAGE_BYTES - place]
            self._pages.setdefault(page, bytearray(PAGE_BYTES))[place : place + len(part)] = part
        self._at += len(view)
        self._size = max(self._size, self._at)
        return len(view)

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        for start, place, page in self._split(len(view)):
            part = view[start : start + PAGE_BYTES - place]
            part[:] = self._pages.get(page, bytes(PAGE_BYTES))[place : place + len(part)]
        self._at += len(view)
        return len(view)

    def _split(self, num_bytes):
        """Return (byte of the transfer, byte of the page, page) for each page of a transfer."""
        first = self._at % PAGE_BYTES
        return [
            (start, 0 if start else first, (self._at + start) // PAGE_BYTES)
            for start in (0, *range(PAGE_BYTES - first, num_bytes, PAGE_BYTES))
            if start < num_bytes
        ]

    def save(self, path: Path) -> None:
        """Write the pages to a real file. Errors: OSError."""
        pages = {page * PAGE_BYTES: content for page, content in sorted(self._pages.items())}
        write_parts(path, self._size, pages)


def _make_datasets(file, name: str, boxes) -> list[StoredBox]:
    maker = _Maker(file)
    properties = contiguous()
    num_boxes: dict[str, int] = {}
    stored = []
    for tensor, piece, dtype in boxes:
        group = maker.group(tensor)
        number = num_boxes.get(tensor, 0)
        num_boxes[tensor] = number + 1
        if number == 0:
            maker.attributes(group, {"global_shape": piece.global_shape})
        kind, space = maker.kind(dtype), maker.space(piece.box.shape)
        dataset = h5py.h5d.create(group, b"%d" % number, kind, space, properties)
        maker.attributes(dataset, {"offset": piece.box.offset})
        path = f"{tensor}/{number}"
        form = piece.box, piece.global_shape, str(dtype)
        stored.append(StoredBox(tensor, name, path, *form, dataset.get_offset()))
    return stored


def contiguous():
    """Return the properties of a dataset whose place is known before it has values."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


class _Maker:
    """Makes groups and attributes with h5py's low-level interface, in a quarter of the time.

    Types, spaces and values, which most tensors share, are made once.
    """

    def __init__(self, file):
        self.root = file.id
        self._text_dtype = h5py.string_dtype()
        self._text = h5py.h5t.py_create(self._text_dtype, logical=True)
        self._made = {}

    def _once(self, what: str, key, make):
        if (what, key) not in self._made:
            self._made[what, key] = make(key)
        return self._made[what, key]

    def kind(self, dtype):
        """Return the HDF5 type of a dtype."""
        return self._once("kind", dtype, lambda dtype: h5py.h5t.py_create(numpy.dtype(dtype)))

    def space(self, shape: Shape):
        """Return the HDF5 space of a shape."""
        return self._once("space", shape, _make_space)

    def group(self, path: str):
        """Return the group of this path, made if it is missing; the root for ""."""
        return self._once("group", path, self._make_group) if path else self.root

    def _make_group(self, path: str):
        above, _, name = path.rpartition("/")
        return h5py.h5g.create(self.group(above), name.encode())

    def attributes(self, item, attributes: dict) -> None:
        """Give the item these attributes: text, integers, tuples of integers (int64)."""
        for name, value in attributes.items():
            kind, space, array = self._once("value", value, self._make_value)
            h5py.h5a.create(item, name.encode(), kind, space).write(array)

    def _make_value(self, value):
        if isinstance(value, str):
            return self._text, self.space(()), numpy.array(value, self._text_dtype)
        array = numpy.array(value, numpy.int64)
        return h5py.h5t.NATIVE_INT64, self.space(array.shape), array


def _make_space(shape: Shape):
    return h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)


# ---- the index -----------------------------------------------------------------------------------


def write_index(
    path: Path, boxes: list[StoredBox], scalars: dict, head: dict, attributes: dict
) -> None:
    """Write the index: every tensor whole, as a virtual dataset over the boxes.

    scalars     {tensor of shape (): its value}, as HDF5 has no virtual scalars
    head        attributes of the file: format, version
    attributes  of the file, and repeated on each tensor beside its shape and dtype: step, mesh
    """
    by_tensor: dict[str, list[StoredBox]] = {}
    for box in boxes:
        by_tensor.setdefault(box.tensor, []).append(box)
    memory = _Pages()
    with h5py.File(memory, "w", libver=LIBRARY_VERSIONS) as file:
        maker = _Maker(file)
        maker.attributes(maker.root, head | attributes)
        for tensor, parts in sorted(by_tensor.items()):
            shape, dtype = parts[0].global_shape, parts[0].dtype
            whole = _make_whole(maker, tensor, parts)
            if tensor in scalars:
                value = numpy.array(scalars[tensor], dtype)
                whole.write(h5py.h5s.ALL, h5py.h5s.ALL, value)
            maker.attributes(whole, {"global_shape": shape, "dtype": dtype, **attributes})
    memory.save(path)


def _make_whole(maker: _Maker, tensor: str, parts: list[StoredBox]):
    """Make a virtual dataset of the whole tensor; return its low-level identifier."""
    above, _, name = tensor.rpartition("/")
    shape = parts[0].global_shape
    virtual = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    whole = maker.space(shape).copy()
    for part in parts if shape else ():
        whole.select_hyperslab(part.box.offset, part.box.shape)
        source = maker.space(part.box.shape)
        virtual.set_virtual(whole, part.file.encode(), part.dataset.encode(), source)
    kind, space = maker.kind(parts[0].dtype), maker.space(shape)
    return h5py.h5d.create(maker.group(above), name.encode(), kind, space, virtual)


# ---- images in memory ----------------------------------------------------------------------------


def write_image(tensors: dict, description: dict, room: int) -> tuple[bytearray, dict[str, int]]:
    """Return an HDF5 file in memory, and the byte where each tensor begins.

    The file has one dataset per tensor, and the description as JSON.
    tensors  {tensor path: NumPy array}, whole
    room     bytes left free at the beginning, HDF5's user block: 512 times a power of two
    """
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=LIBRARY_VERSIONS, userblock_size=room) as file:
        maker = _Maker(file)
        maker.attributes(maker.root, {"description": json.dumps(description)})
        places = {
            tensor: file.create_dataset(tensor, data=array).id.get_offset()
            for tensor, array in tensors.items()
        }
    return bytearray(memory.getbuffer()), places


# ---- for the doctor ------------------------------------------------------------------------------


def load_library() -> None:
    """Import h5py now: before the steps of a run that will save, not beside one of them."""
    library_text()


def library_text() -> str:
    """Return the versions of h5py and HDF5."""
    return f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}"


def try_locking(path: Path) -> None:
    """Make, lock and read a small file. Errors: OSError if the file system does not lock."""
    with h5py.File(path, "w") as file:
        file["x"] = 1.0
    with h5py.File(path, "r", locking=True) as file:
        file["x"][()]
