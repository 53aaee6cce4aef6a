"""The manifest: what a checkpoint folder must hold, in JSON, so that completeness is checked before anything is trusted.

    {"format": "shardkit-checkpoint", "version": 1, "step": 100, "seed": 0, "mesh": {...}, "model": {...}, ...,
     "files":   {"rank-00000.h5": {"bytes": 81920, "crc32": "9ae0daaf"}, ...},
     "tensors": {"model/head.norm.weight": {"shape": [128], "dtype": "float32",
                                            "boxes": [["rank-00000.h5", "model/head.norm.weight/0", [0], [128]], ...]}}}
"""
import json
import zlib
from pathlib import Path

from ..errors import CheckpointError, LayoutError
from ..layout.box import Box, tiles_exactly
from .hdf5 import StoredBox

FORMAT, VERSION = "shardkit-checkpoint", 1
MANIFEST_NAME = "manifest.json"
_CHUNK_BYTES = 1 << 22


def file_record(path: Path) -> dict:
    """Size and checksum of a file as it is on disk."""
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return {"bytes": path.stat().st_size, "crc32": f"{checksum:08x}"}


def tensor_table(boxes: list[StoredBox]) -> dict:
    """The "tensors" entry. Errors: CheckpointError unless the boxes of each tensor tile it exactly once."""
    table: dict[str, dict] = {}
    for box in boxes:
        entry = table.setdefault(box.tensor, {"shape": list(box.global_shape), "dtype": box.dtype, "boxes": []})
        entry["boxes"].append([box.file, box.dataset, list(box.box.offset), list(box.box.shape)])
    for tensor in table:
        check_coverage(tensor, table[tensor])
    return table


def check_coverage(tensor: str, entry: dict) -> None:
    """Errors: CheckpointError unless the boxes of this entry tile the tensor exactly once."""
    try:
        tiles_exactly(tuple(entry["shape"]), [Box(tuple(offset), tuple(shape)) for _, _, offset, shape in entry["boxes"]])
    except LayoutError as error:
        raise CheckpointError(f"the stored boxes of {tensor} do not make it whole: {error}") from None


def stored_boxes(tensor: str, entry: dict) -> list[StoredBox]:
    """The boxes of one tensor, as the manifest lists them."""
    return [StoredBox(tensor, file, dataset, Box(tuple(offset), tuple(shape)), tuple(entry["shape"]), entry["dtype"])
            for file, dataset, offset, shape in entry["boxes"]]


def read_manifest(folder: Path) -> dict:
    """The manifest of a checkpoint folder, with its files present in the right size.

    Errors: CheckpointError saying what is wrong. Contents of the files are not read; `verify_file` does that.
    """
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST_NAME}: it is not a checkpoint, or its writing was cut short") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / MANIFEST_NAME} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder / MANIFEST_NAME} is not the manifest of a shardkit checkpoint")
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{folder} has format version {manifest.get('version')}; this shardkit reads {VERSION}")
    try:
        for name, record in manifest["files"].items():
            _check_size(folder / name, record["bytes"])
        for tensor, entry in manifest["tensors"].items():
            check_coverage(tensor, entry)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / MANIFEST_NAME} is damaged: {type(error).__name__} {error}") from None
    return manifest


def _check_size(path: Path, wanted: int) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    if path.stat().st_size != wanted:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes, but the manifest says {wanted}")


def verify_file(folder: Path, name: str, record: dict) -> None:
    """Read the file and compare its checksum. Errors: CheckpointError."""
    found = file_record(folder / name)
    if found != record:
        raise CheckpointError(f"{folder / name} is damaged: checksum {found['crc32']}, but the manifest says {record['crc32']}")
