"""Write and read the manifest: what a checkpoint folder must hold, as JSON.

    {"crc32": "1d0f9a3c", "format": "shardkit-checkpoint", "version": 3, "segment_bytes": 1048576,
     "step": 100, "seed": 0, "mesh": {...}, "model": {...}, ...,
     "files":   {"rank-00000.h5": {"bytes": 81920, "crc32": "9ae0daaf"}, ...},
     "tensors": {"model/head.norm.weight": {"shape": [128], "dtype": "float32",
                     "boxes": [["rank-00000.h5", "model/head.norm.weight/0", [0], [128], 4096,
                     ["5d1b46e3a24fb5b9"]], ...]}}}

The first member is the CRC-32 of the manifest itself, taken with zeros for these eight digits. That
of a file is over all of its bytes that belong to no box. A box is [file, dataset, offset, shape,
byte where it begins, XXH3 of each segment].

Anybody may have written the files: types, sizes and places are compared with each other and with
the files before memory is taken for them.
"""

import json
import re
from math import prod
from pathlib import Path

import numpy

from ...errors import CheckpointError, LayoutError
from ...files.reading import MOST_DIMS
from ...files.writing import write_whole
from ...layout.box import Box, tiles_exactly
from ...layout.piece import Piece
from .companions import check_companion
from .description import check_description, is_count
from .files import as_text, crc32, file_bytes, read_whole
from .parts import TensorCut
from .stored import ITEM_BYTES, SEGMENT_BYTES, StoredBox, check_places, num_segments

FORMAT = "shardkit-checkpoint"
VERSION = 3  # that of release 0.1.0; no release wrote an older one
TABLED_VERSION = 4  # of many files: boxes stand in their tables
MOST_LISTED_RANKS = 64  # whose boxes the manifest lists
MANIFEST_NAME = "manifest.json"
MOST_BYTES = 1 << 28  # of a manifest: room for two million boxes
UNSEALED = '{"crc32": "00000000", '  # the beginning, before its checksum is known
_SEAL = slice(len('{"crc32": "'), len('{"crc32": "00000000'))
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_STEP_NAME = re.compile(r"step-(\d{8,})(\.tmp|\.old)?")
_CRC32 = re.compile(r"[0-9a-f]{8}")
_XXH3 = re.compile(r"[0-9a-f]{16}")


# ---- writing -------------------------------------------------------------------------------------


def write_manifest(
    folder: Path, description: dict, files: dict, tensors: dict, parts: list | None = None
) -> None:
    """Write the manifest; it is on disk when this returns.

    tensors   as tensor_table() returns them; with `parts`, as tables_of() does (parts.py)
    Errors: CheckpointError if it has more bytes than a reader takes.
    """
    head = {"format": FORMAT, "version": VERSION, "segment_bytes": SEGMENT_BYTES, **description}
    if parts is not None:
        head |= {"version": TABLED_VERSION, "parts": parts}
    start = json.dumps(head, allow_nan=False)[1:-1]
    text = f'{UNSEALED}{start},\n"files": {_lines(files)},\n"tensors": {_lines(tensors)}}}\n'
    if len(text) > MOST_BYTES:
        raise CheckpointError(
            f"{folder}: the manifest would have {len(text):,} bytes, and readers take "
            f"{MOST_BYTES:,}; save from fewer ranks, or a mesh that cuts all layers alike"
        )
    text = text.replace("00000000", as_text(crc32(text.encode())), 1)
    write_whole(folder / MANIFEST_NAME, text.encode(), durable=True)


def _lines(table: dict) -> str:
    """Return a JSON object with a line for each member."""
    members = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
    return "{\n" + ",\n".join(members) + "}"


def listed_bytes(tensor: str, piece: Piece, dtype: str) -> int:
    """Return about how many bytes of a manifest the description of a box takes, or a few more."""
    checksums = num_segments(piece.box.size * numpy.dtype(dtype).itemsize)
    return 150 + 2 * len(json.dumps(tensor)) + 20 * checksums


