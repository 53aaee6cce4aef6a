"""Companions: files that go with a model and hold no weights, such as those of its tokenizer.

A folder of transformers has them beside its weights, a checkpoint that was converted from it has
them beside its tensors, and so does every checkpoint of a model that went on from there. They are
ordinary files of the checkpoint, with their checksums in the manifest. Nothing here parses them.
"""

from pathlib import Path

from ...errors import CheckpointError
from ...files.reading import read_bytes
from ...files.writing import write_whole
from .files import as_text, crc32, read_whole

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
    "table.json",
    "coupling.json",
)
MOST_BYTES = 1 << 26  # of each: every rank keeps them in memory


def found_beside(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return ({name: content}, notes) of those in a folder of transformers; links are followed."""
    companions, notes = {}, []
    for name in NAMES:
        path = folder / name
        if not path.exists():
            continue
        if not path.is_file():
            notes.append(f"{name} stays behind: it is no file")
        elif path.stat().st_size > MOST_BYTES:
            notes.append(
                f"{name} stays behind: it has {path.stat().st_size:,} bytes, "
                f"wanted {MOST_BYTES:,} at most"
            )
        else:
            companions[name] = read_bytes(path, MOST_BYTES, error=CheckpointError)
    taken = [name for name in companions if name != CONFIGURATION_NAME]
    if taken:
        notes.append(f"taken along: {', '.join(taken)}")
    return companions, notes


def write_companions(folder: Path, companions: dict[str, bytes]) -> dict[str, dict]:
    """Write them to disk, durably; return their records in the manifest."""
    for name, content in companions.items():
        write_whole(folder / name, content, durable=True)
    return {
        name: {"bytes": len(content), "crc32": as_text(crc32(content))}
        for name, content in companions.items()
    }


def check_companion(name: str, num_bytes: int) -> None:
    """Raise CheckpointError if a companion of this name is too large to be kept in memory."""
    if name in NAMES and num_bytes > MOST_BYTES:
        raise CheckpointError(f"{name} has {num_bytes} bytes; wanted {MOST_BYTES} at most")


def read_companions(folder: Path, records: dict[str, dict]) -> dict[str, bytes]:
    """Return {name: content} of those among the files of a checkpoint.

    records   the "files" of its manifest
    Errors: CheckpointError, PermissionError if one is not what the manifest says.
    """
    return {name: _read(folder / name, record) for name, record in records.items() if name in NAMES}


def _read(path: Path, record: dict) -> bytes:
    content = read_whole(path, MOST_BYTES)
    if as_text(crc32(content)) != record["crc32"]:
        raise CheckpointError(f"{path} is damaged: its checksum is not {record['crc32']}")
    return content
