"""The manifest: what a checkpoint folder must hold, in JSON, so that completeness is checked before
anything is trusted.

    {"crc32": "1d0f9a3c", "format": "shardkit-checkpoint", "version": 3, "segment_bytes": 1048576,
     "step": 100, "seed": 0, "mesh": {...}, "model": {...}, ...,
     "files":   {"rank-00000.h5": {"bytes": 81920, "crc32": "9ae0daaf"}, ...},
     "tensors": {"model/head.norm.weight": {"shape": [128], "dtype": "float32",
                     "boxes": [["rank-00000.h5", "model/head.norm.weight/0", [0], [128], 4096,
                     ["5d1b46e3a24fb5b9"]], ...]}}}

The first member is the CRC-32 of the manifest itself, taken with zeros for these eight digits. That
of a file is over all of its bytes that belong to no box. A box is [file, dataset, offset, shape,
byte where it begins, XXH3 of each segment].

Everything here may have been written by somebody else: types, sizes and places are compared with
each other and with the files before anybody takes memory for them.
"""

import json
import os
import re
from math import inf, isfinite
from pathlib import Path

from ...errors import CheckpointError, LayoutError
from ...layout.box import Box, tiles_exactly
from ..companions import check_companion
from .files import as_text, crc32, file_bytes, open_regular, write_text
from .stored import ITEM_BYTES, SEGMENT_BYTES, StoredBox, num_segments

FORMAT = "shardkit-checkpoint"
VERSION = 3  # that of release 0.1.0; no release wrote an older one
MANIFEST_NAME = "manifest.json"
MOST_BYTES = 1 << 28  # of a manifest: room for two million boxes
MOST_DIMS = 32
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_STEP_NAME = re.compile(r"step-(\d{8,})(\.tmp|\.old)?")
_CRC32 = re.compile(r"[0-9a-f]{8}")
_XXH3 = re.compile(r"[0-9a-f]{16}")
UNSEALED = '{"crc32": "00000000", '  # the beginning, before its checksum is known
_SEAL = slice(len('{"crc32": "'), len('{"crc32": "00000000'))


# ---- writing -------------------------------------------------------------------------------------


def write_manifest(folder: Path, description: dict, files: dict, boxes: list[StoredBox]) -> None:
    """Write the manifest; it is on disk when this returns.

    Errors: CheckpointError unless the boxes of each tensor tile it exactly once.
    """
    tensors = tensor_table(boxes)
    head = json.dumps(
        {"format": FORMAT, "version": VERSION, "segment_bytes": SEGMENT_BYTES, **description},
        allow_nan=False,
    )
    text = f'{UNSEALED}{head[1:-1]},\n"files": {_lines(files)},\n"tensors": {_lines(tensors)}}}\n'
    write_text(folder / MANIFEST_NAME, text.replace("00000000", as_text(crc32(text.encode())), 1))


def _lines(table: dict) -> str:
    """A JSON object with a line for each member."""
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
        + "}"
    )


def tensor_table(boxes: list[StoredBox]) -> dict:
    """The "tensors" entry. Errors: CheckpointError unless the boxes of each tensor tile it exactly
    once.
    """
    table: dict[str, dict] = {}
    for box in sorted(boxes, key=lambda box: box.tensor):
        entry = table.setdefault(
            box.tensor, {"shape": list(box.global_shape), "dtype": box.dtype, "boxes": []}
        )
        if (entry["shape"], entry["dtype"]) != (list(box.global_shape), box.dtype):
            raise CheckpointError(
                f"two owners of {box.tensor} do not agree: {entry['dtype']} {entry['shape']}, and "
                f"{box.dtype} {list(box.global_shape)}"
            )
        entry["boxes"].append(
            [
                box.file,
                box.dataset,
                list(box.box.offset),
                list(box.box.shape),
                box.at,
                list(box.checksums),
            ]
        )
    for tensor, entry in table.items():
        check_coverage(tensor, stored_boxes(tensor, entry))
    return table


def check_description(description) -> None:
    """Errors: CheckpointError unless this says all that a model needs to go on, in the right
    types.
    """
    if not isinstance(description, dict):
        raise CheckpointError(
            f"the description of a checkpoint is a {type(description).__name__}; wanted a dict"
        )
    for name, (is_right, wanted) in {**_DESCRIPTION, **_OPTIONAL}.items():
        if name not in description and name in _DESCRIPTION or not is_right(description.get(name)):
            raise CheckpointError(
                f"the description of the checkpoint has {name} = {description.get(name)!r:.100}; "
                f"wanted {wanted}"
            )
    counts = (
        description.get("skipped_steps") or 0,
        (description["optimizer"] or {}).get("state_since") or 0,
    )
    if sum(counts) > description["step"]:
        raise CheckpointError(
            f"the description of the checkpoint has step = {description['step']}, of which {counts[0]} were "
            f"skipped, and optimizer = {description['optimizer']!r:.300}, whose state began after {counts[1]}"
        )


