"""Byte-level text, and batches that are a pure function of (seed, step).

    files --read once by rank 0--> run folder/data/train.bin, validation.bin --memory map on every
    rank--> windows

Sample number k of step t begins at a position drawn from (seed, t, k) alone. A data rank asks for
its own sample numbers, so any number of ranks sees the same global batch, and a resumed run needs
no state but the step number.
"""

import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy

from ..checkpoint.format.files import write_whole
from ..data.samples import Samples
from ..errors import CorpusError
from ..settings import fixed

VOCABULARY_SIZE = 256  # a token is a byte
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_DESCRIPTION = "corpus.json"
_SKIPPED_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "encodings",
}  # a hundred tables, most of them nearly copies of each other


_KEPT = "it keeps its own copy of the text that it was started on"


@dataclass(frozen=True, kw_only=True)
class Text:
    """The text of a run."""

    path: tuple[str, ...] = fixed(
        _KEPT,
        (),
        "files or folders of text; none: the sources of Python's standard library",
        is_path=True,
    )
    validation_percent: float = fixed(
        _KEPT, 5.0, "part of the text held out for validation", "percent", above=0.0, below=100.0
    )
    maximum_bytes: int = fixed(_KEPT, 64 * 2**20, "most text to read", "bytes", minimum=1)


def find_files(paths: list[str]) -> list[Path]:
    """Return the text files under these paths, sorted; without paths, the standard library's.

    Folders are searched for files whose name does not begin with a dot and that hold no NUL byte
    near their beginning.
    Errors: CorpusError if a path does not exist, or a folder holds nothing but files of other
    kinds.
    """
    if not paths:
        library = Path(sysconfig.get_path("stdlib"))
        return [
            p
            for p in sorted(library.rglob("*.py"))
            if not _SKIPPED_FOLDERS.intersection(p.relative_to(library).parts)
        ]
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise CorpusError(f"data.path {path} does not exist; give a file or folder of text")
        files += [path] if path.is_file() else _texts_under(path)
    return files


