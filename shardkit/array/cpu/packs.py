"""Machine code of many loops in one file: what comes with the package, or was made at installation.

    shipped/TARGET.kernels    checksum, table, the code of each loop and signature

A pack is of the sources that it was made from. One that is of others, or damaged, or that somebody
else can have written, is left out as a whole, and MACHINE_CODE.refused says why.
"""

import functools
import hashlib
import json
from pathlib import Path

from ...files.writers import read_trusted
from ...files.writing import write_whole
from ..machine_code import MACHINE_CODE
from .images import ABI
from .signatures import parts_of
from .targets import Target, target

PACKAGE = __name__.partition(".")[0]
FOLDER = Path(__file__).parent / "shipped"
DIGEST_BYTES = 32


def path_of(one: Target, folder: Path = FOLDER) -> Path:
    """Return the path of a target's pack."""
    return folder / f"{one.name}-{ABI}.kernels"


def key_of(name: str, signature: tuple[str, ...]) -> str:
    """Return the line that names a loop and its signature."""
    return f"{name}({', '.join(signature)})"


def parts_of_key(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the loop and the signature that a line names."""
    name, parts = parts_of(line) or (line, [])
    return name, tuple(parts)


def find(name: str, signature: tuple[str, ...], sources: str) -> bytes | None:
    """Return the code of a loop in the pack of this process's target; None if it is not there.

    sources   digest of what the loop is made from
    """
    found = _opened(path_of(target())).get(key_of(name, signature))
    if found is None:
        return None
    made_from, content = found
    if made_from != sources:
        MACHINE_CODE.refuse("the kernels that came with shardkit are of other sources")
        return None
    return content


def write(path: Path, kernels: dict[str, tuple[str, bytes]]) -> None:
    """Write a pack: of each line the digest of its sources, and its code."""
    table, contents, start = {}, [], 0
    for line, (made_from, content) in sorted(kernels.items()):
        table[line] = [made_from, start, len(content)]
        contents.append(content)
        start += len(content)
    whole = json.dumps(table).encode() + b"\n" + b"".join(contents)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, hashlib.sha256(whole).digest() + whole, mode=0o644)


@functools.cache
def _opened(path: Path) -> dict[str, tuple[str, bytes]]:
    """Return what is in a pack; nothing if there is none, or none that can be used."""
    whole = read_trusted(path)
    if whole is None:
        if path.exists():
            MACHINE_CODE.refuse(f"others can have written {path}")
        return {}
    if hashlib.sha256(whole[DIGEST_BYTES:]).digest() != whole[:DIGEST_BYTES]:
        MACHINE_CODE.refuse(f"{path} is damaged")
        return {}
    head, _, contents = whole[DIGEST_BYTES:].partition(b"\n")
    return {
        line: (made_from, contents[start : start + length])
        for line, (made_from, start, length) in json.loads(head).items()
    }