def check_storable(description: dict) -> None:
    """Errors: CheckpointError unless JSON can say this."""
    try:
        json.dumps(description, allow_nan=False)
        _check_keys(description)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the description of the checkpoint cannot be stored: {error}; pass plain numbers, strings, "
            "lists and dicts"
        ) from None


def _check_keys(value) -> None:
    """Errors: TypeError on keys that JSON would turn into strings."""
    if isinstance(value, dict):
        strangers = [key for key in value if not isinstance(key, str)]
        if strangers:
            raise TypeError(
                f"the key {strangers[0]!r} of {value!r:.100} would come back as a string"
            )
    for below in (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple))
        else ()
    ):
        _check_keys(below)


def _is_count(value) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_table_of(is_right):
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _is_rule(value) -> bool:
    """What shardkit.optim.description tells, and since when there is state; older checkpoints tell
    the name only.
    """
    names, settings, since = (
        value.get(name, usual)
        for name, usual in (("state", []), ("settings", {}), ("state_since", 0))
    )
    return (
        isinstance(value.get("rule"), str)
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and isinstance(settings, dict)
        and _is_count(since)
    )


_DESCRIPTION = {
    "step": (_is_count, "an integer >= 0"),
    "samples_seen": (_is_count, "an integer >= 0"),
    "seed": (lambda v: type(v) is int, "an integer"),
    "last_loss": (
        lambda v: v is None or type(v) in (int, float) and isfinite(v),
        "a finite number or null",
    ),
    "mesh": (_is_table_of(_is_count), "{axis: size}"),
    "strategy": (lambda v: isinstance(v, str), "a string"),
    "active_features": (
        lambda v: v is None or isinstance(v, list) and all(map(_is_count, v)),
        "a list of integers, or null",
    ),
    "model": (
        lambda v: (
            isinstance(v, dict)
            and isinstance(v.get("class"), str)
            and isinstance(v.get("configuration"), dict)
        ),
        '{"class": ..., "configuration": {...}}',
    ),
    "optimizer": (
        lambda v: v is None or isinstance(v, dict) and _is_rule(v),
        '{"rule": name, "state": [names], "settings": {...}, "state_since": an integer >= 0} or null',
    ),
}
_OPTIONAL = {
    "skipped_steps": (lambda v: v is None or _is_count(v), "an integer >= 0"),
    "loss_scale": (
        lambda v: (
            v is None
            or isinstance(v, dict)
            and type(v.get("value")) in (int, float)
            and 0 < v["value"] < inf
            and _is_count(v.get("good_steps"))
        ),
        '{"value": a number above 0, "good_steps": an integer >= 0} or null',
    ),
}


# ---- reading -------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict:
    """The manifest of a checkpoint folder, which agrees with itself and with the sizes of the files
    beside it.

    Errors: CheckpointError saying what is wrong, PermissionError. Contents of the files are not
    read (load.py does that).
    """
    path = folder / MANIFEST_NAME
    text = _text_of(path)
    manifest = _parsed(path, text)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not the manifest of a shardkit checkpoint")
    _check_version(folder, manifest.get("version"))
    try:
        check_seal(text)
        check_description(manifest)
        _check_step(folder, manifest)
        _check_files(folder, manifest["files"])
        _check_tensors(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__} {error}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from None
    return manifest


def _check_version(folder: Path, version) -> None:
    if version == VERSION:
        return
    advice = "use a newer shardkit"
    if version in range(VERSION):
        advice = "no release wrote an older version, so no release reads it"
    raise CheckpointError(
        f"{folder} has format version {version!r:.20}; this shardkit reads version {VERSION}: {advice}"
    )


