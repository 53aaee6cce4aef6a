"""HDF5 files of boxes; the only place that imports h5py.

    rank-00002.h5                                    index.h5
      model/                                           model/
        blocks.0.mlp.up.weight/                          blocks.0.mlp.up.weight   virtual, the whole tensor
          0    dataset, attribute offset = [40, 0]     optimizer/
          1    dataset, attribute offset = [96, 0]       first_moment/
        attributes of the group: global_shape              blocks.0.mlp.up.weight

A box is a plain contiguous dataset: h5py, h5dump and any other HDF5 program read it. The index has no data of its own but
scalars; its virtual datasets read through to the rank files beside it. A virtual dataset reads fill values where a file is
missing, so nobody may trust the index before the manifest has been checked (load.py). FORMAT.md says all of it.
"""
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy

from ..array.backend import to_host
from ..errors import CheckpointError
from ..layout.box import Box

INDEX_NAME = "index.h5"
_LIBRARY_VERSIONS = ("v110", "v110")        # what "latest" writes, the tools of HDF5 1.10 and 1.12 cannot open


@dataclass(frozen=True)
class StoredBox:
    """One box of one tensor in one file."""

    tensor: str         # path, such as "model/blocks.0.mlp.up.weight"
    file: str
    dataset: str        # path in that file
    box: Box
    global_shape: tuple[int, ...]
    dtype: str


def rank_file_name(rank: int) -> str:
    """The name of the file that this rank writes."""
    return f"rank-{rank:05d}.h5"


def write_boxes(path: Path, owned) -> list[StoredBox]:
    """Write the boxes of one rank; returns what was written.

    owned  (tensor path, Piece, 1-D array with the elements of its box) each
    """
    stored = []
    with h5py.File(path, "w", libver=_LIBRARY_VERSIONS) as file:
        for tensor, piece, array in owned:
            group = file.require_group(tensor)
            group.attrs["global_shape"] = numpy.array(piece.global_shape, numpy.int64)
            name = f"{tensor}/{len(group)}"
            dataset = file.create_dataset(name, data=to_host(array).reshape(piece.box.shape))
            dataset.attrs["offset"] = numpy.array(piece.box.offset, numpy.int64)
            stored.append(StoredBox(tensor, path.name, name, piece.box, piece.global_shape, str(array.dtype)))
    return stored


def write_index(path: Path, boxes: list[StoredBox], attributes: dict) -> None:
    """Write the index: every tensor whole, as a virtual dataset over the boxes.

    attributes  of the file, and repeated on each tensor beside its shape and dtype: step, mesh, ...
    """
    by_tensor: dict[str, list[StoredBox]] = {}
    for box in boxes:
        by_tensor.setdefault(box.tensor, []).append(box)
    with h5py.File(path, "w", libver=_LIBRARY_VERSIONS) as file:
        file.attrs.update(attributes)
        for tensor, parts in sorted(by_tensor.items()):
            _write_whole(file, path.parent, tensor, parts)
            file[tensor].attrs.update({"global_shape": numpy.array(parts[0].global_shape, numpy.int64),
                                       "dtype": parts[0].dtype, **attributes})


def _write_whole(file, folder: Path, tensor: str, parts: list[StoredBox]) -> None:
    shape = parts[0].global_shape
    if shape == ():         # HDF5 has no virtual scalars, and attributes of a link would be written into the file it leads to
        with h5py.File(folder / parts[0].file, "r") as source:
            file[tensor] = source[parts[0].dataset][()]
        return
    whole = h5py.VirtualLayout(shape, parts[0].dtype)
    for part in parts:
        whole[part.box.slices()] = h5py.VirtualSource(part.file, part.dataset, part.box.shape, part.dtype)
    file.create_virtual_dataset(tensor, whole)


class BoxReader:
    """Reads parts of stored boxes of one checkpoint folder; opens each file once. Use as a context manager."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, h5py.File] = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for file in self._files.values():
            file.close()

    def read(self, stored: StoredBox, wanted: Box, target) -> None:
        """Copy what lies in both boxes from the file into `target`, a NumPy array of the wanted box's shape.

        Errors: CheckpointError if the dataset is not what the manifest says.
        """
        common = stored.box.intersection(wanted)
        if common is None:
            return
        dataset = self._dataset(stored)
        if common.shape == ():
            target[()] = dataset[()]
        else:
            dataset.read_direct(target, common.relative_to(stored.box).slices(), common.relative_to(wanted).slices())

    def _dataset(self, stored: StoredBox):
        try:
            if stored.file not in self._files:
                self._files[stored.file] = h5py.File(self._folder / stored.file, "r")
            dataset = self._files[stored.file][stored.dataset]
            if dataset.shape == stored.box.shape and dataset.dtype == stored.dtype:
                return dataset
        except (OSError, KeyError) as error:
            raise CheckpointError(f"{self._folder / stored.file}: cannot read {stored.dataset}: {error}") from None
        raise CheckpointError(f"{self._folder / stored.file}: {stored.dataset} is {dataset.dtype} {dataset.shape}, but the "
                              f"manifest says {stored.dtype} {stored.box.shape}")


# ---- images in memory --------------------------------------------------------------------------------------------

def write_image(tensors: dict, description: dict) -> bytes:
    """A whole HDF5 file in memory: one dataset per tensor with its checksum, and the description as JSON in an attribute.

    tensors  {tensor path: NumPy array}, whole
    """
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=_LIBRARY_VERSIONS) as file:
        file.attrs["description"] = json.dumps(description)
        for tensor, array in tensors.items():
            file.create_dataset(tensor, data=array).attrs["crc32"] = zlib.crc32(numpy.ascontiguousarray(array))
    return memory.getvalue()


def read_image(data: bytes) -> tuple[dict, dict]:
    """(tensors, description) of what write_image made; every checksum is compared.

    Errors: CheckpointError if the bytes are damaged or something else.
    """
    tensors: dict = {}
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            description = json.loads(file.attrs["description"])
            file.visititems(lambda name, item: tensors.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
            damaged = [name for name, array in tensors.items()
                       if zlib.crc32(numpy.ascontiguousarray(array)) != file[name].attrs["crc32"]]
    except (OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"these {len(data)} bytes are no image of a sharded model: {error}") from None
    if damaged:
        raise CheckpointError(f"the image of the model is damaged: checksum of {damaged[0]} does not hold")
    return tensors, description
