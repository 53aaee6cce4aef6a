"""HDF5 files of boxes; the only place that imports h5py.

    rank-00002.h5                                    index.h5
      model/                                           model/
        blocks.0.mlp.up.weight/                          blocks.0.mlp.up.weight   virtual, the whole tensor
          0    dataset, attribute offset = [40, 0]     optimizer/
          1    dataset, attribute offset = [96, 0]       first_moment/
        attributes of the group: global_shape              blocks.0.mlp.up.weight

A box is a plain contiguous dataset: h5py, h5dump and any other HDF5 program read it. HDF5 lays the
file out and says at which byte each box begins; the values are then written, and later read, as
bytes (files.py). So the library's lock is never held while a disk works, and a file that somebody
tampered with is never parsed: the manifest knows where everything stands.

The index has no data of its own but scalars; its virtual datasets read through to the rank files
beside it. A virtual dataset reads fill values where a file is missing, so nobody may trust the
index before the manifest has been checked (load.py).
"""

import io
import json
from pathlib import Path

import h5py
import numpy

from .files import write_parts
from .stored import StoredBox

INDEX_NAME = "index.h5"
_LIBRARY_VERSIONS = (
    "v110",
    "v110",
)  # what "latest" writes, the tools of HDF5 1.10 and 1.12 cannot open
_TEXT = h5py.string_dtype()
PAGE_BYTES = 4096
_HOW = {
    "libver": _LIBRARY_VERSIONS,
    "meta_block_size": 4 * PAGE_BYTES,
    "alignment_threshold": 16 * PAGE_BYTES,
    "alignment_interval": PAGE_BYTES,
}  # large boxes begin on a page


def rank_file_name(rank: int) -> str:
    """The name of the file that this rank writes."""
    return f"rank-{rank:05d}.h5"


# ---- files of boxes ------------------------------------------------------------------------------


def lay_out(path: Path, boxes) -> list[StoredBox]:
    """Make a file with a dataset for each box, the values still missing; returns where they belong.
    Errors: OSError.

    boxes   (tensor path, Piece, dtype) each
    """
    memory = _Pages()
    with h5py.File(memory, "w", **_HOW) as file:
        stored = _make_datasets(file, path.name, boxes)
    memory.save(path)
    return stored