def tensor_table(boxes: list[StoredBox]) -> dict:
    """Return the "tensors" entry.

    Errors: CheckpointError unless the boxes of each tensor tile it exactly once.
    """
    table: dict[str, dict] = {}
    for box in sorted(boxes, key=lambda box: box.tensor):
        shape = list(box.global_shape)
        entry = table.setdefault(box.tensor, {"shape": shape, "dtype": box.dtype, "boxes": []})
        if (entry["shape"], entry["dtype"]) != (shape, box.dtype):
            raise CheckpointError(
                f"two owners of {box.tensor} do not agree: {entry['dtype']} {entry['shape']}, and "
                f"{box.dtype} {shape}"
            )
        offset, size = list(box.box.offset), list(box.box.shape)
        place = [box.file, box.dataset, offset, size, box.at, list(box.checksums)]
        entry["boxes"].append(place)
    for tensor, entry in table.items():
        check_coverage(tensor, stored_boxes(tensor, entry))
    return table


# ---- reading -------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict:
    """Return the manifest of a checkpoint folder, checked against itself and the sizes of files.

    Contents of the other files are not read (load.py does that).
    Errors: CheckpointError saying what is wrong, PermissionError.
    """
    path = folder / MANIFEST_NAME
    text = _text_of(path)
    try:
        manifest = parse_object(text)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not the manifest of a shardkit checkpoint")
    _check_version(folder, manifest.get("version"))
    try:
        check_seal(text)
        check_description(manifest)
        _check_step(folder, manifest)
        _check_files(folder, manifest["files"])
        _check_boxes(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__} {error}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from None
    return manifest


def _text_of(path: Path) -> bytes:
    if not path.parent.is_dir() or not path.exists() and not path.is_symlink():
        raise CheckpointError(
            f"{path.parent} has no {MANIFEST_NAME}: it is not a checkpoint, or its writing was cut "
            "short"
        )
    return read_whole(path, MOST_BYTES)


def parse_object(text: bytes) -> dict:
    """Return the JSON object of this text. Errors: CheckpointError."""
    try:
        table = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(table, dict):
        raise CheckpointError(f"it is no JSON object but a {type(table).__name__}")
    return table


def _check_version(folder: Path, version) -> None:
    if version in (VERSION, TABLED_VERSION):
        return
    advice = "use a newer shardkit"
    if version in range(VERSION):
        advice = "no release wrote an older version, so no release reads it"
    raise CheckpointError(
        f"{folder} has format version {version!r:.20}; this shardkit reads versions {VERSION} and "
        f"{TABLED_VERSION}: "
        f"{advice}"
    )


def check_seal(content) -> None:
    """Raise CheckpointError unless these bytes begin with their own checksum."""
    zeros = crc32(memoryview(content)[_SEAL.stop :], crc32(UNSEALED.encode()[: _SEAL.stop]))
    stated = bytes(content[: _SEAL.stop])
    if stated != UNSEALED.encode()[: _SEAL.start] + as_text(zeros).encode():
        raise CheckpointError(f"its checksum is {as_text(zeros)}, but it begins with {stated!r}")


def _check_step(folder: Path, manifest: dict) -> None:
    """Compare the step with the folder's name, by which the newest is found.

    Without optimizer state the step is 0, whatever the name says.
    """
    named = _STEP_NAME.fullmatch(folder.name)
    if named and manifest["optimizer"] is not None and int(named[1]) != manifest["step"]:
        raise CheckpointError(
            f"it is of step {manifest['step']}; call the folder step-{manifest['step']:08d}"
        )


def _check_files(folder: Path, files: dict) -> None:
    for name, record in files.items():
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST_NAME:
            raise CheckpointError(f"{name!r:.100} is not the name of a file of a checkpoint")
        if not is_count(record["bytes"]) or not _CRC32.fullmatch(record["crc32"]):
            raise CheckpointError(f"the record of {name} is {record!r:.100}")
        check_companion(name, record["bytes"])
        found = file_bytes(folder / name)
        if found != record["bytes"]:
            raise CheckpointError(
                f"{name} has {found} bytes, but the manifest says {record['bytes']}"
            )


def _check_boxes(manifest: dict) -> None:
    _check_segments(manifest)
    if manifest["version"] == TABLED_VERSION:
        _check_parts(manifest)
    else:
        _check_tensors(manifest)


