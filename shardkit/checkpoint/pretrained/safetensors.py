"""Read and write the safetensors format, one tensor at a time.

    8 bytes    length of the header, little-endian
    header     JSON: {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3],
               "data_offsets": [0, 24]}, ...}
    the rest   the numbers, little-endian, in C order; offsets count from the end of the header and
               leave no holes

The package of that name writes only what is in memory together, and reads no bfloat16 into NumPy;
both matter here, and the format is this small.
Source: github.com/huggingface/safetensors, "Format".
"""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy

from ...annotations import Shape
from ...errors import CheckpointError
from ...files.reading import (
    LARGEST,
    MOST_DIMS,
    bytes_of,
    mapped,
    opened,
    parsed_json,
    understood,
    wanted,
)
from ...files.writing import whole_file

# bfloat16, which NumPy does not have, is the upper half of a float32
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
READABLE = tuple(NUMPY_TYPES)
INTEGER_TYPES = {"I64": "<i8", "I32": "<i4", "BOOL": "?"}  # of buffers, never of weights
_STORED_TYPES = {**NUMPY_TYPES, **INTEGER_TYPES}
_NAMES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"int64": "I64", "int32": "I32", "bool": "BOOL"},
}
TYPE_NAMES = {theirs: ours for ours, theirs in _NAMES.items()}
_METADATA = "__metadata__"
_MOST_HEADER_BYTES = 100_000_000  # the limit of the reference implementation


@dataclass(frozen=True)
class StoredTensor:
    """The place of one tensor in one file.

    dtype    as the format calls it
    start    bytes from the beginning of the file
    """

    path: Path
    name: str
    dtype: str
    shape: Shape
    start: int

    def read(self, dtype: str | None = None, index=()):
        """Return the elements [index] as a NumPy array of dtype; only these are in memory.

        dtype    None: float64 of float64, else float32, which hold each number as it is
        index    a tuple of slices; (): all
        """
        dtype = dtype or ("float64" if self.dtype == "F64" else "float32")
        if 0 in self.shape:
            return numpy.empty(self.shape, dtype)[index]
        stored = _STORED_TYPES[self.dtype]
        how = {"field": self.name, "error": CheckpointError}
        whole = mapped(self.path, stored, self.start, self.shape, **how)
        return numpy.array(as_floats(whole[index]), dtype)


def as_floats(stored):
    """Return an array as NUMPY_TYPES has it as an array of floats: bfloat16 becomes float32."""
    if stored.dtype == numpy.uint16:
        return (stored.astype(numpy.uint32) << 16).view(numpy.float32)
    return stored


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return {name: where it is}, checked against the file's size and each other.

    No numbers are read.

    Errors: FileNotFoundError, CheckpointError if it is something else or damaged. Tensors of other
    types than READABLE are listed, and cannot be read.
    """
    entries, length, size = _entries(path)
    entries.pop(_METADATA, None)
    tensors = {}
    for name, entry in entries.items():
        with understood(path, name, error=CheckpointError):
            tensors[name] = _checked(path, name, entry, 8 + length)
    spans = sorted(tuple(entry["data_offsets"]) for entry in entries.values())
    _check_no_holes(path, spans, size - 8 - length)
    return tensors


def read_metadata(path: Path) -> dict:
    """Return what a file says of itself, {} where that is nothing. Errors: as read_header."""
    found = _entries(path)[0].get(_METADATA, {})
    return wanted(found, dict, path, _METADATA, error=CheckpointError)


def _entries(path: Path) -> tuple[dict, int, int]:
    """Return what the header holds, its length, and the size of the file."""
    with opened(path, error=CheckpointError) as file:
        size = bytes_of(file)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
            raise CheckpointError(
                f"{path} is no safetensors file, or was cut short: {size} bytes with a header of "
                f"{length}"
            )
        text = file.read(length)
    return parsed_json(text, path, error=CheckpointError), length, size


def _checked(path, name, entry, first_byte) -> StoredTensor:
    """Return the place of one tensor. Errors: ValueError, KeyError, TypeError."""
    dtype = entry["dtype"]
    shape = entry["shape"]
    start, stop = entry["data_offsets"]
    is_right = all(type(n) is int and 0 <= n <= LARGEST for n in [*shape, start, stop])
    if not is_right or len(shape) > MOST_DIMS or prod(n for n in shape if n) > LARGEST:
        raise ValueError(f"{name} has shape {shape!s:.100} at {start!s:.30}, {stop!s:.30}")
    if stop < start or not isinstance(dtype, str):
        raise ValueError(f"{name} of type {dtype!r:.30} is at bytes {start} to {stop}")
    if dtype in _STORED_TYPES:
        if stop - start != prod(shape) * numpy.dtype(_STORED_TYPES[dtype]).itemsize:
            raise ValueError(f"{name} of shape {shape} and type {dtype} has {stop - start} bytes")
    return StoredTensor(path, name, dtype, tuple(shape), first_byte + start)


def _check_no_holes(path, spans, num_bytes) -> None:
    at = 0
    for start, stop in spans:
        if start != at:
            raise CheckpointError(
                f"the header of {path} is damaged: a tensor starts at byte {start}, the one before "
                f"it ends at {at}"
            )
        at = stop
    if at != num_bytes:
        raise CheckpointError(
            f"{path} has {num_bytes} bytes of numbers, but its header says {at}; was it cut short?"
        )


def write_tensors(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    dtype: str | dict[str, str],
    arrays,
    about: dict[str, str] | None = None,
) -> None:
    """Write a file of these tensors, whole; it is on disk when this returns.

    shapes   {name: shape}
    dtype    "float32", "float64", ..., of all, or {name: dtype}
    arrays   an iterable of NumPy arrays in the order of `shapes`; each is dropped before the next
             is asked for
    about    more that the file says of itself
    Errors: OSError; CheckpointError on a number that its dtype cannot hold.
    """
    dtypes = dtype if isinstance(dtype, dict) else dict.fromkeys(shapes, dtype)
    types = {name: _NAMES[dtypes[name]] for name in shapes}
    # without the format, transformers 4 refuses the file
    entries: dict[str, dict] = {_METADATA: {"format": "pt", **(about or {})}}
    at = 0
    for name, shape in shapes.items():
        stop = at + prod(shape) * numpy.dtype(_STORED_TYPES[types[name]]).itemsize
        entries[name] = {"dtype": types[name], "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    header = json.dumps(entries).encode("utf-8")
    header += b" " * (-len(header) % 8)  # numbers start at a multiple of 8
    with whole_file(path, durable=True) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for (name, shape), array in zip(shapes.items(), arrays, strict=True):
            assert array.shape == shape, f"{name} is {array.shape}, announced as {shape}"
            file.write(numpy.ascontiguousarray(_as_stored(name, array, types[name])).data)


def _as_stored(name: str, array, kind: str):
    """Return an array as the format has it: of bfloat16 the bits.

    Errors: CheckpointError on a number that would become infinite.
    """
    bits = array.view(numpy.uint16) if kind == "BF16" else array
    try:
        with numpy.errstate(over="raise"):
            return bits.astype(_STORED_TYPES[kind], copy=False)
    except FloatingPointError:
        raise CheckpointError(
            f"{name} has numbers that {TYPE_NAMES[kind]} cannot hold; write it as {array.dtype}"
        ) from None
