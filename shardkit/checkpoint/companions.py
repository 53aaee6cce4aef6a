"""Companions: files that go with a model and hold no weights, such as those of its tokenizer.

A folder of transformers has them beside its weights; a checkpoint that was converted from it has
them beside its tensors, and so does every checkpoint of a model that went on from there. They are
ordinary files of the checkpoint, with their checksums in the manifest. Nothing here looks into
them, but for config.json on the way back.
"""

from pathlib import Path

from ..errors import CheckpointError
from .format.files import as_text, crc32, file_bytes, open_regular, sync

CONFIGURATION_NAME = "config.json"
NAMES = (
    CONFIGURATION_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
MOST_BYTES = 1 << 26  # of each: every rank keeps them in memory


def found_beside(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return ({name: content}, notes) of those in a folder of transformers, where links are
    usual.
    """
    companions, notes = {}, []
    for name in NAMES:
        path = folder / name
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            companions[name] = path.read_bytes()
        elif path.exists():
            what = (
                f"it has {path.stat().st_size:,} bytes, wanted {MOST_BYTES:,} at most"
                if path.is_file()
                else "it is no file"
            )
            notes.append(f"{name} stays behind: {what}")
    taken = [name for name in companions if name != CONFIGURATION_NAME]
    return companions, notes + ([f"taken along: {', '.join(taken)}"] if taken else [])


def write_companions(folder: Path, companions: dict[str, bytes]) -> dict[str, dict]:
    """Write them; return their records in the manifest. They are on disk when this returns."""
    for name, content in companions.items():
        (folder / name).write_bytes(content)
        sync(folder / name)
    return {
        name: {"bytes": len(content), "crc32": as_text(crc32(content))}
        for name, content in companions.items()
    }


def check_companion(name: str, num_bytes: int) -> None:
    """Errors: CheckpointError if a file of this name is too large to be kept in memory."""
    if name in NAMES and num_bytes > MOST_BYTES:
        raise CheckpointError(f"{name} has {num_bytes} bytes; wanted {MOST_BYTES} at most")


def read_companions(folder: Path, records: dict[str, dict]) -> dict[str, bytes]:
    """Return {name: content} of those among the files of a checkpoint.

    records   the "files" of its manifest
    Errors: CheckpointError, PermissionError if one is not what the manifest says.
    """
    return {name: _read(folder / name, record) for name, record in records.items() if name in NAMES}


def _read(path: Path, record: dict) -> bytes:
    check_companion(path.name, file_bytes(path))
    with open(open_regular(path), "rb") as file:
        content = file.read()
    if as_text(crc32(content)) != record["crc32"]:
        raise CheckpointError(f"{path} is damaged: its checksum is not {record['crc32']}")
    return content