def _check_parts(manifest: dict) -> None:
    """Check the places of tables and parts; tables are checked where they are read."""
    records = [record for record in manifest["files"].values() if "table" in record]
    for record in records:
        at, num_bytes, num_segments, checksum = record["table"]
        is_right = all(map(is_count, (at, num_bytes, num_segments))) and _XXH3.fullmatch(checksum)
        if not is_right or at + num_bytes > record["bytes"] or 8 * num_segments > num_bytes:
            raise CheckpointError(f"the place of a table is {record['table']!r:.100}")
    parts = [TensorCut(entry, len(records)) for entry in manifest["parts"]]
    num_elements = [each.num_elements() for each in parts]
    last_files = [each.last_file() for each in parts]
    room = sum(record["bytes"] for record in records)
    for tensor, entry in manifest["tensors"].items():
        shape, dtype = checked_shape(tensor, entry)
        number, first = entry["parts"], entry["first"]
        if not is_count(number) or not is_count(first) or number >= len(parts):
            raise CheckpointError(f"{tensor} has parts {number!r:.40} from file {first!r:.40} on")
        size = prod(shape)
        last_file = first + last_files[number]
        if last_file >= len(records) or size * ITEM_BYTES[dtype] > room:
            raise CheckpointError(f"{tensor} of shape {shape} stands in files that are not there")
        if num_elements[number] != size:
            raise CheckpointError(f"the parts of {tensor} do not make shape {shape} whole")


def _check_segments(manifest: dict) -> None:
    if manifest["segment_bytes"] != SEGMENT_BYTES:
        raise CheckpointError(
            f"segment_bytes = {manifest['segment_bytes']!r:.40}; wanted {SEGMENT_BYTES}"
        )


def _check_tensors(manifest: dict) -> None:
    boxes = []
    for tensor, entry in manifest["tensors"].items():
        own = stored_boxes(tensor, entry)
        check_coverage(tensor, own)
        boxes += own
    for box in boxes:
        if box.file not in manifest["files"] or not isinstance(box.dataset, str):
            raise CheckpointError(
                f"a box of {box.tensor} stands in {box.file!r:.100}, which is not among the files"
            )
    check_places({name: record["bytes"] for name, record in manifest["files"].items()}, boxes)


def stored_boxes(tensor: str, entry: dict) -> list[StoredBox]:
    """Return the boxes of one tensor, as the manifest lists them.

    Errors: CheckpointError, TypeError, ValueError, KeyError.
    """
    shape, dtype = checked_shape(tensor, entry)
    return [
        StoredBox(
            tensor,
            file,
            dataset,
            Box(_numbers(offset), _numbers(size)),
            shape,
            dtype,
            *_checked_place(at, checksums),
        )
        for file, dataset, offset, size, at, checksums in entry["boxes"]
    ]


def checked_shape(tensor: str, entry: dict) -> tuple[tuple[int, ...], str]:
    """Return (shape, dtype) of an entry. Errors: CheckpointError, KeyError, TypeError."""
    shape, dtype = _numbers(entry["shape"]), entry["dtype"]
    if dtype not in ITEM_BYTES:
        raise CheckpointError(
            f"{tensor} is of dtype {dtype!r:.40}; wanted one of {', '.join(ITEM_BYTES)}"
        )
    return shape, dtype


def _numbers(values) -> tuple[int, ...]:
    if type(values) is not list or len(values) > MOST_DIMS or not all(map(is_count, values)):
        raise CheckpointError(f"{values!r:.100} is no shape or offset")
    return tuple(values)


def _checked_place(at, checksums) -> tuple[int, tuple[str, ...]]:
    is_right = is_count(at) and type(checksums) is list and all(map(_XXH3.fullmatch, checksums))
    if not is_right:
        raise CheckpointError(
            f"{[at, checksums]!r:.100} is not where a box begins, with checksums of 16 digits"
        )
    return at, tuple(checksums)


def check_coverage(tensor: str, boxes: list[StoredBox]) -> None:
    """Raise CheckpointError unless these boxes tile their tensor exactly once."""
    if not boxes:
        raise CheckpointError(f"no boxes of {tensor} are stored")
    try:
        tiles_exactly(boxes[0].global_shape, [stored.box for stored in boxes])
    except LayoutError as error:
        raise CheckpointError(
            f"the stored boxes of {tensor} do not make it whole: {error}"
        ) from None