class _Pages(io.RawIOBase):
    """A file in memory in which most bytes are never written: what HDF5 thinks is its disk.

    So a full disk is an OSError of our own write. HDF5 itself, when it cannot flush, neither closes
    a file nor lets it go.
    """

    def __init__(self):
        super().__init__()
        self._pages: dict[int, bytearray] = {}
        self._at = self._size = 0

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
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._at)]
        for start, place, page in self._split(len(view)):
            part = view[start : start + PAGE_BYTES - place]
            part[:] = self._pages.get(page, bytes(PAGE_BYTES))[place : place + len(part)]
        self._at += len(view)
        return len(view)

    def _split(self, num_bytes):
        """(byte of the transfer, byte of the page, page) wherever a transfer of this size from here
        begins a page.
        """
        first = self._at % PAGE_BYTES
        return [
            (start, 0 if start else first, (self._at + start) // PAGE_BYTES)
            for start in (0, *range(PAGE_BYTES - first, num_bytes, PAGE_BYTES))
            if start < num_bytes
        ]

    def save(self, path: Path) -> None:
        """Write what was written. Errors: OSError."""
        write_parts(
            path,
            self._size,
            {page * PAGE_BYTES: content for page, content in sorted(self._pages.items())},
        )


def _make_datasets(file, name: str, boxes) -> list[StoredBox]:
    made, stored, groups, room = _Maker(file), [], {}, _contiguous()
    for tensor, piece, dtype in boxes:
        if tensor not in groups:
            groups[tensor] = [made.group(tensor), 0]
            made.attributes(groups[tensor][0], {"global_shape": piece.global_shape})
        group, number = groups[tensor]
        groups[tensor][1] += 1
        dataset = h5py.h5d.create(
            group, b"%d" % number, made.kind(dtype), made.space(piece.box.shape), room
        )
        made.attributes(dataset, {"offset": piece.box.offset})
        stored.append(
            StoredBox(
                tensor,
                name,
                f"{tensor}/{number}",
                piece.box,
                piece.global_shape,
                str(dtype),
                dataset.get_offset(),
            )
        )
    return stored


def _contiguous():
    room = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    room.set_layout(h5py.h5d.CONTIGUOUS)
    room.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    room.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return room


class _Maker:
    """Makes groups and attributes by the low level of h5py, which takes a quarter of the time of
    the high one.

    Types, spaces and values, of which most tensors have the same, are made once.
    """

    def __init__(self, file):
        self.root, self._text, self._made = file.id, h5py.h5t.py_create(_TEXT, logical=True), {}

    def _once(self, what: str, key, make):
        if (what, key) not in self._made:
            self._made[what, key] = make(key)
        return self._made[what, key]

    def kind(self, dtype):
        """The type of a dataset."""
        return self._once("kind", dtype, lambda dtype: h5py.h5t.py_create(numpy.dtype(dtype)))

    def space(self, shape: tuple[int, ...]):
        """A simple or scalar space."""
        return self._once(
            "space",
            shape,
            lambda shape: (
                h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
            ),
        )

    def group(self, path: str):
        """The group of this path, made if it is missing; the root for ""."""
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
            return self._text, self.space(()), numpy.array(value, _TEXT)
        array = numpy.array(value, numpy.int64)
        return h5py.h5t.NATIVE_INT64, self.space(array.shape), array


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
    with h5py.File(memory, "w", libver=_LIBRARY_VERSIONS) as file:
        made = _Maker(file)
        made.attributes(made.root, head | attributes)
        for tensor, parts in sorted(by_tensor.items()):
            whole = _make_whole(made, tensor, parts)
            if tensor in scalars:
                whole.write(
                    h5py.h5s.ALL, h5py.h5s.ALL, numpy.array(scalars[tensor], parts[0].dtype)
                )
            made.attributes(
                whole,
                {"global_shape": parts[0].global_shape, "dtype": parts[0].dtype, **attributes},
            )
    memory.save(path)


def _make_whole(made: _Maker, tensor: str, parts: list[StoredBox]):
    """A dataset of the whole tensor; its low-level identifier."""
    above, _, name = tensor.rpartition("/")
    shape, virtual = parts[0].global_shape, h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    whole = made.space(shape).copy()
    for part in parts if shape else ():
        whole.select_hyperslab(part.box.offset, part.box.shape)
        virtual.set_virtual(
            whole, part.file.encode(), part.dataset.encode(), made.space(part.box.shape)
        )
    return h5py.h5d.create(
        made.group(above), name.encode(), made.kind(parts[0].dtype), made.space(shape), virtual
    )


# ---- images in memory ----------------------------------------------------------------------------


def write_image(tensors: dict, description: dict, room: int) -> tuple[bytearray, dict[str, int]]:
    """A whole HDF5 file in memory, one dataset per tensor and the description as JSON; and the
    bytes where tensors begin.

    tensors  {tensor path: NumPy array}, whole
    room     bytes left free at the beginning, HDF5's user block: 512 times a power of two
    """
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=_LIBRARY_VERSIONS, userblock_size=room) as file:
        made = _Maker(file)
        made.attributes(made.root, {"description": json.dumps(description)})
        places = {
            tensor: file.create_dataset(tensor, data=array).id.get_offset()
            for tensor, array in tensors.items()
        }
    return bytearray(memory.getbuffer()), places


# ---- the library ---------------------------------------------------------------------------------


def library_text() -> str:
    """Return the versions of h5py and HDF5."""
    return f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}"


def try_locking(path: Path) -> None:
    """Make, lock and read a small file as checkpoints do. Errors: OSError if the file system does
    not lock.
    """
    with h5py.File(path, "w") as file:
        file["x"] = 1.0
    with h5py.File(path, "r", locking=True) as file:
        file["x"][()]
