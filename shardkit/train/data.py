"""Byte-level text, and batches that are a pure function of (seed, step).

    files --read once by rank 0--> run folder/data/train.bin, validation.bin --memory map on every rank--> windows

Sample number k of step t begins at a position drawn from (seed, t, k) alone. A data rank asks for its own sample numbers,
so any number of ranks sees the same global batch, and a resumed run needs no state but the step number.
"""
import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy

from ..array.random import integers, key_of
from ..errors import CorpusError

VOCABULARY_SIZE = 256       # a token is a byte
_BLOCK_BYTES = 16384        # validation text is held out in blocks of at most this size, spread over the corpus
_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def find_files(paths: list[str]) -> list[Path]:
    """The text files under these paths, sorted; with no paths, the Python standard library's own sources.

    Folders are searched for files whose name does not begin with a dot and that hold no NUL byte near their beginning.
    Errors: CorpusError if a path does not exist.
    """
    if not paths:
        library = Path(sysconfig.get_path("stdlib"))
        return [p for p in sorted(library.rglob("*.py")) if not _SKIPPED_FOLDERS.intersection(p.relative_to(library).parts)]
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise CorpusError(f"data.path {path} does not exist; give a file or folder of text")
        files += [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if _looks_like_text(p)]
    return files


def _looks_like_text(path: Path) -> bool:
    if not path.is_file() or any(part.startswith(".") for part in path.parts[-2:]):
        return False
    with open(path, "rb") as file:
        return b"\0" not in file.read(1024)


def read_corpus(paths: list[str], maximum_bytes: int) -> bytes:
    """The files one after the other, separated by a line end, up to `maximum_bytes`.

    Errors: CorpusError if a file cannot be read or nothing is there.
    """
    parts, size = [], 0
    try:
        for path in find_files(paths):
            if size >= maximum_bytes:
                break
            text = path.read_bytes()[:maximum_bytes - size]
            parts.append(text)
            size += len(text)
    except OSError as error:
        raise CorpusError(f"cannot read text {error.filename}: {error.strerror}") from None
    if not size:
        raise CorpusError(f"no text in {', '.join(paths) or 'the standard library'}; data.path must name text files")
    return b"\n".join(parts)


def split_corpus(text: bytes, validation_percent: float) -> tuple[bytes, bytes]:
    """(training text, validation text): every k-th block is held out, so that both come from everywhere."""
    every = max(2, round(100 / validation_percent))
    block = max(1, min(_BLOCK_BYTES, len(text) // (2 * every)))
    blocks = [text[i:i + block] for i in range(0, len(text), block)]
    held_out = blocks[every - 1::every]
    del blocks[every - 1::every]
    return b"".join(blocks), b"".join(held_out)


def build_corpus(folder: Path, paths: list[str], validation_percent: float, maximum_bytes: int) -> None:
    """Write the token files of a run, unless they are there. For one rank; the others open them afterwards.

    Errors: CorpusError, OSError; no half-written file stays.
    """
    if (folder / "corpus.json").exists():
        return
    text = read_corpus(paths, maximum_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train.bin", "validation.bin"), split_corpus(text, validation_percent)):
        (folder / name).write_bytes(part)
    temporary = folder / "corpus.json.tmp"
    temporary.write_text(json.dumps({"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(), "paths": paths}))
    temporary.rename(folder / "corpus.json")


@dataclass(frozen=True)
class Windows:
    """Windows of `length` tokens of a text, with the next token as target.

    tokens  [n] uint8, usually a memory map
    """

    tokens: numpy.ndarray
    length: int
    seed: int
    purpose: str = "batch"

    @classmethod
    def open(cls, path: Path, length: int, seed: int, purpose: str = "batch") -> "Windows":
        """Map a token file. Errors: CorpusError if it is shorter than one window and its target."""
        num_tokens = path.stat().st_size
        if num_tokens < length + 1:
            raise CorpusError(f"{path.name} has {num_tokens} tokens, but a sequence needs model.sequence_length + 1 = "
                              f"{length + 1}; give more text or a shorter sequence")
        return cls(numpy.memmap(path, numpy.uint8, "r"), length, seed, purpose)

    def batch(self, step: int, first: int, count: int):
        """Samples [first, first + count) of the global batch of this step.

        returns  x, y  [count, length] int64; y is x shifted by one token
        """
        key = key_of(self.seed, self.purpose, step)
        starts = integers(key, first, first + count, len(self.tokens) - self.length)
        window = numpy.stack([self.tokens[s:s + self.length + 1] for s in starts]).astype(numpy.int64)
        return window[:, :-1], window[:, 1:]


def corpus_fingerprint(folder: Path) -> str:
    """SHA-256 of the text behind the token files: a resumed run must see the same text."""
    return json.loads((folder / "corpus.json").read_text())["sha256"]