def _text_of(path: Path) -> bytes:
    if not path.parent.is_dir() or not path.exists() and not path.is_symlink():
        raise CheckpointError(
            f"{path.parent} has no {MANIFEST_NAME}: it is not a checkpoint, or its writing was cut short"
        )
    with os.fdopen(open_regular(path), "rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > MOST_BYTES:
            raise CheckpointError(f"{path} has {num_bytes} bytes, so it is no manifest")
        return file.read(num_bytes)


def _parsed(path: Path, text: bytes) -> dict:
    try:
        return parse_object(text)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def parse_object(text: bytes) -> dict:
    """The object that this JSON is. Errors: CheckpointError."""
    try:
        table = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(table, dict):
        raise CheckpointError(f"it is no JSON object but a {type(table).__name__}")
    return table


def check_seal(content) -> None:
    """Errors: CheckpointError unless the checksum with which these bytes begin is that of all of
    them, with zeros for it.
    """
    zeros = crc32(memoryview(content)[_SEAL.stop :], crc32(UNSEALED.encode()[: _SEAL.stop]))
    stated = bytes(content[: _SEAL.stop])
    if stated != UNSEALED.encode()[: _SEAL.start] + as_text(zeros).encode():
        raise CheckpointError(f"its checksum is {as_text(zeros)}, but it begins with {stated!r}")


def _check_step(folder: Path, manifest: dict) -> None:
    """The newest is found by its name. Without optimizer state the step is 0, whatever the name
    says.
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
        if not _is_count(record["bytes"]) or not _CRC32.fullmatch(record["crc32"]):
            raise CheckpointError(f"the record of {name} is {record!r:.100}")
        check_companion(name, record["bytes"])
        found = file_bytes(folder / name)
        if found != record["bytes"]:
            raise CheckpointError(
                f"{name} has {found} bytes, but the manifest says {record['bytes']}"
            )


def stored_boxes(tensor: str, entry: dict) -> list[StoredBox]:
    """The boxes of one tensor, as the manifest lists them. Errors: CheckpointError, TypeError,
    ValueError, KeyError.
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
    """(shape, dtype) of an entry. Errors: CheckpointError, KeyError, TypeError."""
    shape, dtype = _numbers(entry["shape"]), entry["dtype"]
    if dtype not in ITEM_BYTES:
        raise CheckpointError(
            f"{tensor} is of dtype {dtype!r:.40}; wanted one of {', '.join(ITEM_BYTES)}"
        )
    return shape, dtype


def _check_tensors(manifest: dict) -> None:
    boxes = []
    for tensor, entry in manifest["tensors"].items():
        own = stored_boxes(tensor, entry)
        check_coverage(tensor, own)
        boxes += own
    stranger = next(
        (
            box
            for box in boxes
            if box.file not in manifest["files"] or not isinstance(box.dataset, str)
        ),
        None,
    )
    if stranger is not None:
        raise CheckpointError(
            f"a box of {stranger.tensor} stands in {stranger.file!r:.100}, which is not among the files"
        )
    _check_places(manifest, boxes)


def _numbers(values) -> tuple[int, ...]:
    if type(values) is not list or len(values) > MOST_DIMS or not all(map(_is_count, values)):
        raise CheckpointError(f"{values!r:.100} is no shape or offset")
    return tuple(values)


def _checked_place(at, checksums) -> tuple[int, tuple[str, ...]]:
    is_right = _is_count(at) and type(checksums) is list and all(map(_XXH3.fullmatch, checksums))
    if not is_right:
        raise CheckpointError(
            f"{[at, checksums]!r:.100} is not where a box begins, with checksums of 16 digits"
        )
    return at, tuple(checksums)


def check_coverage(tensor: str, boxes: list[StoredBox]) -> None:
    """Errors: CheckpointError unless these boxes tile their tensor exactly once."""
    if not boxes:
        raise CheckpointError(f"no boxes of {tensor} are stored")
    try:
        tiles_exactly(boxes[0].global_shape, [stored.box for stored in boxes])
    except LayoutError as error:
        raise CheckpointError(
            f"the stored boxes of {tensor} do not make it whole: {error}"
        ) from None


def _check_places(manifest: dict, boxes: list[StoredBox]) -> None:
    """The boxes of each file lie in it, one after the other, each with its checksums."""
    if manifest["segment_bytes"] != SEGMENT_BYTES:
        raise CheckpointError(
            f"segment_bytes = {manifest['segment_bytes']!r:.40}; wanted {SEGMENT_BYTES}"
        )
    stop_of = dict.fromkeys(manifest["files"], 0)
    for stored in sorted(boxes, key=lambda box: (box.file, box.at)):
        if (
            stored.at < stop_of[stored.file]
            or stored.at + stored.box_bytes > manifest["files"][stored.file]["bytes"]
        ):
            raise CheckpointError(
                f"{stored.dataset} at byte {stored.at} of {stored.file} overlaps another, or the file's end"
            )
        if len(stored.checksums) != num_segments(stored.box_bytes):
            raise CheckpointError(
                f"{stored.dataset} has {len(stored.checksums)} checksums for {stored.box_bytes} bytes"
            )
        stop_of[stored.file] = stored.at + stored.box_bytes