def _texts_under(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    texts = [path for path in found if _looks_like_text(path)]
    if found and not texts:
        raise CorpusError(
            f"no text in {folder}: {len(found)} file{'s were' if len(found) > 1 else ' was'} "
            "passed over, which "
            "are hidden or hold NUL bytes, as no text does; data.path must name text files"
        )
    return texts


def _looks_like_text(path: Path) -> bool:
    if any(part.startswith(".") for part in path.parts[-2:]):
        return False
    with open(path, "rb") as file:
        return b"\0" not in file.read(1024)


def _check_text(path: Path, text: bytes) -> None:
    """Errors: CorpusError if these bytes are no text, which says what they may be."""
    if text.startswith(_HDF5_SIGNATURE):
        kind = "it is an HDF5 file"
    elif b"\0" not in text:
        return
    elif text.startswith((b"\xff\xfe", b"\xfe\xff")):
        kind = "it is UTF-16, which iconv -t UTF-8 converts"
    elif path.suffix == ".bin":
        kind = (
            "it holds NUL bytes, like the token numbers that nanoGPT writes; give the text that "
            "they were made from"
        )
    else:
        kind = "it holds NUL bytes"
    raise CorpusError(
        f"data.path {path} is no text: {kind}. `shardkit train` learns the bytes of text files; "
        "other data is "
        "trained on in Python (sk.FSDPModel and the like)"
    )


def read_texts(paths: list[str], maximum_bytes: int) -> list[bytes]:
    """Return the different texts of these files, at most `maximum_bytes` in all.

    Of files with the same content the first counts.

    Errors: CorpusError if a file cannot be read or is no text, or nothing is there.
    """
    texts, size = {}, 0
    try:
        for path in find_files(paths):
            if size >= maximum_bytes:
                break
            with open(path, "rb") as file:
                text = file.read(maximum_bytes - size)
            _check_text(path, text)
            if text and text not in texts:
                texts[text] = None
                size += len(text)
    except OSError as error:
        raise CorpusError(f"cannot read text {error.filename}: {error.strerror}") from None
    if not size:
        raise CorpusError(
            f"no text in {', '.join(paths) or 'the standard library'}; data.path must name text "
            "files"
        )
    return list(texts)


def split_corpus(texts: list[bytes], validation_percent: float) -> tuple[list[bytes], list[bytes]]:
    """Return (training texts, validation texts); held-out texts come from everywhere.

        sizes   3 4 2 5 1 3 ...     At each text the share of all texts so far is due. A text is
                      ^             held out if it fits into what is due and not yet held out.

    A text that is longer than the whole held-out part is cut, and its end is held out. A single
    text is always cut.
    """
    share = validation_percent / 100
    longest = share * sum(map(len, texts))
    training = []
    held_out = []
    passed_bytes = 0
    held_bytes = 0
    for text in texts:
        if len(text) > longest:
            cut = len(text) - max(1, int(share * len(text)))
            training.append(text[:cut])
            held_out.append(text[cut:])
            continue
        passed_bytes += len(text)
        if held_bytes + len(text) <= share * passed_bytes:
            held_bytes += len(text)
            held_out.append(text)
        else:
            training.append(text)
    return training, held_out


def build_corpus(
    folder: Path, paths: list[str], validation_percent: float, maximum_bytes: int
) -> None:
    """Write the token files of a run, in place of others. For one rank; the others open them
    afterwards.

    Texts are separated by a line end. Errors: CorpusError, OSError; no half-written file stays.
    """
    texts = read_texts(paths, maximum_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DESCRIPTION).unlink(missing_ok=True)  # from here on it would be that of other files
    fingerprint = hashlib.sha256()
    for name, part in zip(("train.bin", "validation.bin"), split_corpus(texts, validation_percent)):
        tokens = b"\n".join(part)
        fingerprint.update(b"%d:" % len(tokens) + tokens)
        write_whole(folder / name, tokens)
    write_whole(
        folder / _DESCRIPTION,
        json.dumps(
            {
                "bytes": sum(map(len, texts)),
                "sha256": fingerprint.hexdigest(),
                "paths": paths,
                "validation_percent": validation_percent,
                "maximum_bytes": maximum_bytes,
            }
        ).encode(),
    )


def has_corpus(folder: Path) -> bool:
    """Return True if the token files of a run exist and are complete."""
    return (folder / _DESCRIPTION).exists()


class Windows(Samples):
    """Windows of `length` tokens of a text, with the next token as target.

    tokens  [n] uint8, usually a memory map; sample number s begins at token s
    """

    def __init__(self, tokens: numpy.ndarray, length: int, sha256: str):
        self.tokens, self.length = tokens, length
        self._sha256 = sha256

    @classmethod
    def open(cls, path: Path, length: int) -> "Windows":
        """Map a token file. Errors: CorpusError if it is shorter than one window and its target."""
        num_tokens = path.stat().st_size
        if num_tokens < length + 1:
            raise CorpusError(
                f"{path.name} has {num_tokens} tokens, but a sequence needs model.sequence_length "
                "+ 1 = "
                f"{length + 1}; give more text or a shorter sequence"
            )
        return cls(numpy.memmap(path, numpy.uint8, "r"), length, corpus_fingerprint(path.parent))

    def __len__(self) -> int:
        return len(self.tokens) - self.length

    def read(self, numbers):
        """Return x, y [count, length] int64 of these samples; y is x shifted by one token."""
        window = numpy.stack([self.tokens[s : s + self.length + 1] for s in numbers])
        window = window.astype(numpy.int64)
        return window[:, :-1], window[:, 1:]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the text."""
        return self._sha256


def corpus_fingerprint(folder: Path) -> str:
    """SHA-256 of the text behind the token files: a resumed run must see the same text."""
    return json.loads((folder / _DESCRIPTION).read_text())["sha256"]
